//! identify: waits until the pod that sent a request is known, and refuses what pods must not get.
//!
//! `classify` has tried to identify the client already; only a pod that was not known then waits here. A pod that has
//! just started is known within milliseconds, when its processes are found.
//!
//! It also answers [`WHO_AM_I`], so that a pod's identity can be queried from inside it.

use std::sync::Arc;

use http::header::HeaderValue;
use http::{Response, StatusCode};

use crate::{Outdated, Visitor};
use protocol::metadata::{CallingPod, CommonPath, Endpoint, Principal, Request, Sender};
use proxy::error::Error;
use proxy::layers::classify;
use proxy::layers::discovery::Discovery;
use proxy::layers::filter::{Decide, Decision};
use proxy::reply::{self, Body};

/// The path under which a client can read its own identity.
pub const WHO_AM_I: &str = "/whoami";

/// Identifies the client of a connection.
#[derive(Debug, Clone)]
pub struct Identify {
    visitor: Arc<Visitor>,
    accounts: Accounts,
}

/// Whether pods and the node have accounts.
#[derive(Debug, Clone, Copy)]
struct Accounts {
    of_pods: bool,
    of_node: bool,
}

impl Identify {
    /// Identifies this client. `of_node`: whether the upstream has accounts of the node.
    pub fn new(visitor: &Arc<Visitor>, of_node: bool) -> Self {
        let accounts = Accounts { of_pods: visitor.has_accounts(), of_node };
        Self { visitor: Arc::clone(visitor), accounts }
    }
}

impl classify::Identify for Visitor {
    fn sender(&self) -> Result<Sender, Error> {
        Ok(Visitor::sender(self)?)
    }
}

impl From<Outdated> for Error {
    fn from(_: Outdated) -> Self {
        Self::Outdated
    }
}

impl<B: From<Body> + 'static> Decide<B> for Identify {
    fn decide(&self, mut request: Box<Request>) -> Decision<B> {
        match request.principal {
            Principal::Unknown if is_the_same_for_all(&request) => Decision::Pass(request),
            Principal::Unknown => {
                // Until the client is known, the request must not keep the connection's read buffer.
                request.detach();
                let (visitor, accounts) = (Arc::clone(&self.visitor), self.accounts);
                Decision::undecided(async move {
                    let sender = visitor.wait().await??;
                    (request.principal, request.pod) = sender;
                    Ok(decide_for(&visitor, accounts, request))
                })
            }
            Principal::Node | Principal::Workload(_) => decide_for(&self.visitor, self.accounts, request),
        }
    }
}

/// Whether the response does not depend on the client. Libraries remember for the life of the process that they got none, so they
/// must not wait until a pod is known: they ping, Node's then lists the machine's directory, and Go's asks for the universe within a
/// second. A tree does depend: it has the pod's own accounts. A listing has only the name of their directory.
fn is_the_same_for_all(request: &Request) -> bool {
    let is_listing = || request.query.is_empty() && request.bound_to.is_none();
    Discovery.answers_from_memory(request)
        || match request.path.common() {
            Some(CommonPath::UniverseDomain) => true,
            Some(CommonPath::Version | CommonPath::Instance | CommonPath::Attributes | CommonPath::Project) => {
                is_listing()
            }
            _ => false,
        }
}

/// Decides about a request whose sender is known.
fn decide_for<B: From<Body>>(visitor: &Visitor, accounts: Accounts, request: Box<Request>) -> Decision<B> {
    match request.bound_to.as_ref().map(|bound_to| visitor.may_bind(&request, bound_to)) {
        Some(Err(refused)) => Decision::Answer(Err(refused)),
        Some(Ok(())) | None => accounts.decide(request),
    }
}

impl<B: From<Body>> Decide<B> for Accounts {
    fn decide(&self, request: Box<Request>) -> Decision<B> {
        match own_answer(&request, *self) {
            Some(answer) => Decision::Answer(answer.map(|answer| answer.map(B::from))),
            None => Decision::Pass(request),
        }
    }
}

/// The answer or refusal of this layer. The accounts of the node are not a pod's, and older API versions are
/// refused as a whole, because they give tokens under other paths. Where pods have accounts of their own, `accounts`
/// answers for these. `layers::conceal` removes the node's accounts from the trees of v1.
fn own_answer(request: &Request, accounts: Accounts) -> Option<Result<Response<Body>, Error>> {
    if request.path.as_str() == WHO_AM_I {
        return Some(Ok(who_am_i(request.pod.as_deref())));
    }
    let pod = request.pod.as_ref().filter(|_| request.principal != Principal::Node)?;
    match request.endpoint {
        Endpoint::Token(_) | Endpoint::Identity(_) | Endpoint::ServiceAccounts if accounts.of_pods => None,
        Endpoint::Token(_) | Endpoint::Identity(_) | Endpoint::ServiceAccounts => {
            Some(Err(Error::NoAccount(Arc::clone(pod))))
        }
        Endpoint::Legacy | Endpoint::Unknown => Some(Err(Error::LeadsToAccounts)),
        // Accounts in another spelling.
        Endpoint::Leaf | Endpoint::Directory if request.path.concerns_accounts() => Some(Err(Error::LeadsToAccounts)),
        Endpoint::Root | Endpoint::Versions if accounts.of_node && request.query.is_recursive() => {
            Some(Err(Error::IncludesAccounts))
        }
        Endpoint::Root | Endpoint::Versions | Endpoint::Directory | Endpoint::Leaf => None,
    }
}

fn who_am_i(pod: Option<&CallingPod>) -> Response<Body> {
    let text = match pod {
        Some(pod) => serde_json::to_string(pod).expect("texts only"),
        None => r#"{"principal":"node"}"#.to_owned(),
    };
    reply::local(StatusCode::OK, HeaderValue::from_static("application/json"), text + "\n")
}

#[cfg(test)]
mod tests;
