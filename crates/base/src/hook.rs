//! [`Hook`]: a function that one part of the proxy gives to another, which need not know the part that does the work.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A function, called by dereferencing. `F` is a `dyn Fn`. Clones share the function.
pub struct Hook<F: ?Sized>(Arc<F>);

impl<F: ?Sized> Hook<F> {
    /// Creates a hook that calls this function.
    pub fn new(function: Arc<F>) -> Self {
        Self(function)
    }
}

impl<F: ?Sized> Deref for Hook<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.0
    }
}

impl<F: ?Sized> Clone for Hook<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F: ?Sized> fmt::Debug for Hook<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}
