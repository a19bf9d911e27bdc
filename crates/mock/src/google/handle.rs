//! [`Handle`]: lets a test observe and control a fake Google.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::sync::watch;

use super::fault::{Fault, Target};
use super::journal::Call;
use super::routes;
use super::state::State;
use super::{Authority, Cut, Endpoint, Principal, Subject, Workload};

/// Observes and controls a fake Google. Clones refer to the same one. Dropping all of them does not stop it.
#[derive(Debug, Clone)]
pub struct Handle {
    state: Arc<State>,
    alive: watch::Receiver<()>,
}

/// Addresses, certificates and time.
impl Handle {
    pub(super) fn new(state: Arc<State>, alive: watch::Receiver<()>) -> Self {
        Self { state, alive }
    }

    /// The address that the fake listens on.
    pub fn addr(&self) -> SocketAddr {
        self.state.addr
    }

    /// The URL of both services, without a path or a trailing slash.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.state.tls { "https" } else { "http" }, self.state.addr)
    }

    /// The certificate of its authority, in PEM.
    pub fn ca_pem(&self) -> String {
        self.state.authority.pem()
    }

    /// Its authority, for another fake Google that the same clients trust.
    pub fn authority(&self) -> Authority {
        self.state.authority.clone()
    }

    /// The fake's time, in whole seconds since 1970. It follows tokio's clock, even when that is paused.
    pub fn now(&self) -> u64 {
        self.state.clock.now()
    }

    /// Answers a request without a connection, for tests in which tokio's clock is paused. The URL's host does not
    /// matter.
    pub async fn call(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Cut> {
        let (parts, body) = request.into_parts();
        let (parts, body) = routes::answer(&self.state, &parts, &body).await?.into_parts();
        Ok(Response::from_parts(parts, body.collect().await?.to_bytes()))
    }

    /// Closes the listener and all connections, and waits until this is done. The state is lost. Another fake can
    /// then be started on the same address.
    pub async fn stop(&self) {
        self.state.stop.send_replace(true);
        let mut alive = self.alive.clone();
        while alive.changed().await.is_ok() {}
    }
}

/// Keys, accounts and issued tokens.
impl Handle {
    /// Adds a Google service account that no principal may act as yet.
    pub fn add_account(&self, email: &str) {
        self.state.accounts.lock().add(email);
    }

    /// Removes a Google service account with all its bindings: IAM answers 404.
    pub fn remove_account(&self, email: &str) {
        self.state.accounts.lock().remove(email);
    }

    /// Lets a [`Workload`], or a Google service account by its e-mail, act as a Google service account, which is added.
    pub fn bind(&self, who: impl Into<Principal>, email: &str) {
        self.state.accounts.lock().bind(who.into(), email);
    }

    /// Reverts [`Handle::bind`]: IAM answers 403.
    pub fn unbind(&self, who: impl Into<Principal>, email: &str) {
        self.state.accounts.lock().unbind(&who.into(), email);
    }

    /// The subject of an access token or identity token that was issued here, expired or not. Only the last 50,000
    /// tokens are remembered.
    pub fn subject_of(&self, token: &str) -> Option<Subject> {
        self.state.tokens.lock().get(token).map(|issued| issued.subject.as_ref().clone())
    }
}

/// Faults. Precedence: [`Handle::fault_next`] in the order of the calls, then [`Handle::fault`] with the most precise
/// target: endpoint and workload, workload, endpoint, all.
impl Handle {
    /// All requests of a target get this fault, until changed. A target is an [`Endpoint`], a [`Workload`], both in a
    /// tuple, or [`Target::all`].
    pub fn fault(&self, target: impl Into<Target>, fault: Fault) {
        self.state.script.stand(target.into(), fault);
    }

    /// The next `n` requests of a target get this fault. Calls add up.
    pub fn fault_next(&self, n: usize, target: impl Into<Target>, fault: Fault) {
        self.state.script.next(n, target.into(), fault);
    }

    /// Removes all faults. Hanging requests get their responses.
    pub fn heal(&self) {
        self.state.script.heal();
    }

    /// While away, closes all connections, even with requests in progress, and new ones as soon as they arrive. It keeps its state.
    pub fn set_away(&self, is_away: bool) {
        self.state.set_away(is_away);
    }
}

/// Counts and records since the start or the last [`Handle::reset_counters`].
impl Handle {
    /// Number of requests to an endpoint, whatever their result.
    pub fn count(&self, endpoint: Endpoint) -> u64 {
        self.state.journal.count(|to, _| to == endpoint)
    }

    /// Number of requests to an endpoint whose token names this workload.
    pub fn count_of(&self, endpoint: Endpoint, workload: &Workload) -> u64 {
        self.state.journal.count(|to, who| to == endpoint && who == Some(workload))
    }

    /// The last 200,000 requests to the endpoints, oldest first.
    pub fn calls(&self) -> Vec<Call> {
        self.state.journal.calls()
    }

    /// Highest number of requests to an endpoint in any period of this length, among [`Handle::calls`]. STS's quota is
    /// 6,000 in a minute.
    pub fn busiest(&self, endpoint: Endpoint, window: Duration) -> usize {
        self.state.journal.busiest(endpoint, window)
    }

    /// Number of connections accepted.
    pub fn connections(&self) -> u64 {
        self.state.journal.connections.load(Relaxed)
    }

    /// Number of requests in flight, including slow and hanging ones.
    pub fn in_flight(&self) -> u64 {
        self.state.journal.in_flight.now()
    }

    /// Maximum number of concurrent requests since the start.
    pub fn peak_in_flight(&self) -> u64 {
        self.state.journal.in_flight.peak()
    }

    /// Resets counters and forgets the calls.
    pub fn reset_counters(&self) {
        self.state.journal.reset();
    }
}
