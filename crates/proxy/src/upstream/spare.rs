//! [`Spare`]: keeps the memory of a future for the next one.
//!
//! A connection has one request at a time. A request that is passed on needs a large future. If each were allocated, musl would map
//! and unmap memory whenever many requests wait and then get their responses together (benches/README.md).

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
    /// Moves a future into this memory. Allocates if there is none yet, or if another future is in it.
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

/// A future in the memory of a [`Spare`]. If it is dropped before its end, the memory is freed with it.
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

    /// The address of the kept memory.
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
