//! [`Decision`]: what a keeper makes of one scan after another, of the node's interfaces or of its uplinks.

/// What a scan of the node finds.
pub(super) trait Scan: Clone {
    /// The common result of two consecutive scans, if any.
    fn agreed(&self, later: &Self) -> Option<Self>;

    /// Whether another scan may find something else soon.
    fn is_transient(&self) -> bool;

    /// Whether this scan is a reason for no decision.
    fn says_nothing(&self) -> bool {
        false
    }
}

/// A keeper's decision, and the scan that it is compared with.
#[derive(Debug)]
pub(super) struct Decision<T> {
    current: T,
    last: T,
    is_settled: bool,
}

impl<T: Scan> Decision<T> {
    /// The first scan decides, but not for long if another may find something else.
    pub(super) fn new(first: T) -> Self {
        Self { current: first.clone(), is_settled: !first.is_transient(), last: first }
    }

    /// The same, unless another scan may find something else: until then `current` stands, as an earlier keeper decided.
    pub(super) fn after(current: T, first: T) -> Self {
        if first.is_transient() { Self { current, last: first, is_settled: false } } else { Self::new(first) }
    }

    /// Takes another scan into account.
    pub(super) fn update(&mut self, now: T) {
        if now.says_nothing() {
            if self.current.says_nothing() && self.current.is_transient() {
                // What is shown is what is so now.
                self.current = now.clone();
            }
            self.is_settled = true;
        } else if let Some(agreed) = self.last.agreed(&now) {
            (self.current, self.is_settled) = (agreed, true);
        } else {
            self.is_settled = self.current.agreed(&now).is_some();
        }
        self.last = now;
    }

    pub(super) fn current(&self) -> &T {
        &self.current
    }

    /// Whether the last scan was no reason to doubt the decision. If not, the next one should come soon.
    pub(super) fn is_settled(&self) -> bool {
        self.is_settled
    }
}

#[cfg(test)]
mod tests {
    use super::super::spoofing::tests::{NO_PODS_YET, no_route};
    use super::super::spoofing::{Cause, Spoofed, Version};
    use super::super::uplinks::Uplinks;
    use super::*;

    #[test]
    fn a_decision_changes_when_two_consecutive_scans_find_the_same_cause() {
        let (one, other) = (no_route(&[("cali1", Version::V4)]), no_route(&[("cali2", Version::V4)]));
        let both = no_route(&[("cali1", Version::V4), ("cali2", Version::V4)]);
        let dropped = Spoofed::Dropped;
        let unread = Spoofed::LetPass(Cause::Unknown(String::new()));
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
            ("routes cannot be read", vec![&dropped, &unread, &unread], &dropped, true),
            ("not from the start", vec![&unread, &unread, &dropped, &dropped], &dropped, true),
            ("there are no pods yet", vec![&unread, &NO_PODS_YET], &NO_PODS_YET, true),
            ("the last pod ends", vec![&dropped, &NO_PODS_YET, &NO_PODS_YET], &dropped, true),
        ] {
            let mut scans = scans.into_iter().cloned();
            let mut decision = Decision::new(scans.next().expect("one"));
            scans.for_each(|now| decision.update(now));
            assert_eq!((decision.current(), decision.is_settled()), (expected, is_settled), "{what}");
        }
    }

    #[test]
    fn what_an_earlier_keeper_decided_stands_until_two_scans_agree() {
        let unrouted = no_route(&[("cali1", Version::V4)]);
        let mut decision = Decision::after(Spoofed::Dropped, unrouted.clone());
        assert_eq!((decision.current(), decision.is_settled()), (&Spoofed::Dropped, false));
        decision.update(unrouted.clone());
        assert_eq!((decision.current(), decision.is_settled()), (&unrouted, true));
    }

    #[test]
    fn uplinks_change_when_two_consecutive_scans_find_the_same() {
        let [ens4, ens5] = ["ens4", "ens5"].map(|name| Uplinks::named(vec![name.to_owned()]));
        let none = Uplinks::default();
        for (what, scans, expected, is_settled) in [
            ("a route is gone for a moment", vec![&ens4, &none], &ens4, false),
            ("it is back", vec![&ens4, &none, &ens4], &ens4, true),
            ("it stays away", vec![&ens4, &none, &none], &none, true),
            ("it moves", vec![&ens4, &none, &ens5, &ens5], &ens5, true),
            ("no route yet at the start", vec![&none], &none, false),
            ("and it comes", vec![&none, &ens4, &ens4], &ens4, true),
        ] {
            let mut scans = scans.into_iter().cloned();
            let mut decision = Decision::new(scans.next().expect("one"));
            scans.for_each(|now| decision.update(now));
            assert_eq!((decision.current(), decision.is_settled()), (expected, is_settled), "{what}");
        }
    }
}
