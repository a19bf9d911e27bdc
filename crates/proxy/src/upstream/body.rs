//! Reads response bodies: buffers small ones and streams large ones.
//!
//! A response that is cut short after it has begun is harmful: Go's library fails without a retry, Java's accepts it as
//! complete. So a small response is sent only once it is complete, and almost all responses are small (a token has
//! 1 KiB, a typical value 30 bytes, the largest 256 KiB). Larger ones are streamed; if one is cut short, so is the
//! client's connection, and the client notices.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Response;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::exchange::Incoming;
use super::timing::ExchangeTimer;
use crate::failure::Failure;
use crate::reply::Body;
use crate::room::{Account, Amount, SMALL_BYTES};

/// Maximum size of a buffered body, in bytes. Above [`SMALL_BYTES`] it needs room, and is streamed if there is none.
pub const MAX_BUFFERED_BYTES: usize = 32 * 1024;

/// Maximum silence of a streaming upstream before its response counts as cut short.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The body of an upstream response: complete, or streamed.
pub(super) enum UpstreamBody {
    Whole(Bytes),
    Streamed(Streamed),
}

impl UpstreamBody {
    /// Ends the timer when the body is complete.
    pub(super) fn timed_by(self, timer: ExchangeTimer) -> Body {
        match self {
            Self::Whole(bytes) => {
                timer.end();
                Body::Whole(bytes)
            }
            Self::Streamed(streamed) => Body::Streamed(Box::pin(Streamed { timer: Some(timer), ..streamed })),
        }
    }
}

/// The response with its body, which is read to its end if it is small, or if it has announced at most [`MAX_BUFFERED_BYTES`] and
/// there is room for it; otherwise streamed. Without an account, only a small body is read to its end.
///
/// A body whose length is not announced gets no room: if it turns out to be large, what was read stays in memory until the
/// client reads it. The real server always announces the length.
pub(super) async fn buffered(
    mut response: Response<Incoming>,
    account: Option<Account>,
) -> Result<Response<UpstreamBody>, Failure> {
    let announced = response.body().announced().map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    if announced > SMALL_BYTES {
        let account = account.filter(|_| announced <= MAX_BUFFERED_BYTES);
        let Some(charge) = account.and_then(|account| account.try_take(Amount { sent: announced, made: 0 })) else {
            return Ok(streamed(response, Bytes::new()));
        };
        let mut whole = BytesMut::with_capacity(announced);
        while poll_fn(|cx| response.body_mut().poll_fill(cx, &mut whole)).await? {}
        return Ok(response.map(|_| UpstreamBody::Whole(charge.hold(whole))));
    }
    let mut first = Bytes::new();
    let mut gathered = BytesMut::new();
    while let Some(data) = poll_fn(|cx| response.body_mut().poll_data(cx)).await? {
        if first.is_empty() && gathered.is_empty() {
            first = data;
        } else {
            if gathered.is_empty() {
                gathered.reserve(announced);
                gathered.extend_from_slice(&std::mem::take(&mut first));
            }
            gathered.extend_from_slice(&data);
        }
        if first.len() + gathered.len() > SMALL_BYTES {
            return Ok(streamed(response, if gathered.is_empty() { first } else { gathered.freeze() }));
        }
    }
    let bytes = if gathered.is_empty() { first } else { gathered.freeze() };
    Ok(response.map(|_| UpstreamBody::Whole(bytes)))
}

/// The response with a body of which this has been read.
fn streamed(response: Response<Incoming>, begun: Bytes) -> Response<UpstreamBody> {
    response.map(|incoming| UpstreamBody::Streamed(Streamed::new(begun, incoming)))
}

/// The body of a large response that is streamed.
///
/// tower-http's `TimeoutBody` is not used: it boxes errors, and the exchange's outcome needs the [`Failure`] itself.
#[derive(Debug)]
pub(super) struct Streamed {
    begun: Bytes,
    incoming: Incoming,
    stall: Pin<Box<Sleep>>,
    timer: Option<ExchangeTimer>,
}

impl Streamed {
    fn new(begun: Bytes, incoming: Incoming) -> Self {
        Self { begun, incoming, stall: Box::pin(tokio::time::sleep(STALL_TIMEOUT)), timer: None }
    }

    fn failed(&mut self, failure: Failure) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        if let Some(timer) = self.timer.take() {
            timer.fail();
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
        let Poll::Ready(data) = self.incoming.poll_data(cx) else {
            ready!(self.stall.as_mut().poll(cx));
            return self.failed(Failure::TimedOut(STALL_TIMEOUT));
        };
        self.stall.as_mut().reset(Instant::now() + STALL_TIMEOUT);
        match data {
            Ok(data) => {
                // Not only at the end of the stream: hyper does not ask for more than was announced.
                if self.incoming.is_complete()
                    && let Some(timer) = self.timer.take()
                {
                    timer.end();
                }
                Poll::Ready(data.map(|data| Ok(Frame::data(data))))
            }
            Err(failure) => self.failed(failure),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let begun = self.begun.len() as u64;
        self.incoming.announced().map_or_else(SizeHint::default, |left| SizeHint::with_exact(left + begun))
    }
}
