//! The log flags, which the proxy and `redirect` share.

use clap::Args;
use serde::Serialize;

use super::given::{Given, Mistakes};
use super::syntax::{self, Choice};
use crate::config::{self, Config};
use telemetry::logging::{self, Format, Levels};

#[derive(Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct LogArgs {
    /// Log format on standard error: text for a terminal, json for a cluster
    #[arg(
        long,
        value_name = syntax::names::<Format>(),
        env = "METADATA_PROXY_LOG_FORMAT",
        default_value = Format::default().to_string()
    )]
    log_format: Choice<Format>,

    /// Log level, or levels by module, such as `info,gce_metadata_proxy=debug`
    #[arg(long, value_name = "LEVEL", env = "METADATA_PROXY_LOG", default_value = config::LOG)]
    log: Given<Levels>,
}

impl LogArgs {
    pub(super) fn resolve(self, mistakes: &mut Mistakes) -> Option<(Format, Levels)> {
        let format = mistakes.value(self.log_format);
        let levels = mistakes.value(self.log);
        Some((format?, levels?))
    }

    /// The flags that result in this configuration, with the levels in force, which may have changed since the start.
    pub(super) fn from_config(config: &Config) -> Self {
        Self {
            log_format: Choice::from_value(config.log_format),
            log: Given::from_value(logging::in_force().unwrap_or_else(|| config.log.clone())),
        }
    }
}
