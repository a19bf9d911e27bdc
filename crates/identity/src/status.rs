//! What operators see of [`Identity`].

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::Identity;
use super::caller::Caller;
use super::cluster::RequestError;
use protocol::metadata::CallingPod;

/// Silence of the API server after which new pods may be unknown to the proxy. Bookmarks arrive about every minute.
pub const STALE: Duration = Duration::from_secs(150);

/// Maximum characters that are kept of the watch's last error. It may have a message of the API server.
pub(crate) const MAX_WATCH_ERROR: usize = 1000;

/// An identified pod, for pages.
#[derive(Debug, Clone, Serialize)]
pub struct CallerRow {
    pub address: IpAddr,
    #[serde(flatten)]
    pub pod: Arc<CallingPod>,
    /// Whether it acts as the node.
    pub passthrough: bool,
}

/// Numbers of known pods.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Summary {
    /// Pods that the API server reports.
    pub pods: usize,
    /// Live pods that the kernel shows.
    pub sandboxes: usize,
    /// Seconds since the API server was last heard from. `None` before its first list, unless pods were restored.
    pub api_age: Option<u64>,
}

impl Identity {
    /// This node's pods that act as the node, as `NAMESPACE/NAME`, sorted. No other pod with a network of its
    /// own gets the node's tokens.
    pub fn acting_as_node(&self) -> Vec<String> {
        let pods = self.pods.all();
        let acting = pods.iter().filter(|pod| pod.has_network() && self.is_passed_through(pod));
        let mut names: Vec<_> = acting.map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
        names.sort_unstable();
        names
    }

    /// Numbers of known pods.
    pub fn summary(&self) -> Summary {
        let api_age = self.pods.age().map(|age| age.as_secs());
        Summary { pods: self.pods.count(), sandboxes: self.sandboxes().count(), api_age }
    }

    /// The reason why new pods may be unknown, for operators. `None` if they are known.
    pub fn degraded(&self) -> Option<String> {
        let api_server = self.api_server();
        match self.pods.age() {
            None => Some(format!("identity: {api_server} has not yet listed this node's pods, which get 503")),
            Some(age) if age > STALE => {
                let seconds = age.as_secs();
                Some(format!(
                    "identity: {api_server} has reported nothing about pods for {seconds} s; new pods get 503"
                ))
            }
            Some(_) => self.scans.trouble().map(|trouble| format!("identity: {trouble}; new pods get 503")),
        }
    }

    /// Records why the last attempt to follow the API server failed. `None` if it succeeded.
    pub fn watched(&self, error: Option<&RequestError>) {
        let beginning = |error: &RequestError| error.to_string().chars().take(MAX_WATCH_ERROR).collect();
        *self.watch_error.lock() = error.map(beginning);
    }

    /// Why the API server is not heard, for operators: what it answered, or what is in the way. `None` if it is heard.
    pub fn watch_error(&self) -> Option<String> {
        let is_silent = self.pods.age().is_none_or(|age| age > STALE);
        self.watch_error.lock().clone().filter(|_| is_silent)
    }

    /// Records why the last write to the state directory failed. `None` if it succeeded.
    pub fn stored(&self, error: Option<&io::Error>) {
        *self.state_error.lock() = error.map(ToString::to_string);
    }

    /// Why the last write to the state directory failed. `None` if it succeeded, or there was none.
    pub fn state_error(&self) -> Option<String> {
        self.state_error.lock().clone()
    }

    /// A description of the API server, with its URL if that is known.
    pub fn api_server(&self) -> String {
        let at = self.api_server.get().map(|cluster| format!(" at {}", cluster.server())).unwrap_or_default();
        format!("the API server{at}")
    }

    /// The identified pods, by address.
    pub fn rows(&self) -> Vec<CallerRow> {
        let row = |(addr, caller): (&IpAddr, &Arc<Caller>)| {
            let pod = Arc::clone(&caller.pod.as_ref()?.calling);
            Some(CallerRow { address: *addr, pod, passthrough: caller.is_node() })
        };
        let mut rows: Vec<_> = self.callers.lock().iter().filter_map(row).collect();
        rows.sort_by_key(|row| row.address);
        rows
    }

    /// The pod that has this address now, if it was identified.
    pub fn pod_at(&self, addr: IpAddr) -> Option<Arc<CallingPod>> {
        self.callers.lock().get(&addr)?.pod.as_ref().map(|pod| Arc::clone(&pod.calling))
    }
}
