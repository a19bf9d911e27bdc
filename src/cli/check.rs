//! Flags of `check`.

use clap::Args;

use super::given::Mistakes;
use super::syntax::{self, Choice};
use crate::check::Format;

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Output format: text for people, json for scripts
    #[arg(long, value_name = syntax::names::<Format>(), default_value = Format::default().to_string())]
    format: Choice<Format>,
}

impl CheckArgs {
    pub(super) fn resolve(self, mistakes: &mut Mistakes) -> Option<Format> {
        mistakes.value(self.format)
    }
}
