//! [`History`]: filter durations of the last minutes, for use without Prometheus.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::histogram::{Snapshot, TIME, WORK};
use super::labels::Label;
use super::latency::{Filter, Latency};

/// Between two points.
pub const INTERVAL: Duration = Duration::from_secs(10);

/// Points that are kept: ten minutes, in about 80 KiB.
pub const POINTS: usize = 60;

/// Differences of the histograms from one point to the next.
#[derive(Debug, Default)]
pub struct History(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// As of the last point.
    last: Option<Seen>,
    points: VecDeque<Point>,
}

/// All that was counted so far, by filter.
#[derive(Debug)]
struct Seen {
    work: Vec<Snapshot>,
    wait: Vec<Snapshot>,
}

/// What was counted between two points. More than 2^32 in ten seconds are not.
#[derive(Debug)]
struct Point {
    work: [[u32; WORK.len() + 1]; Filter::ALL.len()],
    wait: [[u32; TIME.len() + 1]; Filter::ALL.len()],
}

/// One filter over the last minutes.
#[derive(Debug)]
pub struct Course {
    /// Which.
    pub filter: Filter,
    /// What it did itself, over all the time that is kept and until now.
    pub work: Snapshot,
    /// How long requests waited in it, likewise.
    pub wait: Snapshot,
    /// What it did itself between one point and the next, the oldest first; the last is what came since the last point.
    pub points: Vec<Snapshot>,
}

impl History {
    /// Takes a point every ten seconds, for as long as it is polled.
    pub async fn run(&self, latency: &Latency) {
        let mut tick = interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.take_point(latency);
        }
    }

    /// Each filter's course, up to now.
    pub fn courses(&self, latency: &Latency) -> Vec<Course> {
        let now = Seen::now(latency);
        let kept = self.lock();
        let newest = kept.last.as_ref().map(|last| now.since(last));
        let course = |filter: Filter| {
            let at = filter.index();
            let points = kept.points.iter().chain(&newest);
            let points: Vec<Snapshot> = points.clone().map(|point| snapshot(&WORK, &point.work[at])).collect();
            let waits = kept.points.iter().chain(&newest).map(|point| snapshot(&TIME, &point.wait[at]));
            Course { filter, work: sum(&WORK, points.iter()), wait: sum(&TIME, waits), points }
        };
        Filter::ALL.map(course).into()
    }

    fn take_point(&self, latency: &Latency) {
        let now = Seen::now(latency);
        let mut kept = self.lock();
        if let Some(last) = &kept.last {
            let point = now.since(last);
            kept.points.push_back(point);
        }
        if kept.points.len() > POINTS {
            kept.points.pop_front();
        }
        kept.last = Some(now);
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // A point is added whole, so a panic elsewhere leaves the list whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn now(latency: &Latency) -> Self {
        let (work, wait) = Filter::ALL.map(|filter| latency.filter(filter).snapshots()).into_iter().unzip();
        Self { work, wait }
    }

    fn since(&self, earlier: &Self) -> Point {
        Point {
            work: std::array::from_fn(|filter| difference(&self.work[filter], &earlier.work[filter])),
            wait: std::array::from_fn(|filter| difference(&self.wait[filter], &earlier.wait[filter])),
        }
    }
}

fn difference<const N: usize>(now: &Snapshot, earlier: &Snapshot) -> [u32; N] {
    std::array::from_fn(|bucket| u32::try_from(now.counts[bucket] - earlier.counts[bucket]).unwrap_or(u32::MAX))
}

fn snapshot(bounds: &'static [u64], counts: &[u32]) -> Snapshot {
    Snapshot { bounds, counts: counts.iter().copied().map(u64::from).collect(), nanoseconds: 0 }
}

fn sum<S: std::borrow::Borrow<Snapshot>>(bounds: &'static [u64], points: impl Iterator<Item = S>) -> Snapshot {
    points.fold(Snapshot::empty(bounds), |mut all, point| {
        all.add(point.borrow());
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::latency::FilterOutcome;

    fn conceal(history: &History, latency: &Latency) -> (u64, Vec<u64>) {
        let course = history.courses(latency).swap_remove(Filter::Conceal.index());
        assert_eq!(course.filter, Filter::Conceal);
        (course.work.count(), course.points.iter().map(Snapshot::count).collect())
    }

    #[test]
    fn points_are_differences_and_the_oldest_are_forgotten() {
        let (history, latency) = (History::default(), Latency::default());
        let work = |times: usize| {
            for _ in 0..times {
                latency.filter(Filter::Conceal).worked(FilterOutcome::Passed, 1_000);
            }
        };
        work(9);
        history.take_point(&latency);
        assert_eq!(conceal(&history, &latency), (0, vec![0]), "what was before the first point is in no interval");
        work(2);
        history.take_point(&latency);
        work(3);
        assert_eq!(conceal(&history, &latency), (5, vec![2, 3]));
        for _ in 0..POINTS {
            history.take_point(&latency);
        }
        let (total, points) = conceal(&history, &latency);
        assert_eq!((total, points[0], points.len()), (3, 3, POINTS + 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_point_is_taken_every_ten_seconds() {
        let (history, latency) = (History::default(), Latency::default());
        let ran = tokio::time::timeout(Duration::from_secs(35), history.run(&latency)).await;
        assert!(ran.is_err(), "it goes on");
        assert_eq!(conceal(&history, &latency).1.len(), 4, "three intervals, and what came since");
    }
}
