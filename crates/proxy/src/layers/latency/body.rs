//! [`TimedBody`]: a response body that records when it ends.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::underway::Underway;
use crate::reply::AtHand;
use telemetry::Moment;

pin_project! {
    /// The body of a timed answer. If it is dropped before its end, the answer was cut.
    #[derive(Debug)]
    pub struct TimedBody<B> {
        #[pin]
        inner: B,
        underway: Option<Underway>,
    }
}

impl<B: AtHand> TimedBody<B> {
    /// Starts with the first byte of the answer, which is available now.
    pub(super) fn new(inner: B, underway: Underway, now: Moment) -> Self {
        // No frame of an answer to HEAD is requested, and hyper takes bytes in memory at once.
        if underway.is_head || inner.at_hand().is_some() {
            underway.end(now);
            return Self { inner, underway: None };
        }
        Self { inner, underway: Some(underway) }
    }
}

impl<B: Body> Body for TimedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.inner.as_mut().poll_frame(cx));
        match &frame {
            Some(Err(_)) => drop(this.underway.take()),
            Some(Ok(_)) if !this.inner.is_end_stream() => {}
            Some(Ok(_)) | None => {
                if let Some(underway) = this.underway.take() {
                    underway.end(Moment::now());
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
