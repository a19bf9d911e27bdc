//! [`Body`]: the body of a response, whole or cut.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

/// The connection ends instead of a response, or in the middle of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the fake Google cuts the connection")]
pub struct Cut;

/// The body of a response.
#[derive(Debug)]
pub(super) struct Body {
    rest: Bytes,
    /// Number of bytes that are announced.
    length: u64,
    end: End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    Cut,
    /// Cut when the bytes before the cut are written.
    CutNext,
}

impl Body {
    pub(super) fn whole(rest: Bytes) -> Self {
        Self { length: rest.len() as u64, rest, end: End::Whole }
    }

    /// Announces all bytes, returns half of them, and then fails.
    pub(super) fn cut(mut rest: Bytes) -> Self {
        let length = rest.len() as u64;
        rest.truncate(rest.len() / 2);
        Self { rest, length, end: End::Cut }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.rest)))));
        }
        match self.end {
            End::Whole => Poll::Ready(None),
            End::Cut => {
                // hyper writes its buffer only when a body is not ready.
                self.end = End::CutNext;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            End::CutNext => Poll::Ready(Some(Err(Cut))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.end == End::Whole
    }

    fn size_hint(&self) -> SizeHint {
        match self.end {
            End::Whole => SizeHint::with_exact(self.rest.len() as u64),
            End::Cut | End::CutNext => SizeHint::with_exact(self.length),
        }
    }
}
