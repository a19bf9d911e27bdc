//! [`Pods`]: the pods of this node, as the API server reports them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::sandboxes::REMEMBERED;
use super::{Pod, PodUid};
use base::clock::BootTime;

/// The pods of this node, as last reported by the API server.
#[derive(Debug, Default)]
pub struct Pods {
    inner: Mutex<Inner>,
    /// The number of changes so far.
    changes: watch::Sender<u64>,
    /// Notified while requests wait for a pod that the API server has not reported.
    missed: Notify,
    /// Notified while requests wait for the API server to be heard again about a pod that it has reported.
    doubted: Notify,
}

/// A pod, and since when the API server reports its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    pub pod: Arc<Pod>,
    /// `None` if the proxy has not seen them change: the report may be older than the pod's present sandbox.
    pub since: Option<BootTime>,
}

#[derive(Debug, Default)]
struct Inner {
    pods: HashMap<PodUid, Reported>,
    /// The addresses of pods that are gone, and when that was reported.
    gone: HashMap<PodUid, (Vec<IpAddr>, BootTime)>,
    /// Last time the API server was heard from. `None` before the first list or [`Pods::restore`].
    heard: Option<BootTime>,
    /// Whether the last attempt to reach it failed, or the pods are restored and it has not answered yet.
    is_unanswered: bool,
}

impl Inner {
    /// A pod whose addresses changed at `changed`, unless they are those that are known.
    fn reported(&self, pod: Pod, changed: Option<BootTime>) -> Reported {
        let known = self.pods.get(&pod.uid).filter(|known| known.pod.addresses == pod.addresses);
        Reported { since: known.map_or(changed, |known| known.since), pod: Arc::new(pod) }
    }

    /// Remembers the addresses of a pod that is gone.
    fn goes(&mut self, pod: &Pod) {
        let now = BootTime::now();
        self.gone.retain(|_, (_, since)| now.since(*since) < REMEMBERED);
        if !pod.addresses.is_empty() {
            self.gone.insert(pod.uid, (pod.addresses.clone(), now));
        }
    }

    fn hears(&mut self) {
        (self.heard, self.is_unanswered) = (Some(BootTime::now()), false);
    }
}

impl Pods {
    /// Replaces all pods by a list.
    pub fn replace(&self, pods: impl IntoIterator<Item = Pod>) {
        let mut inner = self.inner.lock();
        let pods = pods.into_iter().map(|pod| (pod.uid, inner.reported(pod, None))).collect();
        let before = mem::replace(&mut inner.pods, pods);
        for reported in before.values() {
            inner.goes(&reported.pod);
        }
        inner.hears();
        self.changed();
    }

    /// Sets pods that were known before the process began; the API server was last heard from at `heard`. Does nothing
    /// after a list.
    pub fn restore(&self, pods: impl IntoIterator<Item = Pod>, heard: BootTime) {
        let mut inner = self.inner.lock();
        if inner.heard.is_none() {
            inner.pods = pods.into_iter().map(|pod| (pod.uid, inner.reported(pod, None))).collect();
            (inner.heard, inner.is_unanswered) = (Some(heard), true);
            self.changed();
        }
    }

    /// Records a pod that was added or modified.
    pub fn apply(&self, pod: Pod) {
        let mut inner = self.inner.lock();
        inner.hears();
        if inner.pods.get(&pod.uid).is_none_or(|known| *known.pod != pod) {
            let is_silent = pod.addresses.is_empty();
            // The first report of a pod may be as old as a list.
            let changed = inner.pods.contains_key(&pod.uid).then(BootTime::now);
            let reported = inner.reported(pod, changed);
            let before = inner.pods.insert(reported.pod.uid, reported);
            // It no longer reports addresses: the last ones are remembered.
            if let Some(before) = before.filter(|_| is_silent) {
                inner.goes(&before.pod);
            }
            self.changed();
        }
    }

    /// Records that a pod is gone.
    pub fn remove(&self, uid: PodUid) {
        let mut inner = self.inner.lock();
        inner.hears();
        if let Some(reported) = inner.pods.remove(&uid) {
            inner.goes(&reported.pod);
            self.changed();
        }
    }

    /// Records that the API server reported no change, such as by a bookmark.
    pub fn heard(&self) {
        self.inner.lock().hears();
    }

    /// Records that an attempt to reach the API server failed.
    pub fn unanswered(&self) {
        self.inner.lock().is_unanswered = true;
    }

    /// Whether the API server has answered, and the last attempt to reach it did not fail. If not, pods that began
    /// since then are unknown.
    pub fn is_answered(&self) -> bool {
        let inner = self.inner.lock();
        inner.heard.is_some() && !inner.is_unanswered
    }

    pub fn get(&self, uid: PodUid) -> Option<Arc<Pod>> {
        self.inner.lock().pods.get(&uid).map(|reported| Arc::clone(&reported.pod))
    }

