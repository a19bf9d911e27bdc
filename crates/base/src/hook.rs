//! [`Hook`]: a function that a part of the proxy is given, so that it need not know the part that does the work.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A function, which is called through it. `F` is a `dyn Fn`; a clone is the same.
pub struct Hook<F: ?Sized>(Arc<F>);

impl<F: ?Sized> Hook<F> {
    /// Calls this function.
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
