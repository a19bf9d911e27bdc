//! The log flags, which the proxy, `redirect install` and `check` share.

use clap::Args;
use serde::Serialize;

use super::flag::Flag;
use super::given::{Given, Mistakes};
use super::syntax::{ArgExt as _, Choice};
use telemetry::logging::{self, Format, Levels};

#[derive(Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct LogArgs {
    /// Log format on standard error: text for a terminal, json for a cluster
    #[arg(long, env = "METADATA_PROXY_LOG_FORMAT", choice = Format::default())]
    log_format: Choice<Format>,

    /// Log level, or levels by module, such as `info,gce_metadata_proxy=debug`
    // By default, changes and errors, not every request.
    #[arg(long, value_name = "LEVEL", env = "METADATA_PROXY_LOG", default_value = "info")]
    log: Given<Levels>,
}

impl Flag for LogArgs {
    type Value = (Format, Levels);

    fn resolve(self, mistakes: &mut Mistakes) -> Option<(Format, Levels)> {
        let format = self.log_format.resolve(mistakes);
        let levels = self.log.resolve(mistakes);
        Some((format?, levels?))
    }

    /// Shows the levels in force, which may have changed since the start.
    fn showing((format, levels): (Format, Levels)) -> Self {
        Self { log_format: Flag::showing(format), log: Flag::showing(logging::in_force().unwrap_or(levels)) }
    }
}
