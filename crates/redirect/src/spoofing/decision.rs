//! [`Decision`]: what a keeper makes of one scan after another.

use super::Spoofed;

/// A keeper's decision on spoofed packets, and the scan that it is compared with.
#[derive(Debug)]
pub(crate) struct Decision {
    current: Spoofed,
    last: Spoofed,
    is_settled: bool,
}

impl Decision {
    /// The first scan decides, but not for long if another may find something else. `is_dropped`: what an earlier keeper decided,
    /// whose rules are there.
    pub(crate) fn new(first: Spoofed, is_dropped: bool) -> Self {
        let is_settled = !first.is_transient();
        let current = if is_dropped && !is_settled { Spoofed::Dropped } else { first.clone() };
        Self { current, last: first, is_settled }
    }

    /// Takes another scan into account.
    pub(crate) fn update(&mut self, now: Spoofed) {
        if now.is_without_pods() {
            self.is_settled = true;
        } else if let Some(agreed) = self.last.agreed(&now) {
            (self.current, self.is_settled) = (agreed, true);
        } else {
            self.is_settled = self.current.agreed(&now).is_some();
        }
        self.last = now;
    }

    pub(crate) fn current(&self) -> &Spoofed {
        &self.current
    }

    /// Whether the last scan was no reason to doubt the decision. If not, the next one should come soon.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled
    }
}

#[cfg(test)]
mod tests {
    use super::super::Version;
    use super::super::tests::{NO_PODS_YET, no_route};
    use super::*;

    #[test]
    fn a_decision_changes_when_two_consecutive_scans_find_the_same_cause() {
        let (one, other) = (no_route(&[("cali1", Version::V4)]), no_route(&[("cali2", Version::V4)]));
        let both = no_route(&[("cali1", Version::V4), ("cali2", Version::V4)]);
        let dropped = Spoofed::Dropped;
        for (what, scans, expected, is_settled) in [
            ("a pod is being started", vec![&dropped, &one], &dropped, false),
            ("it is there", vec![&dropped, &one, &dropped], &dropped, true),
            ("pods are being started all the time", vec![&dropped, &one, &other, &one, &other], &dropped, false),
            ("one stays without a route", vec![&dropped, &both, &one], &one, true),
            ("at the start", vec![&one], &one, false),
            ("the same once more", vec![&one, &one], &one, true),
            ("it has a route by then", vec![&one, &dropped, &dropped], &dropped, true),
            ("the first pod", vec![&NO_PODS_YET, &dropped], &NO_PODS_YET, false),
            ("and it stays", vec![&NO_PODS_YET, &dropped, &dropped], &dropped, true),
            ("the last pod ends", vec![&dropped, &NO_PODS_YET, &NO_PODS_YET], &dropped, true),
        ] {
            let mut scans = scans.into_iter().cloned();
            let mut decision = Decision::new(scans.next().expect("one"), false);
            scans.for_each(|now| decision.update(now));
            assert_eq!((decision.current(), decision.is_settled()), (expected, is_settled), "{what}");
        }
    }

    #[test]
    fn what_an_earlier_keeper_decided_stands_until_two_scans_agree() {
        let unrouted = no_route(&[("cali1", Version::V4)]);
        let mut decision = Decision::new(unrouted.clone(), true);
        assert_eq!((decision.current(), decision.is_settled()), (&Spoofed::Dropped, false));
        decision.update(unrouted.clone());
        assert_eq!((decision.current(), decision.is_settled()), (&unrouted, true));
    }
}
