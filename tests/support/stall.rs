//! Detects when the machine stalls, so that no client is judged by it.
//!
//! Clients give up after some seconds, and the proxy gives the metadata server 2.5 s. A machine that is shared with
//! others, or busy, may stall for as long.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs;
use std::future::pending;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Interval between wake-ups of the watching thread.
const INTERVAL: Duration = Duration::from_millis(20);

/// A thread that wakes up later than this was kept from running. The shortest margin of a scenario is 500 ms.
const MIN_STALL: Duration = Duration::from_millis(200);

/// A program that waited this long for a processor may have failed because of that. The shortest margin of a scenario, and
/// a client's shortest timeout, are as long.
pub const MIN_WAIT: Duration = Duration::from_millis(500);

/// Interval between checks of a program.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// End and length of each stall.
static STALLS: LazyLock<Mutex<Vec<(Instant, Duration)>>> = LazyLock::new(Mutex::default);

/// Starts watching on a thread with this niceness.
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

/// Watches a program while polled: if others use the processors, a program that computes is kept from running long
/// before a thread that sleeps wakes up late.
pub async fn watch_program(id: Option<u32>) -> Infallible {
    let Some(id) = id else { return pending().await };
    let mut before = Waits::default();
    loop {
        sleep(LOOK_INTERVAL).await;
        let now = Waits::of(id);
        let waited = now.longest_since(&before);
        if waited >= MIN_WAIT {
            note(waited);
            before = now;
        }
    }
}

/// Time that each thread of some processes has waited for a processor, by thread ID.
#[derive(Debug, Default)]
pub struct Waits(HashMap<u32, Duration>);

impl Waits {
    /// The threads of a process.
    pub fn of(process: u32) -> Self {
        let mut waits = Self::default();
        waits.read(process);
        waits
    }

    /// The threads of a process and of all processes that it has started.
    pub fn below(process: u32) -> Self {
        let mut started: HashMap<u32, Vec<u32>> = HashMap::new();
        for child in numbers_in("/proc") {
            if let Some(parent) = parent_of(child) {
                started.entry(parent).or_default().push(child);
            }
        }
        let (mut waits, mut left) = (Self::default(), vec![process]);
        while let Some(process) = left.pop() {
            waits.read(process);
            left.extend(started.remove(&process).into_iter().flatten());
        }
        waits
    }

    /// The longest wait of a thread since then. A new thread began after that.
    pub fn longest_since(&self, before: &Self) -> Duration {
        let since = |(thread, waited): (&u32, &Duration)| {
            waited.saturating_sub(before.0.get(thread).copied().unwrap_or_default())
        };
        self.0.iter().map(since).max().unwrap_or_default()
    }

    fn read(&mut self, process: u32) {
        for thread in numbers_in(&format!("/proc/{process}/task")) {
            // Time on a processor and time waiting for one, both in nanoseconds, and the number of turns.
            let schedstat = fs::read_to_string(format!("/proc/{process}/task/{thread}/schedstat"));
            let waited = schedstat.ok().and_then(|text| text.split(' ').nth(1)?.parse().ok());
            self.0.extend(waited.map(|waited| (thread, Duration::from_nanos(waited))));
        }
    }
}

/// The IDs of the processes, or threads, in a directory of /proc.
fn numbers_in(directory: &str) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The parent of a process. `None` if the process has ended.
fn parent_of(process: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Records that a program has waited for a processor, if the wait was long enough to matter.
pub fn note_wait(waited: Duration) {
    if waited >= MIN_WAIT {
        note(waited);
    }
}

fn note(stall: Duration) {
    STALLS.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), stall));
}

/// The longest stall since then, if any.
pub fn longest_since(began: Instant) -> Option<Duration> {
    let stalls = STALLS.lock().unwrap_or_else(PoisonError::into_inner);
    stalls.iter().filter(|(ended, _)| *ended >= began).map(|(_, late)| *late).max()
}
