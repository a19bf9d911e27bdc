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
pub(super) fn unknown(variables: impl Iterator<Item = (OsString, OsString)>, program: &Command) -> Vec<String> {
    let known = of(program);
    let texts = variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let strangers = texts
        .filter(|(name, value)| name.starts_with(PREFIX) && !known.contains(name) && !is_of_a_service(name, value));
    strangers.map(|(name, _)| sentence(&name, &known)).collect()
}

/// The variables of a command and its subcommands.
fn of(command: &Command) -> BTreeSet<String> {
    let own = command.get_arguments().filter_map(|arg| Some(arg.get_env()?.to_str()?.to_owned()));
    own.chain(command.get_subcommands().flat_map(of)).collect()
}

/// Kubernetes gives a container variables for each Service in its namespace, such as `METADATA_PROXY_SERVICE_HOST` and
/// `METADATA_PROXY_PORT_80_TCP_ADDR` for a Service named `metadata-proxy`. `METADATA_PROXY_PORT` is one if it has a URL such as
/// `tcp://10.0.0.11:80`.
fn is_of_a_service(name: &str, value: &str) -> bool {
    let has_number = |rest: &str| rest.starts_with(|first: char| first.is_ascii_digit());
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT") && value.contains("://")
        || name.split("_PORT_").skip(1).any(has_number)
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

    fn said(variables: &[(&str, &str)]) -> Vec<String> {
        unknown(variables.iter().map(|(name, value)| (name.into(), value.into())), &crate::cli::Args::command())
    }

    #[test]
    fn a_misspelt_variable_is_named_with_the_right_one() {
        for (name, right) in [
            ("METADATA_PROXY_POLICI", "METADATA_PROXY_POLICY"),
            ("METADATA_PROXY_MAX_INFLIGHT", "METADATA_PROXY_MAX_IN_FLIGHT"),
            ("METADATA_PROXY_STARTUP_TAINTS", "METADATA_PROXY_STARTUP_TAINT"),
            ("METADATA_PROXY_REDIRECT_ALLOW_PORT", "METADATA_PROXY_REDIRECT_ALLOW"),
            ("METADATA_PROXY_REDIRECT_ALLOW_PORT_S", "METADATA_PROXY_REDIRECT_ALLOW"),
        ] {
            assert_eq!(
                said(&[(name, "a")]),
                [format!("{name} is not a variable of this version and has no effect; did you mean {right}?")]
            );
        }
        assert_eq!(
            said(&[("METADATA_PROXY_XYZZY", "")]),
            ["METADATA_PROXY_XYZZY is not a variable of this version and has no effect"]
        );
    }

    #[test]
    fn others_are_none_of_its_business() {
        let variables = [
            ("METADATA_PROXY_POLICY", "strict"),
            ("NODE_NAME", "n"),
            ("PATH", "/bin"),
            ("METADATA_PROXY_SERVICE_HOST", "10.0.0.11"),
            ("METADATA_PROXY_SERVICE_PORT_HTTP", "80"),
            ("METADATA_PROXY_PORT", "tcp://10.0.0.11:80"),
            ("METADATA_PROXY_METRICS_PORT", "udp://10.0.0.11:80"),
            ("METADATA_PROXY_PORT_80_TCP", "tcp://10.0.0.11:80"),
            ("METADATA_PROXY_PORT_80_TCP_ADDR", "10.0.0.11"),
            ("METADATA_PROXY_PORT_80_TCP_PORT", "80"),
        ];
        assert_eq!(said(&variables), [""; 0]);
        // The same name with what a person would write.
        assert_eq!(said(&[("METADATA_PROXY_METRICS_PORT", "989")]).len(), 1);
    }
}
