//! [`Spare`]: the memory of a future, kept for the next one.
//!
//! A connection has one request at a time, and each that is passed on needs a future that is too large for the
//! [`Outcome`](crate::outcome::Outcome) of all others. Allocated anew for each, many at once make the C library map and unmap memory
//! with every wave of responses.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio_util::sync::ReusableBoxFuture;

type Home<T> = Arc<Mutex<Option<ReusableBoxFuture<'static, T>>>>;

/// Memory for one future at a time. A clone has its own.
pub(super) struct Spare<T>(Home<T>);

impl<T> Spare<T> {
    /// Moves a future into this memory, or into new memory if another one is there.
    pub(super) fn keep(&self, future: impl Future<Output = T> + Send + 'static) -> Kept<T> {
        let spare = self.0.lock().take();
        let boxed = match spare {
            Some(mut spare) => {
                spare.set(future);
                spare
            }
            None => ReusableBoxFuture::new(future),
        };
        Kept { boxed: Some(boxed), home: Arc::clone(&self.0) }
    }
}

impl<T> Clone for Spare<T> {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> fmt::Debug for Spare<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spare").finish_non_exhaustive()
    }
}

/// A future in the memory of a [`Spare`]. Dropped before its end, it frees the memory with what it holds.
pub struct Kept<T> {
    /// `None` after its end.
    boxed: Option<ReusableBoxFuture<'static, T>>,
    home: Home<T>,
}

impl<T> Future for Kept<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let ended = ready!(self.boxed.as_mut().expect("not polled after completion").poll(cx));
        let boxed = self.boxed.take();
        *self.home.lock() = boxed;
        Poll::Ready(ended)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::oneshot;

    use super::*;

    /// Where the future is that this would be moved into.
    fn address<T>(spare: &Spare<T>) -> Option<*const ()> {
        spare.0.lock().as_mut().map(|spare| (&raw const *spare.get_pin()).cast())
    }

    #[tokio::test]
    async fn the_next_future_gets_the_memory_of_one_that_has_ended() {
        let spare = Spare::default();
        let work = |byte: u8| {
            let large = [byte; 500];
            async move { large[0] }
        };
        assert_eq!(spare.keep(work(1)).await, 1);
        let first = address(&spare).expect("it is kept");
        assert_eq!((spare.keep(work(2)).await, address(&spare)), (2, Some(first)));
        assert!(address(&spare.clone()).is_none(), "that of another connection");
    }

    #[tokio::test]
    async fn a_future_that_is_given_up_is_dropped_at_once() {
        let spare = Spare::default();
        let (held, dropped) = oneshot::channel::<()>();
        drop(spare.keep(async move {
            let _held = held;
            pending::<()>().await;
        }));
        assert!(dropped.await.is_err());
        assert!(spare.0.lock().is_none());
    }
}
