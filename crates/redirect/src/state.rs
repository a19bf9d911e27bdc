//! [`State`]: the installed rules, compared with a plan.

/// Result of the comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Installed exactly as requested.
    Installed,
    /// Installed without the bound on new connections, which the tool or the kernel refused.
    Unbounded,
    /// Only the rules that close the metadata server to pods, because the redirect could not be installed.
    Closed,
    /// Not installed.
    Absent,
    /// Other rules than requested, with a description of the difference.
    Differs(String),
}

impl State {
    /// Whether pods are redirected.
    pub fn is_installed(&self) -> bool {
        matches!(self, Self::Installed | Self::Unbounded)
    }

    /// Finds the marks of a plan in a listing. `is_all`: the listing has as many rules as the plan.
    pub(super) fn compare(marks: &[String], listing: &str, is_all: bool) -> Self {
        let found: Vec<&str> = listing.split("comment \"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let count = |mark: &str| found.iter().filter(|found| **found == mark).count();
        let missing = marks.iter().filter(|mark| count(mark) == 0).count();
        if missing > 0 {
            Self::Differs(format!("{missing} of {} rules are missing or are of other settings", marks.len()))
        } else if is_all {
            Self::Installed
        } else {
            Self::Differs(
                "there are rules or chains besides those that were installed, or jumps to them are missing".to_owned(),
            )
        }
    }
}
