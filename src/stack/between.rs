//! [`Between`]: a layer between two others: nothing here, and in a test the middleware that the test chose.

use std::marker::PhantomData;

use tower::Layer;

/// Nothing, for requests of this type.
pub(super) struct Between<R>(PhantomData<fn(R)>);

impl<R> Default for Between<R> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<R> Clone for Between<R> {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl<S, R> Layer<S> for Between<R> {
    type Service = S;

    fn layer(&self, inner: S) -> S {
        inner
    }
}
