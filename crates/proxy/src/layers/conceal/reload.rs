//! Requests in whose middle the policy is replaced, as another thread may do it.

use std::future::pending;
use std::sync::Arc;

use http::Response;
use tokio::task::yield_now;
use tower::layer::layer_fn;
use tower::util::MapRequest;
use tower::{ServiceBuilder, ServiceExt, service_fn};

use super::{Concealment, Mode, layer};
use crate::error::Error;
use crate::layers::hanging::{self, Watches};
use crate::policy::{BuiltIn, Choice, LivePolicy, Source};
use crate::reply::Body;
use crate::room::Room;
use base::hook::Hook;
use protocol::metadata::{CommonPath, Query, Request};

/// The result of a request that waits for a change, if it has one, and the number of watches. The policy is replaced, and all watches
/// end, after it was judged and before it joins a watch.
async fn ask(mode: Mode, is_replaced: bool) -> (Option<Result<Response<Body>, Error>>, usize) {
    let policy = Arc::new(LivePolicy::load(Choice::default()).await.expect("built in"));
    let room = Room::new(1 << 20, Hook::new(Arc::new(|_| false)));
    let watches = Arc::new(Watches::new(1, Arc::clone(&room)));
    let concealment = Arc::new(Concealment::new(Arc::clone(&policy), mode, room, Arc::default()));
    let ending = Arc::clone(&watches);
    let reload = move |request: Box<Request>| {
        if is_replaced {
            let strict = Source::BuiltIn(BuiltIn::Strict);
            let text = strict.text().expect("built in");
            policy.replace(Choice { source: strict, recursive: None }.compile(&text).expect("a policy"));
            ending.end_all();
        }
        request
    };
    let server = service_fn(async |_: Box<Request>| pending::<Result<Response<Body>, Error>>().await);
    let service = ServiceBuilder::new()
        .layer(layer(&concealment))
        .layer(layer_fn(|inner| MapRequest::new(inner, reload.clone())))
        .layer(hanging::layer(&watches))
        .service(server);
    let query = Query::parse(Some("wait_for_change=true")).expect("a query");
    let request = Request::get(CommonPath::Zone.into(), query);
    let asking = tokio::spawn(service.oneshot(request.into()));
    while !asking.is_finished() && watches.count() == 0 {
        yield_now().await;
    }
    yield_now().await;
    let count = watches.count();
    (if asking.is_finished() { Some(asking.await.expect("no panic")) } else { None }, count)
}

#[tokio::test]
async fn a_watch_does_not_begin_under_a_policy_that_was_replaced() {
    let (answer, watches) = ask(Mode::Enforce, true).await;
    assert!(matches!(answer, Some(Err(Error::Draining))) && watches == 0, "{answer:?}, {watches}");
}

#[tokio::test]
async fn a_watch_begins_under_the_policy_in_force_and_whatever_is_only_audited() {
    for (mode, is_replaced) in [(Mode::Enforce, false), (Mode::Audit, true)] {
        let (answer, watches) = ask(mode, is_replaced).await;
        assert!(answer.is_none() && watches == 1, "{mode:?}: {answer:?}, {watches}");
    }
}
