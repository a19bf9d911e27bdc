//! [`Handle`]: what a test sees of a mock and does to it.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;

use super::fault::Fault;
use super::journal::Seen;
use super::lock::lock;
use super::rows::{DEFAULT_ACCOUNT, DISABLE_LEGACY_ENDPOINTS};
use super::state::State;
use super::token::TokenPolicy;

/// A running mock's counters and its script. Clones are of the same mock; dropping them all does not stop it.
#[derive(Debug, Clone)]
pub struct Handle {
    state: Arc<State>,
    alive: watch::Receiver<()>,
}

/// Counters, since the start or the last [`Handle::reset_counters`].
impl Handle {
    pub(super) fn new(state: Arc<State>, alive: watch::Receiver<()>) -> Self {
        Self { state, alive }
    }

    /// Where the mock listens.
    pub fn addr(&self) -> SocketAddr {
        self.state.addr
    }

    /// Heads that came in completely, to any path, refused and unreadable ones too.
    pub fn requests(&self) -> u64 {
        self.state.journal.requests()
    }

    /// Requests to a path, which is compared with the request's as it was sent, without the query. The first 10,000
    /// paths are counted.
    pub fn requests_to(&self, path: &str) -> u64 {
        self.state.journal.requests_to(path)
    }

    /// Connections accepted.
    pub fn connections(&self) -> u64 {
        self.state.journal.connections()
    }

    /// Connections open now.
    pub fn open_connections(&self) -> u64 {
        self.state.journal.open.now()
    }

    /// Requests being answered now: those that a fault delays and those that wait for a change are among them.
    pub fn in_flight(&self) -> u64 {
        self.state.journal.in_flight.now()
    }

    /// The most requests that were being answered at once.
    pub fn peak_in_flight(&self) -> u64 {
        self.state.journal.in_flight.peak()
    }

    /// The last 10,000 requests, oldest first; fewer when their heads are huge.
    pub fn log(&self) -> Vec<Seen> {
        self.state.journal.log()
    }

    /// Sets every counter to 0 and empties the log. What is open or in flight stays counted, and is the new peak.
    pub fn reset_counters(&self) {
        self.state.journal.reset();
    }
}

/// The script of faults. For each request, [`Handle::fault_next`] comes first, then the longest prefix of
/// [`Handle::fault_at`], then [`Handle::fault`].
impl Handle {
    /// Every request from now on meets this fault.
    pub fn fault(&self, fault: Fault) {
        self.state.script.every(fault);
    }

    /// Requests whose path starts with a prefix meet this fault, as `/computeMetadata/v1/instance/service-accounts/`.
    pub fn fault_at(&self, path_prefix: &str, fault: Fault) {
        self.state.script.at(path_prefix, fault);
    }

    /// The next `n` requests meet this fault; a second call adds to the first.
    pub fn fault_next(&self, n: usize, fault: Fault) {
        self.state.script.next(n, fault);
    }

    /// No request meets a fault any more, and requests that hang get their answers.
    pub fn heal(&self) {
        self.state.script.heal();
    }
}

/// The values.
impl Handle {
    /// Gives a leaf a value and wakes whoever waits for a change. The path is relative to `/computeMetadata/v1/`, as
    /// `instance/attributes/foo`, and must not be a directory's; a new leaf is plain text. Lists, such as
    /// `instance/tags`, take an item a line.
    pub fn set(&self, path: &str, value: &str) {
        self.state.change(|tree| tree.set(path, value));
    }

    /// Takes away a leaf, or a directory with all it holds, and wakes whoever waits for a change.
    ///
    /// Without `instance/attributes/enable-guest-attributes` guests cannot write, and without
    /// `instance/gce-workload-certificates/config-status` that directory answers 412.
    pub fn remove(&self, path: &str) {
        self.state.change(|tree| tree.remove(path));
    }

    /// Adds a service account besides the two that are there.
    pub fn add_account(&self, email: &str) {
        let aliases = if email == DEFAULT_ACCOUNT { "default" } else { "" };
        self.state.change(|tree| tree.add_account(email, email, aliases));
    }

    /// Serves the trees of before v1, which need no header: `/computeMetadata/v1beta1/` and `/0.1/meta-data/`. They are
    /// off on today's machines, by the attribute `disable-legacy-endpoints`, which this sets.
    pub fn legacy(&self, on: bool) {
        self.set(DISABLE_LEGACY_ENDPOINTS, if on { "false" } else { "true" });
    }

    /// Says how tokens live from now on. `life` holds for tokens minted later, the rest also for those that are there.
    pub fn token_policy(&self, policy: TokenPolicy) {
        lock(&self.state.tokens).policy = policy;
    }

    /// Forgets every token: the next answer to anybody is a new one.
    pub fn rotate_tokens(&self) {
        lock(&self.state.tokens).rotate();
    }

    /// Closes the listener and every connection, and waits until that is done. From then on the port refuses connections,
    /// and [`Mock::bind`](super::Mock::bind) can take it again. Needs [`Mock::run`](super::Mock::run) to be running, or
    /// over.
    pub async fn stop(&self) {
        self.state.stop.send_replace(true);
        let mut alive = self.alive.clone();
        while alive.changed().await.is_ok() {}
    }
}
