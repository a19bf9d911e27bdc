//! Notices when the computer stands still, so that nobody is judged by it.
//!
//! Clients give up after some seconds, and the proxy gives the metadata server 2.5 s. A computer that is shared with others, or
//! busy, may stand still for as long.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs;
use std::future::pending;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Time between two looks at the clock.
const INTERVAL: Duration = Duration::from_millis(20);

/// A thread that wakes up later than this was kept from running. The shortest margin of a scenario is 500 ms.
const MIN_STALL: Duration = Duration::from_millis(200);

/// A program that has waited so long for a processor may have given up because of that. The shortest time-out of a client is 3 s.
pub const MIN_WAIT: Duration = Duration::from_secs(1);

/// Time between two looks at a program.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

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
                note(late);
            }
        }
    });
}

/// Looks at a program for as long as it is polled: where others take the processors, a program that computes is kept from running
/// long before a thread that sleeps wakes up late.
pub async fn watch_program(id: Option<u32>) -> Infallible {
    let Some(id) = id else { return pending().await };
    let mut noted = Duration::ZERO;
    loop {
        sleep(LOOK_INTERVAL).await;
        let waited = waited(id);
        if waited >= noted + MIN_WAIT {
            note(waited);
            noted = waited;
        }
    }
}

/// The same as [`waited`], of this process and all that it has started.
pub fn waited_below(id: u32) -> Duration {
    let mut started: HashMap<u32, Vec<u32>> = HashMap::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(parent) = parent_of(process) {
            started.entry(parent).or_default().push(process);
        }
    }
    let (mut longest, mut left) = (Duration::ZERO, vec![id]);
    while let Some(process) = left.pop() {
        longest = longest.max(waited(process));
        left.extend(started.remove(&process).into_iter().flatten());
    }
    longest
}

/// `None` if the process has ended.
fn parent_of(process: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// How long that thread of a program has waited for a processor that has waited longest.
fn waited(id: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let of_threads = threads.filter_map(|thread| {
        // Time on a processor, time of waiting for one, both in nanoseconds, and the number of turns.
        let schedstat = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        schedstat.split(' ').nth(1)?.parse().ok().map(Duration::from_nanos)
    });
    of_threads.max().unwrap_or_default()
}

fn note(stall: Duration) {
    STALLS.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), stall));
}

/// The longest stall since then, if there was one.
pub fn longest_since(began: Instant) -> Option<Duration> {
    let stalls = STALLS.lock().unwrap_or_else(PoisonError::into_inner);
    stalls.iter().filter(|(ended, _)| *ended >= began).map(|(_, late)| *late).max()
}
