//! [`lock`]: takes the mock's locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, ignoring poisoning: a test that panicked elsewhere does not stop the mock, and its maps are
/// consistent between any two statements.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
