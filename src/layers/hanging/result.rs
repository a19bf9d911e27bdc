//! The result of a watch, which all its watchers share: an answer, or why there is none.
//!
//! A watch has one result. It is published once and never replaced.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use tokio::sync::watch;

use crate::error::{Error, Overload};
use crate::failure::Failure;
use crate::reply::Body;
use crate::room::{Account, Amount, Charge, SMALL_BYTES_WITHOUT_SEAT, Whole};

/// The result of a watch.
pub(super) type WatchResult = Result<Arc<SharedAnswer>, WatchError>;

/// An upstream answer that several watchers read.
#[derive(Debug)]
pub(super) struct SharedAnswer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    /// None if it is small.
    charge: Option<Arc<Charge>>,
}

/// Why a watch ended without an answer.
#[derive(Debug, Clone)]
pub(super) enum WatchError {
    Failed(Arc<Failure>),
    Overloaded(Overload),
    TooLarge(usize),
}

/// Publishes the result of a watch.
#[derive(Debug)]
pub(super) struct Publisher(watch::Sender<Option<WatchResult>>);

/// Waits for the result of a watch.
#[derive(Debug)]
pub(super) struct Subscriber(watch::Receiver<Option<WatchResult>>);

impl Publisher {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    pub(super) fn subscribe(&self) -> Subscriber {
        Subscriber(self.0.subscribe())
    }

    /// Publishes the result, unless another was published before.
    pub(super) fn publish(&self, result: WatchResult) {
        self.0.send_if_modified(|published| {
            let is_first = published.is_none();
            if is_first {
                *published = Some(result);
            }
            is_first
        });
    }
}

impl Subscriber {
    pub(super) async fn result(&mut self) -> WatchResult {
        // An error means that the publisher is gone.
        let published = self.0.wait_for(Option::is_some).await.ok().and_then(|result| result.clone());
        published.unwrap_or_else(|| Err(Failure::Closed.into()))
    }
}

impl SharedAnswer {
    /// Reads the whole upstream answer. The client that began the watch is charged for it.
    pub(super) async fn read(answer: Result<Response<Body>, Error>, account: &Account) -> WatchResult {
        let (head, body) = answer?.into_parts();
        let Whole { bytes, mut charge } = account.read(body, SMALL_BYTES_WITHOUT_SEAT, |_| 0).await?;
        if charge.is_none() && bytes.len() > SMALL_BYTES_WITHOUT_SEAT {
            // The body was in memory already. That is charged only to requests that hold a seat.
            charge = Some(account.take(Amount { sent: bytes.len(), made: 0 }).await?);
        }
        Ok(Arc::new(Self { status: head.status, headers: head.headers, body: bytes, charge: charge.map(Arc::new) }))
    }

    /// The response for one watcher.
    pub(super) fn response(&self, account: &Account) -> Response<Body> {
        let body = match &self.charge {
            Some(charge) => charge.read_by(account.peer(), self.body.clone()),
            None => self.body.clone(),
        };
        let mut response = Response::new(Body::Whole(body));
        *response.status_mut() = self.status;
        response.headers_mut().clone_from(&self.headers);
        response
    }
}

impl From<Failure> for WatchError {
    fn from(failure: Failure) -> Self {
        Self::Failed(Arc::new(failure))
    }
}

impl From<Overload> for WatchError {
    fn from(overload: Overload) -> Self {
        Self::Overloaded(overload)
    }
}

impl From<Error> for WatchError {
    fn from(error: Error) -> Self {
        match error {
            Error::Upstream(failure) => Self::Failed(failure),
            Error::Overloaded(overload) => Self::Overloaded(overload),
            Error::TooLarge(largest) => Self::TooLarge(largest),
            // The layers below return no other error.
            _ => Failure::Closed.into(),
        }
    }
}

impl From<WatchError> for Error {
    fn from(error: WatchError) -> Self {
        match error {
            WatchError::Failed(failure) => Self::Upstream(failure),
            WatchError::Overloaded(overload) => overload.into(),
            WatchError::TooLarge(largest) => Self::TooLarge(largest),
        }
    }
}
