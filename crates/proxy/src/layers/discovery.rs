//! discovery: answers requests that detect the metadata server, without an upstream request.
//!
//! Client libraries ping `/` when a process starts; Go's and gsutil's send no header with it. Node's requests
//! `/computeMetadata/v1/instance` and follows the redirect to the directory, whose listing `leaves` has cached since
//! the start; others request the accounts or the project in the same way. All of them remember a failure for the life
//! of the process, so the response must not depend on a slow or busy upstream. The listings contain only paths that the
//! proxy serves: the real server's legacy entries beside `computeMetadata/` and beside `v1/` are left out. The policy
//! decides on a directory when the client follows the redirect.

use http::{Response, StatusCode};

use super::filter::{Decide, Decision};
use crate::reply::{self, Body};
use protocol::metadata::{Endpoint, Request};

/// Answers discovery requests.
#[derive(Debug, Clone, Copy)]
pub struct Discovery;

impl Decide for Discovery {
    fn decide(&self, request: Box<Request>) -> Decision {
        match answer(&request) {
            Some(answer) => Decision::Answer(Ok(answer)),
            None => Decision::Pass(request),
        }
    }

    fn answers_from_memory(&self, request: &Request) -> bool {
        answer(request).is_some()
    }
}

fn answer(request: &Request) -> Option<Response<Body>> {
    let listing = |text: &'static str| reply::local(StatusCode::OK, reply::APPLICATION_TEXT, text);
    let is_ping = request.query.is_empty();
    match request.endpoint {
        // .NET's detection requests the whole tree, without the slash.
        Endpoint::Leaf | Endpoint::ServiceAccounts
            if lacks_only_a_slash(request.path.as_str()) && (is_ping || request.query.is_recursive()) =>
        {
            Some(reply::directory_redirect(request))
        }
        // A request with a query is not a ping. The layers below handle it.
        _ if !is_ping => None,
        Endpoint::Root => Some(listing("computeMetadata/\n")),
        Endpoint::Versions if request.path.is_directory() => Some(listing("v1/\n")),
        _ => None,
    }
}

/// Whether a path names a directory that each machine has, without the final slash.
fn lacks_only_a_slash(path: &str) -> bool {
    matches!(
        path,
        "/computeMetadata/v1"
            | "/computeMetadata/v1/instance"
            | "/computeMetadata/v1/instance/attributes"
            | "/computeMetadata/v1/instance/service-accounts"
            | "/computeMetadata/v1/instance/service-accounts/default"
            | "/computeMetadata/v1/project"
    )
}