    /// The pods that may send from this address: not those that share the node's network or have ended.
    pub fn with_address(&self, addr: IpAddr) -> Vec<Reported> {
        let inner = self.inner.lock();
        let has_it = |Reported { pod, .. }: &&Reported| pod.has_network() && pod.addresses.contains(&addr);
        inner.pods.values().filter(has_it).cloned().collect()
    }

    /// Whether the API server reports other addresses for a pod, or did until its end in the last minutes. So if the pod had this
    /// one, it gave it to itself.
    pub fn is_elsewhere(&self, uid: PodUid, addr: IpAddr) -> bool {
        let inner = self.inner.lock();
        let pod =
            inner.pods.get(&uid).map(|reported| &reported.pod.addresses).filter(|addresses| !addresses.is_empty());
        let addresses = pod.or_else(|| inner.gone.get(&uid).map(|(addresses, _)| addresses));
        addresses.is_some_and(|addresses| !addresses.contains(&addr))
    }

    /// The pods for which a token of an account may be requested, the best first: the youngest of those that are not
    /// terminating, because it lives longest. The third is the oldest of them: young ones may all be unknown to the API server's
    /// authorizer yet, or be those that a deployment takes away first.
    pub fn sponsors(&self, namespace: &str, account: &str) -> Vec<Arc<Pod>> {
        let inner = self.inner.lock();
        let is_of = |pod: &&Arc<Pod>| pod.has_identity() && *pod.namespace == *namespace && *pod.account == *account;
        let mut pods: Vec<_> = inner.pods.values().map(|reported| &reported.pod).filter(is_of).cloned().collect();
        pods.sort_by_key(|pod| (pod.terminating, Reverse(pod.created)));
        let live = pods.partition_point(|pod| !pod.terminating);
        if live > 3 {
            pods.swap(2, live - 1);
        }
        pods
    }

    pub fn all(&self) -> Vec<Arc<Pod>> {
        self.inner.lock().pods.values().map(|reported| Arc::clone(&reported.pod)).collect()
    }

    pub fn count(&self) -> usize {
        self.inner.lock().pods.len()
    }

    /// Last time the API server was heard from. `None` before the first list or [`Pods::restore`].
    pub fn last_heard(&self) -> Option<BootTime> {
        self.inner.lock().heard
    }

    /// Waits for the first list, or for restored pods.
    pub async fn known(&self) {
        let mut changes = self.subscribe();
        while self.last_heard().is_none() {
            // The sender is in `self`.
            let _ = changes.changed().await;
        }
    }

    /// Records that a request waits for a pod that the API server has not reported.
    pub fn missed(&self) {
        self.missed.notify_waiters();
    }

    /// Waits for the next such request.
    pub async fn is_missed(&self) {
        self.missed.notified().await;
    }

    /// Records that a request waits for the API server to report a pod's addresses again.
    pub fn doubted(&self) {
        self.doubted.notify_waiters();
    }

    /// Waits for the next such request.
    pub async fn is_doubted(&self) {
        self.doubted.notified().await;
    }

    /// Time since the API server was last heard from. `None` before the first list or [`Pods::restore`].
    pub fn age(&self) -> Option<Duration> {
        self.inner.lock().heard.map(|heard| BootTime::now().since(heard))
    }

    /// A receiver that is notified of each change.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::clock::suspend;

    fn pod(uid: &str, addresses: &[&str]) -> Pod {
        Pod {
            uid: PodUid::parse(&uid.repeat(32)).expect("32 digits"),
            namespace: "a".into(),
            name: "p".into(),
            account: "app".into(),
            host_network: false,
            ended: false,
            terminating: false,
            created: 0,
            addresses: addresses.iter().map(|addr| addr.parse().expect("an address")).collect(),
        }
    }

    #[test]
    fn ended_pods_and_those_of_the_nodes_network_have_no_address() {
        let pods = Pods::default();
        let addr = "10.8.0.5".parse().expect("an address");
        pods.apply(Pod { ended: true, ..pod("1", &["10.8.0.5"]) });
        pods.apply(Pod { host_network: true, ..pod("2", &["10.8.0.5"]) });
        assert_eq!(pods.with_address(addr), []);
        pods.apply(Pod { terminating: true, ..pod("3", &["10.8.0.5", "fd00::5"]) });
        assert_eq!(pods.with_address(addr).len(), 1, "a pod that ends is still itself");
        assert_eq!(pods.with_address("fd00::5".parse().expect("an address")).len(), 1);
    }

