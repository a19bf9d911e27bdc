//! leaves: caches the few values that every client library requests, with one upstream request for any number of
//! concurrent clients.
//!
//! Client libraries request the project, the zone or the universe before they request a token, and some remember a
//! failure for the life of the process. Python first requests everything about its account, and does so again before
//! every token. gcloud lists the accounts. Node.js follows the redirect of its ping to the list of `instance/`, and
//! without that list concludes that it is not on Google Cloud. Cloud Logging takes a GKE node for a plain machine if it
//! cannot read the cluster's name. So these values (listed in `leaf.rs`) are cached, and fetched before the proxy
//! reports readiness.
//!
//! # Flights
//!
//! An unknown value is fetched by a *flight*: one upstream request, in a task of its own. Concurrent requests wait for
//! the same flight, and its result is cached, whether the proxy's warmup or a client started it. A client that
//! disconnects cancels nothing. The flight sends the proxy's own request, without the headers of any client.
//!
//! - A value is cached until a refresh replaces it. If a refresh fails, the old value stays.
//! - A 404 is cached for a minute where the value may be missing. It never replaces a value, unless an operator can
//!   remove that value while the machine runs.
//! - Any other result is the answer to all requests that waited for it and to those of the next 750 ms. So a failing
//!   server gets at most about one request per second and value.
//! - A response that is too large to be buffered is not cached. Requests for it go to the server until a refresh finds
//!   it smaller.
//!
//! Answers from memory carry `Age`.
//!
//! # Trees
//!
//! Detectors read trees (`?recursive=true`) once per process. A tree is cached as the policy redacts it for the node,
//! which is small. `conceal` redacts it again for each client, and inserts a pod's own accounts in place of the node's.
//! So a stricter policy applies at once, and no pod gets another pod's tree. The cached tree is the answer for 5 s.
//! After that a request fetches it again, and gets the cached tree if that takes longer than 500 ms or fails. Requests
//! for a tree that cannot be cached go to the server, as in audit mode; those that waited for the flight that found this out get
//! 503, because they hold no seat.
//!
//! `universe/universe-domain` is special: Go's library waits one second for it, treats 404 as the default domain, and
//! treats any other failure as fatal. While it is unknown, the proxy answers 404 if the server does not respond in
//! time.

mod leaf;
mod slot;
#[cfg(test)]
mod tests;
mod values;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};
use tokio::time::timeout;

use super::filter::{Decide, Decision};
use crate::error::Error;
use crate::failure::Failure;
use crate::reply::{self, Body};
use crate::upstream::MAX_BUFFERED_BYTES;
use base::clock::BootTime;
use protocol::metadata::{CommonPath, Request};
use slot::{Answer, Landed, Lookup};

pub use leaf::{Leaf, Lifetime};
pub use values::{LeafRow, Leaves};

/// Timeout of a request for the universe domain while it is unknown: half of the time that Go's library allows.
const UNIVERSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum time that a request for a cached tree waits for a newer one. OpenTelemetry's detectors wait one second.
const STALE_TIMEOUT: Duration = Duration::from_millis(500);

impl Decide for Arc<Leaves> {
    fn decide(&self, request: Box<Request>) -> Decision {
        let Some(leaf) = self.leaf(&request) else { return Decision::Pass(request) };
        let now = BootTime::now();
        match self.find(leaf, now) {
            Lookup::Known(Landed::Kept(answer)) => Decision::Answer(Ok(answer.response_from_memory(now))),
            Lookup::Known(Landed::TooLarge) => Decision::Pass(request),
            Lookup::Known(landed) => Decision::Answer(answer(leaf, landed)),
            Lookup::Stale(kept) => Decision::wait(newer(leaf, self.landing(leaf), kept)),
            Lookup::Unknown => Decision::wait(waiting(leaf, self.landing(leaf))),
        }
    }

    /// Each leaf has at most one flight, so there are never more flights than leaves.
    fn answers_from_memory(&self, request: &Request) -> bool {
        self.leaf(request)
            .is_some_and(|leaf| !matches!(self.find(leaf, BootTime::now()), Lookup::Known(Landed::TooLarge)))
    }
}

/// Waits for the flight of a tree, and answers with the cached tree if no value arrives in time.
async fn newer(leaf: Leaf, landing: impl Future<Output = Landed>, kept: Arc<Answer>) -> Result<Response<Body>, Error> {
    match timeout(STALE_TIMEOUT, landing).await {
        Ok(landed) if landed.replaces_a_tree() => answer(leaf, landed),
        _ => Ok(kept.response_from_memory(BootTime::now())),
    }
}

/// Waits for a flight, and answers with its result.
async fn waiting(leaf: Leaf, landing: impl Future<Output = Landed>) -> Result<Response<Body>, Error> {
    if leaf.path() != CommonPath::UniverseDomain {
        return answer(leaf, landing.await);
    }
    match timeout(UNIVERSE_TIMEOUT, landing).await {
        Ok(landed) => answer(leaf, landed),
        Err(_) => Ok(unknown_universe()),
    }
}

/// The answer to a client that requested a leaf when, or shortly before, its flight ended.
fn answer(leaf: Leaf, landed: Landed) -> Result<Response<Body>, Error> {
    match landed {
        Landed::Kept(answer) => Ok(answer.response()),
        _ if leaf.path() == CommonPath::UniverseDomain => Ok(unknown_universe()),
        Landed::Refused(answer) => Ok(answer.response()),
        // The client's next attempt goes to the server. This one holds no seat, and may be one of hundreds that waited.
        Landed::TooLarge => Err(Failure::TooLarge(MAX_BUFFERED_BYTES).into()),
        Landed::Failed(failure) => Err(Error::clone(&failure)),
    }
}

fn unknown_universe() -> Response<Body> {
    let sentence = "The universe domain is not known here; the usual one, googleapis.com, is meant.\n";
    reply::sentence(StatusCode::NOT_FOUND, sentence)
}
