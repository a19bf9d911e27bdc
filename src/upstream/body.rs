//! Reads response bodies: buffers small ones and streams large ones.
//!
//! A response that is cut short after it has begun does harm: Go's library fails without a retry, Java's
//! accepts it as complete. So a small response is sent only once it is complete, and almost all responses are
//! small (a token has 1 KiB, a typical value 30 bytes, the largest 256 KiB). Larger ones are streamed; if one
//! is cut short, so is the client's connection, and the client notices.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Response;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use super::pool::Lease;
use super::timing::Asked;
use crate::failure::Failure;
use crate::reply::Body;
use crate::room::{Account, Amount, Charge, SMALL};

/// Maximum body that is buffered, in bytes. Above [`SMALL`] it needs room, and is streamed if there is none.
const HELD: usize = 32 * 1024;

/// How long a streaming upstream may be silent before its response counts as cut short.
const STALL: Duration = Duration::from_secs(10);

/// The body of an answer, as far as it is here.
pub(super) enum Taken {
    Whole(Bytes),
    Streamed(Streamed),
}

impl Taken {
    /// The exchange ends with it.
    pub(super) fn measured_by(self, asked: Asked) -> Body {
        match self {
            Self::Whole(bytes) => {
                asked.end();
                Body::Whole(bytes)
            }
            Self::Streamed(streamed) => Body::Streamed(Box::pin(Streamed { asked: Some(asked), ..streamed })),
        }
    }
}

/// Takes a response body: buffered if it has at most [`HELD`] bytes and there is room for it, otherwise
/// streamed. Without an account, only bodies that need no room are buffered.
pub(super) async fn take(
    response: Response<Incoming>,
    lease: Lease,
    account: Option<Account>,
) -> Result<Response<Taken>, Failure> {
    let (head, mut incoming) = response.into_parts();
    let body = match hold(&mut incoming, account).await? {
        Held::Whole(bytes) => {
            lease.finish();
            Taken::Whole(bytes)
        }
        Held::TooMuch(begun) => Taken::Streamed(Streamed::new(begun, incoming, lease)),
    };
    Ok(Response::from_parts(head, body))
}

enum Held {
    Whole(Bytes),
    TooMuch(Bytes),
}

/// Room for a growing body.
struct Holding {
    account: Option<Account>,
    charge: Option<Charge>,
    /// Number of bytes that may be buffered.
    allowed: usize,
}

impl Holding {
    fn new(account: Option<Account>) -> Self {
        Self { account, charge: None, allowed: SMALL }
    }

    /// Whether this many bytes may be buffered, of a body of at most `at_most` bytes.
    fn allows(&mut self, bytes: usize, at_most: usize) -> bool {
        if bytes <= self.allowed {
            return true;
        }
        if bytes > HELD || self.charge.is_some() {
            return false;
        }
        let sent = at_most.min(HELD);
        self.charge = self.account.as_ref().and_then(|account| account.try_take(Amount { sent, made: 0 }));
        self.allowed = if self.charge.is_some() { sent } else { SMALL };
        bytes <= self.allowed
    }

    fn whole(self, bytes: Bytes) -> Bytes {
        match self.charge {
            Some(mut charge) => {
                charge.reduce_to(Amount { sent: bytes.len(), made: 0 });
                charge.hold(bytes)
            }
            None => bytes,
        }
    }
}

async fn hold(incoming: &mut Incoming, account: Option<Account>) -> Result<Held, Failure> {
    let announced = incoming.size_hint().exact().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let mut holding = Holding::new(account);
    if !holding.allows(announced.unwrap_or(0), announced.unwrap_or(HELD)) {
        return Ok(Held::TooMuch(Bytes::new()));
    }
    let mut first = Bytes::new();
    let mut gathered = BytesMut::new();
    while let Some(frame) = incoming.frame().await {
        // Trailers carry nothing that metadata clients use.
        let Ok(data) = frame.map_err(|_| Failure::CutShort)?.into_data() else { continue };
        if first.is_empty() && gathered.is_empty() {
            first = data;
        } else {
            if gathered.is_empty() {
                gathered.reserve(announced.unwrap_or(0));
                gathered.extend_from_slice(&std::mem::take(&mut first));
            }
            gathered.extend_from_slice(&data);
        }
        if !holding.allows(first.len() + gathered.len(), announced.unwrap_or(HELD)) {
            return Ok(Held::TooMuch(if gathered.is_empty() { first } else { gathered.freeze() }));
        }
    }
    let bytes = if gathered.is_empty() { first } else { gathered.freeze() };
    Ok(Held::Whole(holding.whole(bytes)))
}

/// The body of a large response that is streamed.
///
/// tower-http's `TimeoutBody` is not used: it boxes errors, and the exchange's outcome needs the [`Failure`] itself.
#[derive(Debug)]
pub(super) struct Streamed {
    begun: Bytes,
    incoming: Incoming,
    stall: Pin<Box<Sleep>>,
    lease: Option<Lease>,
    asked: Option<Asked>,
}

impl Streamed {
    fn new(begun: Bytes, incoming: Incoming, lease: Lease) -> Self {
        Self { begun, incoming, stall: Box::pin(tokio::time::sleep(STALL)), lease: Some(lease), asked: None }
    }

    fn failed(&mut self, failure: Failure) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        self.lease = None;
        if let Some(asked) = self.asked.take() {
            asked.fail();
        }
        Poll::Ready(Some(Err(failure)))
    }
}

impl http_body::Body for Streamed {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        if !self.begun.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.begun)))));
        }
        let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(cx) else {
            ready!(self.stall.as_mut().poll(cx));
            return self.failed(Failure::TimedOut(STALL));
        };
        self.stall.as_mut().reset(Instant::now() + STALL);
        Poll::Ready(match frame {
            Some(Ok(frame)) => Some(Ok(frame)),
            Some(Err(_)) => return self.failed(Failure::CutShort),
            None => {
                if let Some(lease) = self.lease.take() {
                    lease.finish();
                }
                if let Some(asked) = self.asked.take() {
                    asked.end();
                }
                None
            }
        })
    }

    fn size_hint(&self) -> SizeHint {
        let begun = self.begun.len() as u64;
        let rest = self.incoming.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + begun);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + begun);
        }
        hint
    }
}
