//! [`Handle`]: lets a test observe and control a fake Google.

use std::sync::Arc;

use super::fault::Fault;
use super::state::State;
use super::{Endpoint, Principal, Subject, Workload};
use crate::listening::stop;

/// Observes and controls a fake Google. Clones refer to the same one. Dropping all of them does not stop it.
#[derive(Debug, Clone)]
pub struct Handle {
    pub(super) state: Arc<State>,
}

/// Its URL and certificate, and its end.
impl Handle {
    /// The URL of both services, without a path or a trailing slash.
    pub fn url(&self) -> String {
        format!("https://{}", self.state.addr)
    }

    /// The certificate of its authority, in PEM.
    pub fn ca_pem(&self) -> &'static str {
        self.state.settings.authority.pem
    }

    /// Closes the listener and all connections, and waits until this is done. The state is lost.
    pub async fn stop(&self) {
        stop(&self.state.stop).await;
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
        self.state.tokens.lock().get(token).map(|issued| issued.subject.clone())
    }
}

/// Faults.
impl Handle {
    /// All requests to an endpoint get this fault, until changed.
    pub fn fault(&self, endpoint: Endpoint, fault: Fault) {
        self.state.faults.lock().insert(endpoint, fault);
    }

    /// While away, closes all connections, even with requests in progress, and new ones as soon as they arrive. It keeps its state.
    pub fn set_away(&self, is_away: bool) {
        self.state.away.send_if_modified(|was_away| std::mem::replace(was_away, is_away) != is_away);
    }
}

/// Counts since the start.
impl Handle {
    /// Number of requests to an endpoint, whatever their result.
    pub fn count(&self, endpoint: Endpoint) -> u64 {
        self.count_if(|(to, _)| *to == endpoint)
    }

    /// Number of requests to an endpoint whose token names this workload.
    pub fn count_of(&self, endpoint: Endpoint, workload: &Workload) -> u64 {
        self.count_if(|(to, who)| *to == endpoint && who.as_ref() == Some(workload))
    }

    fn count_if(&self, is_meant: impl Fn(&(Endpoint, Option<Workload>)) -> bool) -> u64 {
        self.state.requests.lock().iter().filter(|(of, _)| is_meant(of)).map(|(_, count)| count).sum()
    }
}
