//! Flags of `status`.

use clap::Args;

use super::Command;
use super::admin::AdminArgs;
use super::flag::Flag;
use super::given::Mistakes;
use super::syntax::{ArgExt as _, Choice};
use telemetry::logging::Format;

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Output format: text for people, json for scripts
    #[arg(long, choice = Format::default())]
    format: Choice<Format>,

    /// The same as --format=json
    #[arg(long, conflicts_with = "format")]
    json: bool,

    #[command(flatten)]
    admin: AdminArgs,
}

impl StatusArgs {
    pub(super) fn resolve(self, mistakes: &mut Mistakes) -> Option<Command> {
        let admin = self.admin.resolve(mistakes);
        let format = mistakes.value(self.format)?;
        let format = if self.json { Format::Json } else { format };
        Some(Command::Status { admin: admin?, format })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::{mistakes, parse_line};
    use crate::config;

    #[test]
    fn it_asks_where_the_proxy_serves_operators() {
        for (line, wanted, format) in [
            ("status", config::METRICS_ADDR, Format::Text),
            ("status --json", config::METRICS_ADDR, Format::Json),
            ("status --format=json --metrics-addr=:8989", ([0, 0, 0, 0], 8989).into(), Format::Json),
            ("--metrics-addr=127.0.0.1:8989 status", ([127, 0, 0, 1], 8989).into(), Format::Text),
        ] {
            let parsed = parse_line(line);
            assert!(
                matches!(parsed, Ok(Command::Status { admin, format: as_ }) if (admin, as_) == (wanted, format)),
                "{line}: {parsed:?}"
            );
        }
        assert!(mistakes("status --format=xml").contains("--format"));
    }
}
