//! Log lines: text for a terminal, JSON for a cluster.

use std::io::IsTerminal;
use std::str::FromStr;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For a person at a terminal.
    Text,
    /// One JSON object a line.
    Json,
}

/// Which lines are written, in tracing's syntax: `info,gce_metadata_proxy=debug`.
#[derive(Debug, Clone, PartialEq)]
pub struct Levels(Targets);

impl FromStr for Levels {
    type Err = tracing_subscriber::filter::ParseError;

    fn from_str(levels: &str) -> Result<Self, Self::Err> {
        levels.parse().map(Self)
    }
}

/// Begins to log to standard error. Later calls change nothing.
pub fn start(format: Format, levels: &Levels) {
    let lines = match format {
        Format::Text => fmt::layer().with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr).boxed(),
        Format::Json => fmt::layer().json().flatten_event(true).with_writer(std::io::stderr).boxed(),
    };
    // It fails only where logging has begun already, and then it logs.
    let _ = tracing_subscriber::registry().with(lines.with_filter(levels.0.clone())).try_init();
}
