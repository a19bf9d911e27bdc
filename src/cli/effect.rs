//! Refuses flags that would have no effect, because whoever sets one expects an effect. A flag with its default value is
//! harmless.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command};

use super::federation::{self, FederationArgs};
use super::given::{Mistakes, origin, value};
use super::identity::IdentityArgs;
use super::opened::OpenedArgs;
use super::syntax::{OnOff, OrNone, Server};
use super::values::ValuesArgs;

/// Flags that have an effect only in combination with others.
struct Group {
    /// Adds the flags to a command.
    flags: fn(Command) -> Command,
    /// The flags in this group that always have an effect.
    except: &'static [&'static str],
    /// The flag that the others require to have an effect.
    without: &'static str,
    /// Whether the flags have an effect. Also true if an invalid value leaves this open.
    is_on: fn(&ArgMatches) -> bool,
}

const GROUPS: [Group; 4] = [
    Group {
        flags: IdentityArgs::augment_args,
        // The node's name may be set without Workload Identity, as in any pod.
        except: &["workload-identity", "node-name"],
        without: "--workload-identity",
        is_on: |given| is_on(given, "workload_identity"),
    },
    Group {
        flags: FederationArgs::augment_args,
        except: &["workload-pool", "cluster-uri", "workload-identity-provider"],
        without: federation::EITHER,
        is_on: |given| !is_on(given, "workload_identity") || federation::has_tokens(given),
    },
    Group {
        flags: OpenedArgs::augment_args,
        except: &[],
        without: "--redirect",
        is_on: |given| is_on(given, "redirect"),
    },
    Group {
        flags: ValuesArgs::augment_args,
        except: &[],
        without: "--upstream=none: a metadata server has values of its own",
        is_on: |given| !matches!(value::<OrNone<Server>>(given, "upstream"), Some(Some(_))),
    },
];

/// Adds a mistake for each flag of the proxy that was given and has no effect.
pub(super) fn check(given: &ArgMatches, mistakes: &mut Mistakes) {
    for Group { flags, except, without, .. } in GROUPS.iter().filter(|group| !(group.is_on)(given)) {
        let command = flags(Command::default());
        let is_idle = |arg: &&Arg| !arg.get_long().is_some_and(|name| except.contains(&name)) && is_set(given, arg);
        for arg in command.get_arguments().filter(is_idle) {
            let origin = origin(arg, given.value_source(arg.get_id().as_str()));
            mistakes.without(&origin, without, true);
        }
    }
}

/// Whether a switch is on. Also true if its value is invalid.
fn is_on(given: &ArgMatches, id: &str) -> bool {
    value::<OnOff>(given, id).unwrap_or(true)
}

/// Whether a flag has a value other than its default. An empty environment variable counts as not set.
fn is_set(given: &ArgMatches, arg: &Arg) -> bool {
    let id = arg.get_id().as_str();
    let is_given = given.value_source(id).is_some_and(|source| source != ValueSource::DefaultValue);
    let texts = given.get_raw(id).into_iter().flatten().filter(|text| !text.is_empty());
    let defaults = arg.get_default_values().iter().map(clap::builder::OsStr::as_os_str);
    is_given && texts.clone().next().is_some() && !texts.eq(defaults)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{mistakes, parse_line, serve};

    #[test]
    fn a_flag_without_effect_is_refused() {
        for (line, expected) in [
            ("--passthrough=a/b", "--passthrough has no effect without --workload-identity"),
            ("--attest kernel", "--attest has no effect without --workload-identity"),
            ("--workload-pool=p.svc.id.goog", "--workload-pool has no effect without --workload-identity"),
            ("--impersonate-node=false", "--impersonate-node has no effect without --workload-identity"),
            ("--redirect-allow=443", "--redirect-allow has no effect without --redirect"),
            ("--redirect-drop-spoofed", "--redirect-drop-spoofed has no effect without --redirect"),
            ("--project-id=shop", "--project-id has no effect without --upstream=none: a metadata server"),
            (
                "--workload-identity --node-name=n --workload-identity-provider=none --prefetch=all",
                "--prefetch has no effect without --workload-pool or --workload-identity-provider",
            ),
        ] {
            let said = mistakes(line);
            assert!(said.contains(expected) && said.lines().count() == 2, "{line}: {said}");
        }
    }

    #[test]
    fn a_default_is_no_wish() {
        for line in [
            "--attest=prefer --host-proc=/host/proc --impersonate-node --workload-identity=false",
            "--redirect-drop-spoofed=auto --redirect-max-new-connections=500 --workload-pool=",
            "--node-name=n",
        ] {
            serve(line);
        }
        // A subcommand ignores the flags of the proxy.
        assert!(parse_line("--redirect-allow=443 policy show").is_ok());
    }

    #[test]
    fn what_is_invalid_is_one_mistake() {
        assert_eq!(mistakes("--redirect=perhaps --redirect-allow=443").lines().count(), 2);
    }
}
