//! Result of a watch, shared by all its watchers: an answer or an error.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};

use crate::error::Error;
use crate::reply::{self, Body};
use crate::room::{Account, Amount, Charge, SMALL_BYTES_WITHOUT_SEAT, Whole};

/// The result of a watch.
pub(super) type WatchResult = Result<Arc<SharedAnswer>, Error>;

/// An upstream answer for several watchers.
#[derive(Debug)]
pub(super) struct SharedAnswer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    /// `None` if the answer is small.
    charge: Option<Arc<Charge>>,
}

impl SharedAnswer {
    /// Reads the whole upstream answer, for which this account is charged.
    pub(super) async fn read(answer: Result<Response<Body>, Error>, account: &Account) -> WatchResult {
        let (head, body) = answer?.into_parts();
        let Whole { bytes, mut charge } = account.read(body, SMALL_BYTES_WITHOUT_SEAT, |_| 0).await?;
        if charge.is_none() && bytes.len() > SMALL_BYTES_WITHOUT_SEAT {
            // The body was already in memory. Such a body is charged only to requests that hold a seat.
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
        reply::whole(self.status, self.headers.clone(), body)
    }
}
