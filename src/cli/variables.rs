//! Environment variables that resemble those of flags but are unknown. Nothing reads them, so a misspelling would go
//! unnoticed.

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::Command;

/// Prefix of the variables of all flags except `--node-name`.
const PREFIX: &str = "METADATA_PROXY_";

/// Minimum similarity of a suggested name, between 0 and 1. clap uses the same for flags.
const SIMILAR: f64 = 0.7;

/// A sentence for each of these variables that resembles those of flags but is unknown, in their order.
pub(super) fn unknown(names: impl Iterator<Item = OsString>, program: &Command) -> Vec<String> {
    let known = of(program);
    let names = names.filter_map(|name| name.into_string().ok());
    let strangers = names.filter(|name| name.starts_with(PREFIX) && !known.contains(name) && !is_of_a_service(name));
    strangers.map(|name| sentence(&name, &known)).collect()
}

/// The variables of a command and its subcommands.
fn of(command: &Command) -> BTreeSet<String> {
    let own = command.get_arguments().filter_map(|arg| Some(arg.get_env()?.to_str()?.to_owned()));
    own.chain(command.get_subcommands().flat_map(of)).collect()
}

/// Kubernetes gives a container variables for each Service in its namespace, such as `METADATA_PROXY_SERVICE_HOST` and
/// `METADATA_PROXY_PORT_80_TCP_ADDR` for a Service named `metadata-proxy`.
fn is_of_a_service(name: &str) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || name.contains("_PORT_")
}

fn sentence(name: &str, known: &BTreeSet<String>) -> String {
    let likeness = |other: &String| strsim::jaro(&name[PREFIX.len()..], other.trim_start_matches(PREFIX));
    let nearest = known.iter().map(|other| (likeness(other), other)).max_by(|(a, _), (b, _)| a.total_cmp(b));
    match nearest {
        Some((likeness, other)) if likeness > SIMILAR => {
            format!("{name} is not a variable of this version and has no effect; did you mean {other}?")
        }
        _ => format!("{name} is not a variable of this version and has no effect"),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn said(names: &[&str]) -> Vec<String> {
        unknown(names.iter().map(OsString::from), &crate::cli::Args::command())
    }

    #[test]
    fn a_misspelt_variable_is_named_with_the_right_one() {
        for (name, right) in [
            ("METADATA_PROXY_POLICI", "METADATA_PROXY_POLICY"),
            ("METADATA_PROXY_MAX_INFLIGHT", "METADATA_PROXY_MAX_IN_FLIGHT"),
            ("METADATA_PROXY_STARTUP_TAINTS", "METADATA_PROXY_STARTUP_TAINT"),
        ] {
            assert_eq!(
                said(&[name]),
                [format!("{name} is not a variable of this version and has no effect; did you mean {right}?")]
            );
        }
        assert_eq!(
            said(&["METADATA_PROXY_XYZZY"]),
            ["METADATA_PROXY_XYZZY is not a variable of this version and has no effect"]
        );
    }

    #[test]
    fn others_are_none_of_its_business() {
        let names = [
            "METADATA_PROXY_POLICY",
            "NODE_NAME",
            "PATH",
            "METADATA_PROXY_SERVICE_HOST",
            "METADATA_PROXY_SERVICE_PORT_HTTP",
            "METADATA_PROXY_PORT",
            "METADATA_PROXY_PORT_80_TCP_ADDR",
        ];
        assert_eq!(said(&names), [""; 0]);
    }
}
