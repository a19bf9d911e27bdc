//! [`Handle`]: lets a test observe and control a mock.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::fault::Fault;
use super::journal::RecordedRequest;
use super::listening::stop;
use super::rows::DISABLE_LEGACY_ENDPOINTS;
use super::state::State;

/// The counters and the script of a running mock. Clones refer to the same mock. Dropping all of them does not
/// stop it.
#[derive(Debug, Clone)]
pub struct Handle {
    pub(super) state: Arc<State>,
}

/// Counters since the start or the last [`Handle::reset_counters`].
impl Handle {
    pub fn addr(&self) -> SocketAddr {
        self.state.addr
    }

    /// Number of complete request heads, to any path, including refused and invalid ones.
    pub fn requests(&self) -> u64 {
        self.state.journal.requests.load(Relaxed)
    }

    /// Number of requests to a path, compared as sent, without the query. Only the first 10,000 paths are
    /// counted.
    pub fn requests_to(&self, path: &str) -> u64 {
        self.state.journal.requests_to(path)
    }

    /// Number of connections accepted.
    pub fn connections(&self) -> u64 {
        self.state.journal.connections.load(Relaxed)
    }

    /// Number of open connections.
    pub fn open_connections(&self) -> u64 {
        self.state.journal.open.now()
    }

    /// Number of requests that wait for a change and will notice the next one. A request that has just arrived is in
    /// flight and may still miss it: it has not read the value before the change.
    pub fn watchers(&self) -> usize {
        self.state.changes.receiver_count()
    }

    /// Number of requests in flight, including those delayed by a fault and those waiting for a change. A request is no
    /// longer counted when the last piece of its response was sent, even if the client has not read it.
    pub fn in_flight(&self) -> u64 {
        self.state.journal.in_flight.now()
    }

    /// Maximum number of concurrent requests.
    pub fn peak_in_flight(&self) -> u64 {
        self.state.journal.in_flight.peak()
    }

    /// The last 10,000 requests, oldest first.
    pub fn log(&self) -> Vec<RecordedRequest> {
        self.state.journal.log()
    }

    /// Resets all counters and empties the log. Open connections and requests in flight remain counted and
    /// become the new peak.
    pub fn reset_counters(&self) {
        self.state.journal.reset();
    }
}

/// The script of faults. Precedence: [`Handle::fault_next`], then the longest prefix of [`Handle::fault_at`],
/// then [`Handle::fault`].
impl Handle {
    /// All requests get this fault.
    pub fn fault(&self, fault: Fault) {
        self.state.script.stand("", fault);
    }

    /// Requests whose path starts with a prefix get this fault, for example
    /// `/computeMetadata/v1/instance/service-accounts/`.
    pub fn fault_at(&self, path_prefix: &str, fault: Fault) {
        self.state.script.stand(path_prefix, fault);
    }

    /// The next `n` requests get this fault. Calls add up.
    pub fn fault_next(&self, n: usize, fault: Fault) {
        self.state.script.next(n, fault);
    }

    /// Removes all faults. Hanging requests get their responses.
    pub fn heal(&self) {
        self.state.script.heal();
    }
}

/// The values.
impl Handle {
    /// Sets the value of a leaf and wakes requests that wait for a change. The path is relative to
    /// `/computeMetadata/v1/`, such as `instance/attributes/foo`, and must not be a directory. A new leaf is
    /// plain text. Lists, such as `instance/tags`, have one item per line.
    pub fn set(&self, path: &str, value: &str) {
        self.state.change(|tree| tree.set(path, value));
    }

    /// Removes a leaf, or a directory with its contents, and wakes requests that wait for a change.
    ///
    /// Without `instance/attributes/enable-guest-attributes` guests cannot write. Without
    /// `instance/gce-workload-certificates/config-status` its directory answers 412.
    pub fn remove(&self, path: &str) {
        self.state.change(|tree| tree.remove(path));
    }

    /// Adds a service account to the two existing ones.
    pub fn add_account(&self, email: &str) {
        self.state.change(|tree| tree.add_account(email, email, ""));
    }

    /// Serves the trees before v1, which require no header: `/computeMetadata/v1beta1/` and `/0.1/meta-data/`.
    /// Today's machines disable them with the attribute `disable-legacy-endpoints`, which this sets.
    pub fn enable_legacy(&self) {
        self.set(DISABLE_LEGACY_ENDPOINTS, "false");
    }

    /// Sets the lifetime of new tokens, in whole seconds. If it is 300 s or less, every request gets a new token.
    pub fn token_life(&self, life: Duration) {
        self.state.tokens.lock().life = life;
    }

    /// Closes the listener and all connections, and waits until this is done. After that the port refuses
    /// connections, and [`Mock::bind`](super::Mock::bind) can bind it again. Requires
    /// [`Mock::run`](super::Mock::run) to be running or to have returned.
    pub async fn stop(&self) {
        stop(&self.state.stop).await;
    }
}
