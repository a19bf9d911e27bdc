//! [`Outcome`]: the future of a service that answers immediately, passes the request on, or does work of its own.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

pin_project! {
    /// An immediate result, the inner service's future, or a boxed future. Only the last one allocates.
    #[project = OutcomeProjected]
    pub enum Outcome<F, T> {
        /// The service's own result, or `None` after it was returned.
        Decided { outcome: Option<T> },
        /// The inner service's future.
        Passed { #[pin] inner: F },
        /// A future of the service's own. Boxed, because hyper reserves memory for the whole stack's future in every
        /// connection, and few requests need it.
        Pending { boxed: Pin<Box<dyn Future<Output = T> + Send>> },
    }
}

impl<F, T> Outcome<F, T> {
    /// The service's own result.
    pub(crate) fn decided(outcome: T) -> Self {
        Self::Decided { outcome: Some(outcome) }
    }

    /// A future of the service's own.
    pub(crate) fn pending(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self::Pending { boxed: Box::pin(work) }
    }

    /// The inner service's future.
    pub(crate) fn passed(inner: F) -> Self {
        Self::Passed { inner }
    }
}

impl<F: Future> Future for Outcome<F, F::Output> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            OutcomeProjected::Decided { outcome } => Poll::Ready(outcome.take().expect("not polled after completion")),
            OutcomeProjected::Passed { inner } => inner.poll(cx),
            OutcomeProjected::Pending { boxed } => boxed.as_mut().poll(cx),
        }
    }
}