    #[test]
    fn a_report_is_as_old_as_the_change_of_the_addresses_if_that_was_seen() {
        let pods = Pods::default();
        // Without addresses, as after a restart of the node.
        pods.restore([pod("5", &[])], BootTime::now());
        pods.replace([pod("5", &["10.8.0.5"])]);
        assert_eq!(pods.inner.lock().pods[&pod("5", &[]).uid].since, None, "a list may be older than the sandbox");
        let pods = Pods::default();
        let since = |addr: &str| {
            let reported = pods.with_address(addr.parse().expect("an address"));
            let [reported] = reported.as_slice() else { panic!("{reported:?}") };
            reported.since
        };
        pods.restore([pod("1", &["10.8.0.5"])], BootTime::now());
        assert_eq!(since("10.8.0.5"), None, "it may be older than the process");
        pods.replace([pod("1", &["10.8.0.5"]), pod("2", &["10.8.0.6"])]);
        assert_eq!((since("10.8.0.5"), since("10.8.0.6")), (None, None), "the first list");
        let changed = BootTime::now();
        pods.apply(pod("6", &["10.8.0.9"]));
        assert_eq!(since("10.8.0.9"), None, "it was not seen without");
        pods.apply(pod("1", &["10.8.0.7"]));
        let seen = since("10.8.0.7");
        assert!(seen >= Some(changed));
        suspend(Duration::from_secs(1));
        pods.apply(Pod { terminating: true, ..pod("1", &["10.8.0.7"]) });
        pods.replace([pod("1", &["10.8.0.7"])]);
        assert_eq!(since("10.8.0.7"), seen, "the addresses have not changed");
        pods.apply(pod("3", &[]));
        pods.apply(pod("3", &["10.8.0.8"]));
        assert!(since("10.8.0.8") > seen, "the first of a new pod");
    }

    #[test]
    fn the_youngest_pod_that_does_not_end_is_the_first_sponsor_and_the_oldest_the_third() {
        let pods = Pods::default();
        pods.apply(Pod { created: 1, ..pod("1", &[]) });
        pods.apply(Pod { created: 3, ..pod("2", &[]) });
        pods.apply(Pod { created: 9, terminating: true, ..pod("3", &[]) });
        pods.apply(Pod { created: 9, ended: true, ..pod("4", &[]) });
        pods.apply(Pod { created: 9, host_network: true, ..pod("5", &[]) });
        pods.apply(Pod { created: 9, account: "other".into(), ..pod("6", &[]) });
        pods.apply(Pod { created: 9, namespace: "other".into(), ..pod("7", &[]) });
        let order: Vec<_> = pods.sponsors("a", "app").iter().map(|pod| pod.uid).collect();
        assert_eq!(order, ["2", "1", "3"].map(|uid| pod(uid, &[]).uid));
        pods.apply(Pod { created: 4, ..pod("8", &[]) });
        pods.apply(Pod { created: 5, ..pod("9", &[]) });
        let order: Vec<_> = pods.sponsors("a", "app").iter().map(|pod| pod.uid).collect();
        assert_eq!(order, ["9", "8", "1", "2", "3"].map(|uid| pod(uid, &[]).uid));
    }

    #[test]
    fn a_pod_that_is_gone_is_remembered_where_it_was_for_as_long_as_its_sandbox() {
        let pods = Pods::default();
        let [here, there] = ["10.8.0.5", "10.8.0.6"].map(|addr| addr.parse().expect("an address"));
        let (known, listed, silent) = (pod("1", &["10.8.0.5"]), pod("2", &["10.8.0.5"]), pod("3", &[]));
        let is_elsewhere = |of: &Pod| [here, there].map(|addr| pods.is_elsewhere(of.uid, addr));
        for pod in [&known, &listed, &silent] {
            assert_eq!(is_elsewhere(pod), [false, false], "not reported yet");
            pods.apply(pod.clone());
        }
        let all = || [&known, &listed, &silent].map(is_elsewhere);
        let expected = [[false, true], [false, true], [false, false]];
        assert_eq!(all(), expected);
        pods.apply(pod("2", &[]));
        assert_eq!(all(), expected, "a report without addresses says nothing about where it was");
        pods.remove(known.uid);
        pods.replace([]);
        assert_eq!(all(), expected);
        suspend(REMEMBERED);
        pods.apply(pod("4", &["10.8.0.9"]));
        pods.replace([]);
        assert_eq!(all(), [[false, false]; 3]);
        assert_eq!(pods.inner.lock().gone.len(), 1);
    }

    #[test]
    fn a_list_replaces_everything_and_only_changes_are_signalled() {
        let pods = Pods::default();
        assert_eq!(pods.age(), None);
        let mut changes = pods.subscribe();
        pods.apply(pod("1", &[]));
        assert!(changes.has_changed().expect("open"));
        changes.mark_unchanged();
        pods.apply(pod("1", &[]));
        pods.heard();
        assert!(!changes.has_changed().expect("open"));
        pods.replace([pod("2", &[])]);
        assert!(changes.has_changed().expect("open"));
        assert_eq!((pods.count(), pods.get(pod("1", &[]).uid)), (1, None));
        assert!(pods.age().is_some());
    }
}
