//! The limit of open files.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use operator::pages::MAX_ADMIN_CONNECTIONS;

/// Raises the open file limit to what the configured limits need: one file per client and upstream connection and per pod that
/// is identified, and a few others.
pub(super) fn want(connections: usize) {
    let wanted = u64::try_from(connections + MAX_ADMIN_CONNECTIONS + 64).unwrap_or(u64::MAX);
    match allow_files(wanted) {
        Ok(allowed) if allowed >= wanted => {}
        Ok(allowed) => tracing::warn!(
            allowed,
            wanted,
            "the open file limit is too low for --max-connections, --max-in-flight and --max-hanging; raise the hard limit \
             (ulimit -Hn) or lower the flags"
        ),
        Err(error) => tracing::warn!(%error, wanted, "cannot raise the open file limit"),
    }
}

/// Raises the limit of open files to this number, or to the hard limit. Returns the limit, which may be higher.
pub fn allow_files(wanted: u64) -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    let (current, maximum) = (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX));
    let allowed = wanted.min(maximum);
    if current >= allowed {
        return Ok(current);
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), ..limit })?;
    Ok(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_up_to_the_hard_one_and_never_lowered() {
        let before = getrlimit(Resource::Nofile);
        let (current, maximum) = (before.current.expect("a soft limit"), before.maximum.unwrap_or(u64::MAX));
        assert_eq!(allow_files(1).expect("allowed"), current);
        let more = current.saturating_add(1).min(maximum);
        assert_eq!(allow_files(more).expect("allowed"), more);
        assert_eq!(getrlimit(Resource::Nofile).current, Some(more));
    }
}
