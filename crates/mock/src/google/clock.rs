//! [`Clock`]: the fake's time, and Google's time formats.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// The system's time at the start, advanced by tokio's clock, which stops and jumps in tests that pause it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    /// System time at the start, since 1970.
    base: Duration,
    start: Instant,
}

impl Clock {
    pub(super) fn new() -> Self {
        // A test is not expected to run on a machine whose clock is before 1970.
        let base = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { base, start: Instant::now() }
    }

    /// Whole seconds since 1970.
    pub(super) fn now(&self) -> u64 {
        (self.base + self.start.elapsed()).as_secs()
    }
}

/// A date and time in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Utc {
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Utc {
    /// From seconds since 1970. Counts years from March, so that a leap day is the last of its year.
    fn new(seconds: u64) -> Self {
        const DAY: u64 = 24 * 60 * 60;
        const DAYS_OF_400_YEARS: u64 = 146_097;
        // Days from 1 March of year 0 to 1 January 1970.
        let days = seconds / DAY + 719_468;
        let era = days / DAYS_OF_400_YEARS;
        let day_of_era = days % DAYS_OF_400_YEARS;
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        let second = seconds % DAY;
        Self { year, month, day, hour: second / 3600, minute: second / 60 % 60, second: second % 60 }
    }
}

/// The format in JSON: `2026-01-31T23:59:59Z`.
pub(super) fn rfc3339(seconds: u64) -> String {
    let Utc { year, month, day, hour, minute, second } = Utc::new(seconds);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The format in certificates: `260131235959Z`. Correct until 2049.
pub(super) fn utc_time(seconds: u64) -> String {
    let Utc { year, month, day, hour, minute, second } = Utc::new(seconds);
    format!("{:02}{month:02}{day:02}{hour:02}{minute:02}{second:02}Z", year % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let times = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        for (seconds, text) in times {
            assert_eq!(rfc3339(seconds), text);
        }
        assert_eq!(utc_time(1_767_225_599), "251231235959Z");
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_follows_tokios() {
        let clock = Clock::new();
        let before = clock.now();
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!(clock.now(), before + 100);
    }
}
