//! Flags of `check`.

use clap::Args;

use super::Reader;
use crate::check::Format;

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Output format: text for people, json for scripts
    #[arg(long, value_name = "text|json", default_value = "text")]
    format: String,
}

impl CheckArgs {
    pub(super) fn resolve(&self, read: &mut Reader) -> Option<Format> {
        read.value("--format", &self.format, "text or json", |format| match format {
            "text" => Some(Format::Text),
            "json" => Some(Format::Json),
            _ => None,
        })
    }
}
