//! Flags of `check`.

use std::time::Duration;

use clap::Args;

use super::admin::AdminArgs;
use super::flag::Flag;
use super::given::{Given, Mistakes};
use super::log::LogArgs;
use super::opened::RoutesArgs;
use super::syntax::{ArgExt as _, Choice, HostName, Time};
use operator::check::{Canary, Command};
use telemetry::logging::Format;

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Output format: text for people, json for scripts
    #[arg(long, choice = Format::default())]
    format: Choice<Format>,

    /// Check repeatedly, with this pause between checks, until a signal arrives. Logs changes, and serves /readyz and
    /// /metrics at --metrics-addr. Sends only HEAD requests, so it receives neither tokens nor secrets. For a pod on each node
    #[arg(long, value_name = "DURATION", conflicts_with = "format")]
    interval: Option<Given<Time>>,

    /// Name of this node, for the messages of --interval
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: Option<Given<HostName>>,

    /// Print what the process with --interval at --metrics-addr found last. Exits with 0 if it is ready, otherwise with 1. For
    /// a readiness probe
    #[arg(long, conflicts_with_all = ["format", "interval"])]
    last: bool,

    #[command(flatten)]
    open: RoutesArgs,

    #[command(flatten)]
    admin: AdminArgs,

    #[command(flatten)]
    log: LogArgs,
}

impl CheckArgs {
    pub(super) fn resolve(self, mistakes: &mut Mistakes) -> Option<super::Command> {
        mistakes.without(
            "--redirect-allow",
            "a check: --last prints what --interval found",
            self.last && self.open.is_typed(),
        );
        let (admin, log) = (self.admin.resolve(mistakes), self.log.resolve(mistakes));
        let node = mistakes.optional(self.node_name);
        let open = self.open.resolve(mistakes)?;
        let command = match self.interval {
            Some(interval) => {
                let interval = mistakes.value_if(interval, INTERVAL, |time| *time >= Duration::from_secs(1))?;
                Command::Repeatedly(Canary { interval, node, open })
            }
            None if self.last => Command::Last,
            None => Command::Once { format: mistakes.value(self.format)?, open },
        };
        Some(super::Command::Check { command, admin: admin?, log: log? })
    }
}

/// What `--interval` takes. Less than a second would be a burden.
const INTERVAL: &str = "at least 1s, as a number followed by s or m, such as 30s";

#[cfg(test)]
mod tests {
    use super::super::Command as Cli;
    use super::super::tests::{mistakes, parse_line};
    use super::*;
    use redirect::Routes;

    fn check(line: &str) -> Command {
        match parse_line(line) {
            Ok(Cli::Check { command, .. }) => command,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn it_is_done_once_unless_an_interval_is_given() {
        let open = Routes { ports: vec![443], ipv6: true };
        assert_eq!(check("check"), Command::Once { format: Format::Text, open: Routes::default() });
        assert_eq!(
            check("check --redirect-allow=443,ipv6"),
            Command::Once { format: Format::Text, open: open.clone() }
        );
        assert_eq!(check("check --last"), Command::Last);
        let canary = Canary { interval: Duration::from_secs(30), node: Some("node-1".to_owned()), open };
        assert_eq!(
            check("check --interval=30s --node-name=node-1 --redirect-allow=443,ipv6"),
            Command::Repeatedly(canary)
        );
        for (line, named) in [
            ("check --interval=0s", "at least 1s"),
            ("check --interval=999ms", "at least 1s"),
            ("check --interval=30", "at least 1s"),
            ("check --interval=30s --last", "--last"),
            ("check --redirect-allow=80", "--redirect-allow"),
            ("check --interval=30s --format=json", "--format"),
            ("check --last --redirect-allow=443", "--redirect-allow has no effect without a check"),
        ] {
            let text = mistakes(line);
            assert!(text.contains(named), "{line}: {text}");
        }
    }
}
