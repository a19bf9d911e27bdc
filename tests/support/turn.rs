//! Turns: tests that mostly wait run beside each other. One that measures time, or keeps the processor busy, runs while no other
//! of its binary does.

use std::sync::{PoisonError, RwLock};

static PROCESSOR: RwLock<()> = RwLock::new(());

/// Runs a test beside others.
pub fn beside_others<T>(test: impl FnOnce() -> T) -> T {
    let _turn = PROCESSOR.read().unwrap_or_else(PoisonError::into_inner);
    test()
}

/// Runs a test while no other of this binary runs.
pub fn alone<T>(test: impl FnOnce() -> T) -> T {
    let _turn = PROCESSOR.write().unwrap_or_else(PoisonError::into_inner);
    test()
}
