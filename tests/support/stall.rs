//! Notices when the computer stands still, so that nobody is judged by it.
//!
//! Clients give up after some seconds, and the proxy gives the metadata server 2.5 s. A computer that is shared with others, or
//! busy, may stand still for as long.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

/// Time between two looks at the clock.
const INTERVAL: Duration = Duration::from_millis(20);

/// A thread that wakes up later than this was kept from running. The shortest margin of a scenario is 500 ms.
const MIN_STALL: Duration = Duration::from_millis(200);

/// When stalls ended, and how long they took.
static STALLS: LazyLock<Mutex<Vec<(Instant, Duration)>>> = LazyLock::new(Mutex::default);

/// Begins to watch, on a thread of this niceness.
#[expect(clippy::disallowed_methods, reason = "a thread of its own may sleep")]
pub fn watch(niceness: i32) {
    thread::spawn(move || {
        let _ = rustix::process::nice(niceness);
        loop {
            let began = Instant::now();
            thread::sleep(INTERVAL);
            let late = began.elapsed().saturating_sub(INTERVAL);
            if late >= MIN_STALL {
                STALLS.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), late));
            }
        }
    });
}

/// The longest stall since then, if there was one.
pub fn longest_since(began: Instant) -> Option<Duration> {
    let stalls = STALLS.lock().unwrap_or_else(PoisonError::into_inner);
    stalls.iter().filter(|(ended, _)| *ended >= began).map(|(_, late)| *late).max()
}
