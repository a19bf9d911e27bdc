//! The service that gives a request a seat or refuses it.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Response;
use pin_project_lite::pin_project;
use tokio::time::{sleep, timeout};
use tower::layer::layer_fn;
use tower::{Layer, Service};

use super::body::SeatedBody;
use super::seats::{Admission, Seat, Seats};
use crate::error::{Error, Overload};
use crate::failure::UPSTREAM_TIMEOUT;
use crate::outcome::Outcome;
use crate::reply::AtHand;
use crate::server::Whose;
use base::hook::Hook;
use protocol::metadata::Request;

/// Maximum wait for a seat: slightly longer than the upstream's maximum response time, so that one is released even if
/// all were taken just now and the upstream hangs. Python's and Node's libraries give up after 3 s. The rest of that
/// time is left for the response, which usually takes milliseconds.
const MAX_WAIT: Duration = UPSTREAM_TIMEOUT.saturating_add(Duration::from_millis(100));

/// Interval between searches for unread responses while requests wait.
const SEARCH_INTERVAL: Duration = Duration::from_millis(20);

/// Frees a seat by cutting a connection whose client does not read its response.
#[derive(Debug, Clone)]
pub struct MakeRoom {
    make_room: Hook<dyn Fn(Whose) -> bool + Send + Sync>,
}

impl MakeRoom {
    /// Uses this function, which returns `false` if no seat can be freed. The seat may be released a moment after the
    /// call.
    pub fn new(make_room: impl Fn(Whose) -> bool + Send + Sync + 'static) -> Self {
        Self { make_room: Hook::new(Arc::new(make_room)) }
    }

    fn once(&self, whose: Whose) -> bool {
        (self.make_room)(whose)
    }

    /// Searches at intervals while requests wait. A single task searches for all of them, because a search visits all
    /// connections. A request must be in the queue before it calls this: a task that found none there may be ending.
    fn keep_searching(&self, seats: &Arc<Seats>) {
        if !seats.begin_search() {
            return;
        }
        let (make_room, seats) = (self.clone(), Arc::clone(seats));
        tokio::spawn(async move {
            sleep(SEARCH_INTERVAL).await;
            loop {
                let waiting = seats.left_to_search();
                if waiting == 0 {
                    return;
                }
                for _ in 0..waiting {
                    if !make_room.once(Whose::Anybodys) {
                        break;
                    }
                }
                sleep(SEARCH_INTERVAL).await;
            }
        });
    }
}

/// Result of a request.
type SeatedResponse<B> = Result<Response<SeatedBody<B>>, Error>;

/// Limits requests in flight.
pub fn layer<S, P, H>(limit: &Arc<Limit<P, H>>) -> impl Layer<S, Service = InFlight<S, P, H>> + Clone + use<S, P, H> {
    let limit = Arc::clone(limit);
    layer_fn(move |inner| InFlight { inner, limit: Arc::clone(&limit) })
}

/// The service of this layer.
#[derive(Debug)]
pub struct InFlight<S, P, H> {
    inner: S,
    limit: Arc<Limit<P, H>>,
}

impl<S: Clone, P, H> Clone for InFlight<S, P, H> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), limit: Arc::clone(&self.limit) }
    }
}

/// The limit, and the requests that it applies to.
#[derive(Debug)]
pub struct Limit<P, H> {
    pub seats: Arc<Seats>,
    /// Whether a request can be answered without an upstream request of its own. Called only when no seat is free.
    pub needs_none: P,
    /// Whether a request waits for a change of a value, and therefore takes a watch instead of a seat.
    pub hangs: H,
    /// Frees the seat of a client that does not read.
    pub make_room: MakeRoom,
}

impl<S, P, H, B> Service<Box<Request>> for InFlight<S, P, H>
where
    S: Service<Box<Request>, Response = Response<B>, Error = Error, Future: Send + 'static> + Clone + Send + 'static,
    B: AtHand + Send + 'static,
    P: Fn(&Request) -> bool + Send + Sync + 'static,
    H: Fn(&Request) -> bool + Send + Sync + 'static,
{
    type Response = Response<SeatedBody<B>>;
    type Error = Error;
    type Future = Outcome<ResponseFuture<S::Future>, SeatedResponse<B>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Box<Request>) -> Self::Future {
        let Limit { seats, needs_none, hangs, make_room } = &*self.limit;
        let seat = if hangs(&request) {
            None
        } else {
            match seats.admit(request.client()) {
                Admission::Seat(seat) => Some(seat),
                Admission::Wait | Admission::Refuse if needs_none(&request) => None,
                full => {
                    // A client that has its share gets no seat of another.
                    let has_its_share = matches!(full, Admission::Refuse);
                    let whose = if has_its_share { Whose::Of(request.client()) } else { Whose::Anybodys };
                    if !make_room.once(whose) && has_its_share {
                        return Outcome::decided(Err(Overload::InFlight.into()));
                    }
                    request.detach();
                    let seat = Arc::clone(seats).next_free(request.client());
                    make_room.keep_searching(seats);
                    // The service that `poll_ready` made ready is moved into the future. Its clone, which is not ready,
                    // takes its place.
                    let unready = self.inner.clone();
                    return Outcome::pending(wait(
                        Arc::clone(&self.limit),
                        seat,
                        mem::replace(&mut self.inner, unready),
                        request,
                    ));
                }
            }
        };
        Outcome::passed(ResponseFuture { inner: self.inner.call(request), seat })
    }
}

/// Waits for a seat, then passes the request on. `inner` is ready.
async fn wait<S, B, P, H>(
    limit: Arc<Limit<P, H>>,
    seat: impl Future<Output = Seat>,
    mut inner: S,
    request: Box<Request>,
) -> SeatedResponse<B>
where
    S: Service<Box<Request>, Response = Response<B>, Error = Error>,
    B: AtHand,
    H: Fn(&Request) -> bool,
{
    let Ok(seat) = timeout(MAX_WAIT, seat).await else {
        return Err(Overload::InFlight.into());
    };
    // Judged again: the policy may have changed meanwhile, and a watch would hold its seat for as long as it lasts.
    let seat = Some(seat).filter(|_| !(limit.hangs)(&request));
    ResponseFuture { inner: inner.call(request), seat }.await
}

pin_project! {
    /// The response future of [`InFlight`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        seat: Option<Seat>,
    }
}

impl<F, B> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<B>, Error>>,
    B: AtHand,
{
    type Output = SeatedResponse<B>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.inner.poll(cx));
        let seat = this.seat.take();
        Poll::Ready(answer.map(|answer| answer.map(|body| SeatedBody::new(body, seat))))
    }
}

#[cfg(test)]
mod tests;
