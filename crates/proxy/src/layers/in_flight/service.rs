//! The service that gives a request a seat or refuses it.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
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
use crate::layers::outcome::Outcome;
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
    /// Whether a task searches on behalf of all waiting requests.
    is_searching: Arc<AtomicBool>,
}

impl MakeRoom {
    /// Uses this function, which returns `false` if no seat can be freed. The seat may be released a moment after the
    /// call.
    pub fn new(make_room: impl Fn(Whose) -> bool + Send + Sync + 'static) -> Self {
        Self { make_room: Hook::new(Arc::new(make_room)), is_searching: Arc::default() }
    }

    fn once(&self, whose: Whose) -> bool {
        (self.make_room)(whose)
    }

    /// Searches at intervals while requests wait. A single task searches for all of them, because a search visits all
    /// connections.
    fn keep_searching(&self, seats: &Arc<Seats>) {
        if self.is_searching.swap(true, Relaxed) {
            return;
        }
        let (make_room, seats) = (self.clone(), Arc::clone(seats));
        tokio::spawn(async move {
            sleep(SEARCH_INTERVAL).await;
            while seats.waiting() > 0 {
                for _ in 0..seats.waiting() {
                    if !make_room.once(Whose::Anybodys) {
                        break;
                    }
                }
                sleep(SEARCH_INTERVAL).await;
            }
            // The next request that waits starts another task.
            make_room.is_searching.store(false, Relaxed);
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
                    make_room.keep_searching(seats);
                    // The service that `poll_ready` made ready is moved into the future. Its clone, which is not ready,
                    // takes its place.
                    let unready = self.inner.clone();
                    return Outcome::pending(wait(
                        Arc::clone(&self.limit),
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
async fn wait<S, B, P, H>(limit: Arc<Limit<P, H>>, mut inner: S, request: Box<Request>) -> SeatedResponse<B>
where
    S: Service<Box<Request>, Response = Response<B>, Error = Error>,
    B: AtHand,
    H: Fn(&Request) -> bool,
{
    let Ok(seat) = timeout(MAX_WAIT, Arc::clone(&limit.seats).next_free(request.client())).await else {
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
mod tests {
    use std::sync::atomic::AtomicUsize;

    use bytes::Bytes;
    use http::HeaderValue;
    use tokio::sync::Semaphore;
    use tokio::task::JoinHandle;
    use tokio::time::Instant;
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::reply::Body;
    use protocol::metadata::{Endpoint, Principal, Query};

    /// An upstream that answers when the test adds a permit, and counts requests.
    #[derive(Debug)]
    struct Upstream {
        answers: Semaphore,
        asked: AtomicUsize,
    }

    type Predicate = fn(&Request) -> bool;

    struct Stage {
        upstream: Arc<Upstream>,
        limit: Arc<Limit<Predicate, Predicate>>,
    }

    fn stage(limit: usize, make_room: impl Fn(Whose) -> bool + Send + Sync + 'static) -> Stage {
        let upstream = Arc::new(Upstream { answers: Semaphore::new(0), asked: AtomicUsize::new(0) });
        let never: Predicate = |_| false;
        let (seats, make_room) = (Seats::new(limit), MakeRoom::new(make_room));
        Stage { upstream, limit: Arc::new(Limit { seats, needs_none: never, hangs: never, make_room }) }
    }

    impl Stage {
        /// Sends a request from the pod with this number.
        fn ask(&self, pod: u8) -> JoinHandle<SeatedResponse<Body>> {
            let upstream = Arc::clone(&self.upstream);
            let inner = service_fn(move |_: Box<Request>| {
                let upstream = Arc::clone(&upstream);
                async move {
                    upstream.asked.fetch_add(1, Relaxed);
                    upstream.answers.acquire().await.expect("open").forget();
                    Ok(Response::new(Body::Whole(vec![b'x'; 2000].into())))
                }
            });
            let own =
                Request::own(Endpoint::Leaf, "/computeMetadata/v1/instance/id", Query::default(), Principal::Node);
            let request = Request { peer: Some(([10, 0, 0, pod], 40000).into()), ..own };
            tokio::spawn(layer(&self.limit).layer(inner).oneshot(request.into()))
        }

        fn asked(&self) -> usize {
            self.upstream.asked.load(Relaxed)
        }
    }

    /// Runs all tasks that are ready.
    async fn settle() {
        sleep(Duration::from_millis(1)).await;
    }

    async fn is_refused(request: JoinHandle<SeatedResponse<Body>>) -> bool {
        matches!(request.await.expect("no panic"), Err(Error::Overloaded(Overload::InFlight)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_with_its_share_is_refused_immediately() {
        let stage = stage(2, |_| false);
        let _both = [stage.ask(1), stage.ask(1)];
        settle().await;
        let began = Instant::now();
        assert!(is_refused(stage.ask(1)).await);
        assert_eq!((began.elapsed(), stage.asked()), (Duration::ZERO, 2));
    }

    /// Another client may stand still for a moment only, as under a CPU limit of its own.
    #[tokio::test(start_paused = true)]
    async fn a_client_with_its_share_takes_no_seat_of_a_client_that_does_not_read() {
        let stage = stage(2, |whose| whose != Whose::Of(Some([10, 0, 0, 1].into())));
        let _both = [stage.ask(1), stage.ask(1)];
        settle().await;
        assert!(is_refused(stage.ask(1)).await);
        let waits = stage.ask(2);
        settle().await;
        assert!(!waits.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn another_client_gets_the_next_seat() {
        let stage = stage(2, |_| false);
        let both = [stage.ask(1), stage.ask(1)];
        settle().await;
        let other = stage.ask(2);
        settle().await;
        assert_eq!(stage.asked(), 2, "no request in flight gives way");
        stage.upstream.answers.add_permits(3);
        for answered in both.into_iter().chain([other]) {
            // The response holds the seat, and is dropped here.
            assert!(answered.await.expect("no panic").is_ok());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_is_limited() {
        let stage = stage(1, |_| false);
        let _only = stage.ask(1);
        settle().await;
        let began = Instant::now();
        assert!(is_refused(stage.ask(2)).await);
        assert_eq!(began.elapsed(), MAX_WAIT);
        assert_eq!(stage.limit.seats.taken(), 1);
    }

    /// A search visits all connections, so a hundred waiting requests must not search a hundred times.
    #[tokio::test(start_paused = true)]
    async fn waiting_requests_share_one_search() {
        let searches = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&searches);
        let stage = stage(1, move |_| {
            counted.fetch_add(1, Relaxed);
            false
        });
        let _only = stage.ask(1);
        settle().await;
        let _crowd: Vec<_> = (2..102).map(|pod| stage.ask(pod)).collect();
        settle().await;
        let before = searches.load(Relaxed);
        sleep(SEARCH_INTERVAL * 10).await;
        assert_eq!(searches.load(Relaxed) - before, 10);
    }

    /// The client stops reading only after another request has begun to wait.
    #[tokio::test(start_paused = true)]
    async fn the_search_for_unread_responses_is_repeated() {
        let searches = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&searches);
        let stage = stage(1, move |_| counted.fetch_add(1, Relaxed) > 0);
        let only = stage.ask(1);
        settle().await;
        let other = stage.ask(2);
        sleep(SEARCH_INTERVAL + Duration::from_millis(1)).await;
        assert_eq!(searches.load(Relaxed), 2);
        only.abort();
        settle().await;
        assert_eq!(stage.asked(), 2);
        stage.upstream.answers.add_permits(1);
        assert!(other.await.expect("no panic").is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_counts_for_the_share_of_its_client() {
        let stage = stage(4, |_| false);
        let _all = [stage.ask(1), stage.ask(1), stage.ask(1), stage.ask(1)];
        settle().await;
        let _wait = [stage.ask(2), stage.ask(2)];
        settle().await;
        let began = Instant::now();
        assert!(is_refused(stage.ask(2)).await);
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn unread_answers_are_looked_for_in_a_second_overload_too() {
        let searches = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&searches);
        let stage = stage(1, move |_| {
            counted.fetch_add(1, Relaxed);
            true
        });
        for _ in 0..2 {
            let before = searches.load(Relaxed);
            let only = stage.ask(1);
            settle().await;
            let other = stage.ask(2);
            sleep(SEARCH_INTERVAL * 3).await;
            let new = searches.load(Relaxed) - before;
            assert!(new >= 3, "{new}");
            only.abort();
            settle().await;
            other.abort();
            sleep(SEARCH_INTERVAL * 2).await;
        }
    }

    /// The policy that dropped `wait_for_change` is replaced by one that does not.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_begins_to_hang_while_it_waits_for_a_seat_takes_none() {
        let (seats, may_hang) = (Seats::new(1), Arc::new(AtomicBool::new(false)));
        let hangs = {
            let may_hang = Arc::clone(&may_hang);
            move |_: &Request| may_hang.load(Relaxed)
        };
        let limit = Limit {
            seats: Arc::clone(&seats),
            needs_none: |_: &Request| false,
            hangs,
            make_room: MakeRoom::new(|_| false),
        };
        let (taken, inner) =
            (seats.admit(Some([10, 0, 0, 1].into())), service_fn(|_: Box<Request>| std::future::pending()));
        let path = "/computeMetadata/v1/instance/id";
        let request = Request::own(Endpoint::Leaf, path, Query::default(), Principal::Node);
        let service = layer::<_, _, _>(&Arc::new(limit)).layer(inner);
        let watches =
            tokio::spawn(async { service.oneshot(request.into()).await.map(|_: Response<SeatedBody<Body>>| ()) });
        settle().await;
        assert_eq!((seats.taken(), seats.waiting()), (1, 1));
        may_hang.store(true, Relaxed);
        drop(taken);
        settle().await;
        assert_eq!((seats.taken(), seats.waiting(), watches.is_finished()), (0, 0, false));
    }

    #[tokio::test]
    async fn a_request_that_waits_for_a_seat_does_not_keep_the_read_buffer() {
        let seats = Seats::new(1);
        let never: Predicate = |_| false;
        let make_room = MakeRoom::new(|_| false);
        let limit = Arc::new(Limit { seats: Arc::clone(&seats), needs_none: never, hangs: never, make_room });
        let inner = service_fn(|_: Box<Request>| std::future::pending::<Result<Response<Body>, Error>>());
        let buffer = Bytes::from("a header's value".repeat(10));
        let path = "/computeMetadata/v1/instance/id";
        let mut request = Request::own(Endpoint::Leaf, path, Query::default(), Principal::Node);
        let value = HeaderValue::from_maybe_shared(buffer.clone()).expect("a value");
        request.headers.insert("x-filler", value);
        let _taken = seats.admit(Some([10, 0, 0, 1].into()));
        let waits = layer(&limit).layer(inner).call(request.into());
        assert!(buffer.is_unique());
        drop(waits);
    }
}
