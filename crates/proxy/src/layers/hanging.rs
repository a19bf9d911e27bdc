//! hanging: clients that wait for the same change share one upstream request.
//!
//! A hanging GET (`wait_for_change=true`) waits until a value changes, possibly for hours. Agents on a node watch the
//! same few values. Watchers that send the same request (path, parameters, last known value, `Host`) share one upstream
//! request, a *watch*. It runs in a task and ends with its last watcher; a watcher that leaves does not affect the
//! others. Once answered, a watch is over. A later request begins another.
//!
//! # Who may begin a watch
//!
//! Watchers hold no seats, because they would occupy all of them. Instead, the number of watches is limited and [shared
//! fairly](crate::shares). A watch is charged to the client that began it, or, when that client has left, to another
//! watcher. Joining a watch is always allowed: the limit on connections bounds the watchers. If all watches are taken,
//! a client that has clearly fewer than the largest client replaces a watch of that client, whose watchers get
//! 503: the oldest of those that the fewest clients wait for. A watch that several wait for gives way only to a client that has
//! none, since each could be an address of the same pod. A client without a watch also replaces the oldest that only one
//! client waits for, once that is ten seconds old. All other clients get 503 after ten seconds:
//! otherwise a pod with hundreds of addresses that repeats its requests at once would take processor time from others.
//! Meanwhile they hold a connection, like watchers.
//!
//! When the process ends, all watches end, and their watchers get 503: another process may serve them. They end as well when the
//! policy changes, except in audit mode: the new one may conceal what they wait for.
//!
//! # Cost of a watch
//!
//! Until it is answered: a task, an upstream connection, and the request without the parts that are not sent upstream.
//! The answer takes [`Room`](crate::room::Room) of the watcher that holds least of it then, of the one that is charged for the
//! watch among equals. It is released when the last watcher has read it.

mod result;
mod table;
mod watches;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Response;
use tokio::time::sleep;
use tower::layer::layer_fn;
use tower::{Layer, Service};

use crate::error::Error;
use crate::outcome::Outcome;
use crate::reply::Body;
use protocol::metadata::{Principal, Request};
use table::Key;
pub use watches::Watches;

/// Delay of a refusal, unless the request's own timeout is shorter. Agents use timeouts of a minute or more.
const REFUSAL_DELAY: Duration = Duration::from_secs(10);

/// Clients that wait for the same change share a watch from `watches`.
pub fn layer<S>(watches: &Arc<Watches>) -> impl Layer<S, Service = Hanging<S>> + Clone + use<S> {
    let watches = Arc::clone(watches);
    layer_fn(move |inner| Hanging { inner, watches: Arc::clone(&watches) })
}

/// The service of this layer.
#[derive(Debug, Clone)]
pub struct Hanging<S> {
    inner: S,
    watches: Arc<Watches>,
}

impl<S> Service<Box<Request>> for Hanging<S>
where
    S: Service<Box<Request>, Response = Response<Body>, Error = Error, Future: Send + 'static>,
{
    type Response = Response<Body>;
    type Error = Error;
    type Future = Outcome<S::Future, Result<Response<Body>, Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Box<Request>) -> Self::Future {
        if !request.hangs() {
            return Outcome::passed(self.inner.call(request));
        }
        // The name of the client that happens to begin the shared watch is not sent to the server.
        request.headers.clear();
        let key = Key {
            method: request.method,
            is_of_node: request.principal == Principal::Node,
            host: request.host.to_string(),
            target: format!("{}{}", request.path, request.query),
        };
        let account = self.watches.room.account(request.peer);
        let patience = request.query.timeout_seconds().map(|seconds| Duration::from_secs(seconds.into()));
        let delay = patience.unwrap_or(REFUSAL_DELAY).min(REFUSAL_DELAY);
        // A request that joins a watch is dropped here. Of one that begins it, `Forward` keeps only what it sends.
        match self.watches.join(key, &account, || self.inner.call(request)) {
            Ok(watcher) => Outcome::pending(async move { watcher.answer().await }),
            Err(full) => {
                let watches = Arc::clone(&self.watches);
                Outcome::pending(async move {
                    let waited = watches.closed.run_until_cancelled(sleep(delay)).await;
                    Err(waited.map_or(Error::Draining, |()| full.into()))
                })
            }
        }
    }
}

#[cfg(test)]
mod tests;
