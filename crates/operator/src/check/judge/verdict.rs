//! [`Verdict`] and [`Finding`]: the result of one check.

use serde::Serialize;

use crate::finding;
use telemetry::labels;

labels! {
    /// Meaning of an observation, from good to bad.
    #[derive(PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "lowercase")]
    Verdict {
        /// Passed.
        Protected = "protected",
        /// Exposed on purpose (`--redirect-allow`).
        Allowed = "allowed",
        /// Not exposed, but not working.
        Trouble = "trouble",
        /// Exposed.
        Unprotected = "unprotected",
    }
}

impl Verdict {
    /// Whether nothing is exposed unintentionally, and everything works.
    pub fn is_good(self) -> bool {
        self <= Self::Allowed
    }
}

/// Result of one check. The topic is the check's name. No advice if it passed.
pub type Finding = finding::Finding<&'static str, Verdict>;
