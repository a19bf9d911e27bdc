//! [`lock`]: the one way in which the mock takes a lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; a test that panicked elsewhere does not stop the mock, whose maps are whole between any two statements.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
