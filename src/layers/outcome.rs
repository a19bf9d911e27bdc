//! [`Outcome`]: the future of a layer that answers immediately, passes the request on, or waits itself.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

pin_project! {
    /// Decided now, or whatever the inner service makes of it. Deciding allocates nothing.
    #[project = OutcomeProjected]
    pub enum Outcome<F, T> {
        /// The layer's own answer; `None` once it was taken.
        Decided { outcome: Option<T> },
        /// The inner service's future.
        Passed { #[pin] inner: F },
        /// Something that takes time. Boxed, because hyper reserves room for the whole stack's future in every
        /// connection, and few requests come to this.
        Pending { boxed: Pin<Box<dyn Future<Output = T> + Send>> },
    }
}

impl<F, T> Outcome<F, T> {
    pub(super) fn decided(outcome: T) -> Self {
        Self::Decided { outcome: Some(outcome) }
    }

    pub(super) fn pending(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self::Pending { boxed: Box::pin(work) }
    }

    pub(super) fn passed(inner: F) -> Self {
        Self::Passed { inner }
    }
}

impl<F: Future> Future for Outcome<F, F::Output> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            OutcomeProjected::Decided { outcome } => {
                Poll::Ready(outcome.take().expect("a future is not polled again after it was ready"))
            }
            OutcomeProjected::Passed { inner } => inner.poll(cx),
            OutcomeProjected::Pending { boxed } => boxed.as_mut().poll(cx),
        }
    }
}
