//! accounts: answers a pod's requests about its own service account, and refuses those about others.
//!
//! It answers everything below `service-accounts/` except tokens, as GKE's metadata server does. A token request passes
//! if it is about the pod's own account. Requests of the node pass.
//!
//! The Google identity of an account is read from the API server when its first pod is scheduled. An earlier
//! request waits, and so does one whose account was last read too long ago.

use std::sync::Arc;

use http::header::HeaderValue;
use http::{Response, StatusCode};

use crate::workloads::{LinkError, Malformed, Names, Workload, Workloads};
use base::hook::Hook;
use protocol::metadata::own_accounts::{self, Asked, Shown, Value};
use protocol::metadata::{Principal, Request, ServiceAccount, WorkloadId};
use proxy::error::AccountError;
use proxy::layers::conceal::OwnEmail;
use proxy::layers::filter::{Answer, Decide, Decision};
use proxy::reply::{self, Body};

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The accounts of workloads, and their names.
#[derive(Debug, Clone)]
pub struct Accounts {
    workloads: Arc<Workloads>,
    names: Arc<Names>,
}

impl Accounts {
    /// The accounts of these workloads. `None` if they have no tokens of their own.
    pub fn new(workloads: &Arc<Workloads>) -> Option<Self> {
        Some(Self { workloads: Arc::clone(workloads), names: Arc::clone(workloads.names()?) })
    }

    /// A function that returns the e-mail of a workload's account.
    pub fn emails(&self) -> OwnEmail {
        let accounts = self.clone();
        Hook::new(Arc::new(move |id| {
            let accounts = accounts.clone();
            Box::pin(async move { accounts.email(id).await })
        }))
    }

    /// The e-mail of this workload's account. `None` if the account cannot be used or is not known.
    async fn email(&self, id: WorkloadId) -> Option<String> {
        let workload = match self.workloads.requested(id) {
            Some(workload) => Some(workload),
            None => self.workloads.reread(id).await.ok(),
        };
        let usable = workload.filter(|workload| workload.link.is_ok());
        usable.map(|workload| self.names.email(&workload).to_string())
    }

    /// Answers or passes on a request about the account of this workload.
    fn judge(&self, request: Box<Request>, asked: &Asked, workload: &Workload) -> Decision {
        match self.answer(&request, asked, workload) {
            Some(answer) => Decision::Answer(answer),
            None => Decision::Pass(request),
        }
    }

    /// The response to a request about a workload's account. `None` if another layer answers it.
    fn answer(&self, request: &Request, asked: &Asked, workload: &Workload) -> Option<Answer<Body>> {
        if let Some(account) = asked.account().filter(|account| !self.names.is_own(account, workload)) {
            return Some(Ok(self.not_its_own(account, workload)));
        }
        let email = match &workload.link {
            Ok(_) => self.names.email(workload),
            Err(malformed) => return Some(Err(AccountError::from(*malformed).into())),
        };
        let text = |status, text: &'static str| Ok(reply::sentence(status, text));
        Some(match own_accounts::show(asked, &request.query, &email) {
            Shown::Text(text) => Ok(reply::local(StatusCode::OK, reply::APPLICATION_TEXT, text)),
            Shown::Json(json) => Ok(reply::local(StatusCode::OK, JSON, json)),
            Shown::Redirect => Ok(reply::directory_redirect(request)),
            Shown::Missing => text(StatusCode::NOT_FOUND, "A service account has no such value.\n"),
            Shown::NoFormat => text(StatusCode::BAD_REQUEST, "A listing has only one format; leave out `alt`.\n"),
            Shown::NoSuchFormat => text(StatusCode::BAD_REQUEST, "A token has two formats: `alt` is json or text.\n"),
            Shown::NoChange => text(
                StatusCode::BAD_REQUEST,
                "wait_for_change does not work on a service account's values and tokens.\n",
            ),
            Shown::Elsewhere => return None,
        })
    }

    fn not_its_own(&self, account: &ServiceAccount, workload: &Workload) -> Response<Body> {
        let email = self.names.email(workload);
        let sentence = format!("The service account {account} is not this pod's. Its own are default and {email}.\n");
        reply::sentence(StatusCode::NOT_FOUND, sentence)
    }
}

impl From<Malformed> for AccountError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed.to_string().into())
    }
}

impl From<LinkError> for AccountError {
    fn from(error: LinkError) -> Self {
        let text = error.to_string().into();
        match error {
            LinkError::Deleted { .. } => Self::Deleted(text),
            LinkError::Unread { .. } => Self::Unknown(text),
            LinkError::Outdated => Self::Changed(text),
        }
    }
}

/// Parses a workload's request about its accounts. `None` for any other request.
fn own(request: &Request) -> Option<(WorkloadId, Asked)> {
    let Principal::Workload(id) = request.principal else { return None };
    Some((id, Asked::parse(&request.path)?))
}

impl Decide for Accounts {
    fn decide(&self, mut request: Box<Request>) -> Decision {
        let Some((id, asked)) = own(&request) else { return Decision::Pass(request) };
        if let Some(workload) = self.workloads.requested(id) {
            return self.judge(request, &asked, &workload);
        }
        // Until the account is known, the request must not keep the connection's read buffer.
        request.detach();
        let accounts = self.clone();
        Decision::undecided(async move {
            let workload = accounts.workloads.reread(id).await.map_err(AccountError::from)?;
            Ok(accounts.judge(request, &asked, &workload))
        })
    }

    fn answers_from_memory(&self, request: &Request) -> bool {
        let is_token = |asked: &Asked| matches!(asked, Asked::Value { value: Value::Token | Value::Identity, .. });
        own(request).is_some_and(|(id, asked)| !is_token(&asked) && self.workloads.recent(id).is_some())
    }
}

#[cfg(test)]
mod tests;
