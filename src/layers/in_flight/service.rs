//! The layer: a seat or a refusal.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::Response;
use pin_project_lite::pin_project;
use tokio::task::yield_now;
use tower::{Layer, Service};

use super::body::SeatedBody;
use super::seats::{Admission, Seat, Seats};
use crate::error::{Error, Overload};
use crate::layers::outcome::Outcome;
use crate::metadata::Request;

/// How often the others get their turn before a seat that is being given up must be free.
const TURNS: usize = 32;

/// After so many turns another seat is freed.
const PATIENCE: usize = 4;

/// Frees a seat whose client does not read its answer, in a moment; false if there is none.
#[derive(Clone)]
pub struct MakeRoom(Arc<dyn Fn() -> bool + Send + Sync>);

impl MakeRoom {
    /// By this.
    pub fn by(make_room: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(make_room))
    }
}

impl fmt::Debug for MakeRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MakeRoom")
    }
}

/// What comes of a request.
type Answer<B> = Result<Response<SeatedBody<B>>, Error>;

/// Makes [`InFlight`]. All services of one layer share one count.
#[derive(Debug, Clone)]
pub struct InFlightLayer<P> {
    seats: Arc<Seats>,
    needs_none: P,
    make_room: MakeRoom,
}

/// The service of this layer.
#[derive(Debug, Clone)]
pub struct InFlight<S, P> {
    inner: S,
    seats: Arc<Seats>,
    needs_none: P,
    make_room: MakeRoom,
}

impl<P> InFlightLayer<P> {
    /// These seats, and which requests ask nothing more of the upstream; that is asked only when no seat is free.
    pub fn new(seats: Arc<Seats>, needs_none: P, make_room: MakeRoom) -> Self {
        Self { seats, needs_none, make_room }
    }
}

impl<S, P: Clone> Layer<S> for InFlightLayer<P> {
    type Service = InFlight<S, P>;

    fn layer(&self, inner: S) -> Self::Service {
        InFlight {
            inner,
            seats: Arc::clone(&self.seats),
            needs_none: self.needs_none.clone(),
            make_room: self.make_room.clone(),
        }
    }
}

impl<S, P, B> Service<Request> for InFlight<S, P>
where
    S: Service<Request, Response = Response<B>, Error = Error, Future: Send + 'static> + Clone + Send + 'static,
    B: Send + 'static,
    P: Fn(&Request) -> bool,
{
    type Response = Response<SeatedBody<B>>;
    type Error = Error;
    type Future = Outcome<ResponseFuture<S::Future>, Answer<B>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let seat = if request.hangs() {
            None
        } else {
            match self.seats.admit() {
                Admission::Seat(seat) => Some(seat),
                Admission::Refuse if (self.needs_none)(&request) => None,
                Admission::Refuse if (self.make_room.0)() => {
                    return Outcome::pending(take_over(
                        Arc::clone(&self.seats),
                        self.make_room.clone(),
                        self.inner.clone(),
                        request,
                    ));
                }
                Admission::Refuse => return Outcome::decided(Err(Overload::InFlight.into())),
            }
        };
        Outcome::passed(ResponseFuture { inner: self.inner.call(request), seat })
    }
}

/// Waits for a seat that is being given up: no longer than it takes for everybody to get a turn or two.
async fn take_over<S, B>(seats: Arc<Seats>, make_room: MakeRoom, mut inner: S, request: Request) -> Answer<B>
where
    S: Service<Request, Response = Response<B>, Error = Error>,
{
    for turn in 1..=TURNS {
        yield_now().await;
        if let Admission::Seat(seat) = seats.admit() {
            return ResponseFuture { inner: inner.call(request), seat: Some(seat) }.await;
        }
        // Another may have been quicker.
        if turn % PATIENCE == 0 && !(make_room.0)() {
            break;
        }
    }
    Err(Overload::InFlight.into())
}

pin_project! {
    /// Of [`InFlight`].
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
{
    type Output = Answer<B>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.inner.poll(cx));
        let seat = this.seat.take();
        Poll::Ready(answer.map(|answer| answer.map(|body| SeatedBody::new(body, seat))))
    }
}
