//! Crowds of clients against the binary as shipped: which clients are served, which are refused, and how.
//!
//! They are separate from the other scenarios, and run one at a time, so that each has the processor to itself. Hostile
//! pods are in `tests/siege`.

#![allow(unreachable_pub, reason = "everything here is private to this binary")]

mod connections;
mod overload;
mod stage;
#[allow(dead_code, unreachable_pub, unused_imports, reason = "each test binary uses a part of it")]
#[path = "../support/mod.rs"]
mod support;
mod survival;
mod tokens;
mod watches;

use tokio::sync::{Mutex, MutexGuard};

/// Waits until no other test runs: many require a response in less than 2.5 s, which crowds of other tests would delay.
async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    support::open_many_files();
    TURN.lock().await
}
