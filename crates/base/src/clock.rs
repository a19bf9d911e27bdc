//! [`BootTime`]: the clock for token lifetimes.
//!
//! A token also ages while its machine is suspended. `CLOCK_MONOTONIC`, which tokio's timers and
//! [`std::time::Instant`] use, stops during suspension; `CLOCK_BOOTTIME` does not. Both are read without a
//! system call.
//!
//! With the feature `test-util`, the time in a debug build is the kernel's time at the first reading, plus the time on
//! tokio's clock since then (which tests pause), plus the time added by `suspend`. An optimised build reads only the
//! kernel's clock, so benches measure what ships.

use std::ops::{Add, Sub};
use std::time::Duration;

use nix::time::ClockId;
use tokio::time::sleep;

/// Maximum sleep without reading the clock. Timers stop during suspension, so this also bounds the delay of due work
/// after a resume.
const MAX_SLEEP: Duration = Duration::from_secs(30);

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A point in time, in nanoseconds since boot, including suspension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootTime(u64);

impl BootTime {
    /// The current time.
    #[cfg(not(all(feature = "test-util", debug_assertions)))]
    pub fn now() -> Self {
        Self::of_kernel()
    }

    fn of_kernel() -> Self {
        let time = ClockId::CLOCK_BOOTTIME.now().expect("Linux has had this clock since 2.6.39");
        Self(nanos(time.into()))
    }

    /// The current time.
    #[cfg(all(feature = "test-util", debug_assertions))]
    pub fn now() -> Self {
        paused::now()
    }

    /// Nanoseconds since boot.
    pub fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time at this many nanoseconds since boot.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Time since `earlier`, or zero if it is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Whole seconds since `earlier`, or 0 if it is later.
    pub fn seconds_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0) / NANOS_PER_SECOND
    }
}

/// The sum saturates.
impl Add<Duration> for BootTime {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(nanos(time)))
    }
}

impl Sub<Duration> for BootTime {
    type Output = Self;

    fn sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(time)))
    }
}

/// A duration in nanoseconds.
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Sleeps until this time, or up to 30 s longer if the machine is suspended meanwhile.
pub async fn sleep_until(moment: BootTime) {
    loop {
        let left = moment.since(BootTime::now());
        if left.is_zero() {
            return;
        }
        sleep(left.min(max_sleep())).await;
    }
}

#[cfg(not(all(feature = "test-util", debug_assertions)))]
const fn max_sleep() -> Duration {
    MAX_SLEEP
}

#[cfg(all(feature = "test-util", debug_assertions))]
use paused::max_sleep;
#[cfg(all(feature = "test-util", debug_assertions))]
pub use paused::{never_suspend, suspend};

/// Time in tests.
#[cfg(all(feature = "test-util", debug_assertions))]
mod paused {
    use std::cell::Cell;
    use std::sync::LazyLock;

    use tokio::time::Instant;

    use super::{BootTime, Duration, MAX_SLEEP};

    /// Time of the first reading. Times may be earlier, because each paused clock starts separately.
    static BEGAN: LazyLock<(Instant, BootTime)> = LazyLock::new(|| (Instant::now(), BootTime::of_kernel()));

    thread_local! {
        /// Thread-local, because each test runs on its own thread.
        static SUSPENDED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
        static IS_NEVER_SUSPENDED: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn now() -> BootTime {
        let (began, start) = *BEGAN;
        let (now, start) = (Instant::now(), start + SUSPENDED.get());
        if now >= began { start + (now - began) } else { start - (began - now) }
    }

    /// Suspends the machine for this time: timers stand still, and tokens age.
    pub fn suspend(time: Duration) {
        SUSPENDED.set(SUSPENDED.get() + time);
    }

    /// This thread's machine is never suspended, so sleeps are not broken up: thousands of nodes sleep for hours.
    pub fn never_suspend() {
        IS_NEVER_SUSPENDED.set(true);
    }

    pub(super) fn max_sleep() -> Duration {
        if IS_NEVER_SUSPENDED.get() { Duration::MAX } else { MAX_SLEEP }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn differences_and_sums_saturate() {
        let (early, late) = (BootTime(5 * NANOS_PER_SECOND), BootTime(7 * NANOS_PER_SECOND + 1));
        assert_eq!((late.seconds_since(early), early.seconds_since(late)), (2, 0));
        assert_eq!(
            (late.since(early), early.since(late)),
            (Duration::from_nanos(2 * NANOS_PER_SECOND + 1), Duration::ZERO)
        );
        assert_eq!(early - Duration::MAX, BootTime(0));
        assert_eq!(early + Duration::MAX, BootTime(u64::MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_through_suspension_ends_soon_after_the_resume() {
        let began = BootTime::now();
        let asleep = tokio::spawn(sleep_until(began + Duration::from_secs(3600)));
        sleep(Duration::from_secs(10)).await;
        suspend(Duration::from_secs(3600));
        let resumed = Instant::now();
        asleep.await.expect("no panic");
        assert!(resumed.elapsed() <= MAX_SLEEP, "it slept for another {:?}", resumed.elapsed());

        let began = BootTime::now();
        sleep_until(began + Duration::from_secs(100)).await;
        assert_eq!(BootTime::now().seconds_since(began), 100, "without suspension it is exact");
    }
}
