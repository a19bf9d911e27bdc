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
    /// Not in force: by one IP version at least, the rules that close the metadata server to pods are missing or never reached.
    /// Empty chains may be left.
    Absent,
    /// Other rules than requested. They close the metadata server to pods, as far as rules of others before them do not accept
    /// the packets. With a description of the difference.
    Differs(String),
}

/// Said of rules that differ.
pub(super) const STILL_CLOSED: &str =
    "The rules in force still close the metadata server itself to pods; a proxy may serve pods through them";

impl State {
    /// Whether pods are redirected.
    pub fn is_installed(&self) -> bool {
        matches!(self, Self::Installed | Self::Unbounded)
    }

    /// Finds the marks of a plan in a listing. `is_all`: the listing has as many rules as the plan, at its places. `is_closed`: rules in it,
    /// perhaps of other settings or releases, close what the plan closes.
    pub(super) fn compare(marks: &[String], listing: &str, is_all: bool, is_closed: bool) -> Self {
        match Self::difference(marks, listing, is_all) {
            None => Self::Installed,
            Some(what) if is_closed => Self::Differs(format!("{what}. {STILL_CLOSED}")),
            Some(_) => Self::Absent,
        }
    }

    fn difference(marks: &[String], listing: &str, is_all: bool) -> Option<String> {
        let found: Vec<&str> = listing.split("comment \"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let count = |mark: &str| found.iter().filter(|found| **found == mark).count();
        let missing = marks.iter().filter(|mark| count(mark) == 0).count();
        if missing > 0 {
            return Some(format!("{missing} of {} rules are missing or are of other settings", marks.len()));
        }
        let besides =
            "there are extra rules or chains, or a jump is missing, or a chain's hook, priority or policy has changed";
        (!is_all).then(|| besides.to_owned())
    }
}

/// Whether these rules of a chain reset all packets that meet one of these conditions. Rules of other settings may leave ports
/// open. What comes after a rule of others may never be reached, so it does not count.
pub(super) fn are_reset<'a>(wanted: &[String], rules: impl Iterator<Item = &'a str>, reset: &str) -> bool {
    let is_ours = |rule: &&str| rule.contains("]\"") || rule.contains(reset);
    let ours: Vec<&str> = rules.take_while(is_ours).collect();
    wanted.iter().all(|condition| ours.iter().any(|rule| rule.contains(condition.as_str()) && rule.contains(reset)))
}
