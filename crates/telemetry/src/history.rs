//! [`History`]: filter durations over the last minutes, for use without Prometheus.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

use super::histogram::{Snapshot, TIME_BOUNDS, WORK_BOUNDS};
use super::labels::Label;
use super::latency::{Filter, Latency};

/// Interval between points.
pub const INTERVAL: Duration = Duration::from_secs(10);

/// Maximum number of points: ten minutes, in about 80 KiB.
pub const MAX_POINTS: usize = 60;

/// Differences of the histograms from one point to the next.
#[derive(Debug, Default)]
pub struct History(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Totals at the last point.
    last: Option<Totals>,
    points: VecDeque<Point>,
}

/// Everything counted so far, by filter.
#[derive(Debug)]
struct Totals {
    work: Vec<Snapshot>,
    wait: Vec<Snapshot>,
}

/// Observations between two points. 32 bits are enough for ten seconds.
#[derive(Debug)]
struct Point {
    work: [[u32; WORK_BOUNDS.len() + 1]; Filter::ALL.len()],
    wait: [[u32; TIME_BOUNDS.len() + 1]; Filter::ALL.len()],
}

/// One filter's durations over the last minutes.
#[derive(Debug)]
pub struct Course {
    pub filter: Filter,
    /// Working time on requests, since the oldest point.
    pub work: Snapshot,
    /// Waiting time of requests, since the oldest point.
    pub wait: Snapshot,
    /// Working time in each interval, the oldest first. The last element is the time since the last point.
    pub points: Vec<Snapshot>,
}

impl History {
    /// All filters over the last minutes, up to now.
    pub fn courses(&self, latency: &Latency) -> Vec<Course> {
        // Read after the lock is taken: a point taken in between would be later than these totals.
        let state = self.0.lock();
        let now = Totals::now(latency);
        let newest = state.last.as_ref().map(|last| now.since(last));
        let course = |filter: Filter| {
            let at = filter.index();
            let points = state.points.iter().chain(&newest);
            let points: Vec<Snapshot> = points.clone().map(|point| snapshot(&WORK_BOUNDS, &point.work[at])).collect();
            let waits = state.points.iter().chain(&newest).map(|point| snapshot(&TIME_BOUNDS, &point.wait[at]));
            Course { filter, work: sum(&WORK_BOUNDS, points.iter()), wait: sum(&TIME_BOUNDS, waits), points }
        };
        Filter::ALL.map(course).into()
    }

    /// Takes a point. Must be called every [`INTERVAL`].
    pub fn take_point(&self, latency: &Latency) {
        let mut state = self.0.lock();
        let now = Totals::now(latency);
        if let Some(last) = &state.last {
            let point = now.since(last);
            state.points.push_back(point);
        }
        if state.points.len() > MAX_POINTS {
            state.points.pop_front();
        }
        state.last = Some(now);
    }
}

impl Totals {
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
    let counts = now.since(earlier).counts;
    std::array::from_fn(|bucket| u32::try_from(counts[bucket]).unwrap_or(u32::MAX))
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
    use crate::latency::FilterOutcome;

    fn conceal(history: &History, latency: &Latency) -> (u64, Vec<u64>) {
        let course = history.courses(latency).swap_remove(Filter::Conceal.index());
        assert_eq!(course.filter, Filter::Conceal);
        (course.work.count(), course.points.iter().map(Snapshot::count).collect())
    }

    #[test]
    fn points_are_differences_and_the_oldest_are_dropped() {
        let (history, latency) = (History::default(), Latency::default());
        let work = |times: usize| {
            for _ in 0..times {
                latency.filter(Filter::Conceal).worked(FilterOutcome::Passed, 1_000);
            }
        };
        work(9);
        history.take_point(&latency);
        assert_eq!(conceal(&history, &latency), (0, vec![0]), "observations before the first point are in no interval");
        work(2);
        history.take_point(&latency);
        work(3);
        assert_eq!(conceal(&history, &latency), (5, vec![2, 3]));
        for _ in 0..MAX_POINTS {
            history.take_point(&latency);
        }
        let (total, points) = conceal(&history, &latency);
        assert_eq!((total, points[0], points.len()), (3, 3, MAX_POINTS + 1));
    }

    #[test]
    fn the_page_may_be_read_while_points_are_taken() {
        let (history, latency) = (History::default(), Latency::default());
        std::thread::scope(|threads| {
            let points = threads.spawn(|| {
                for _ in 0..2_000 {
                    latency.filter(Filter::Conceal).worked(FilterOutcome::Passed, 1_000);
                    history.take_point(&latency);
                }
            });
            while !points.is_finished() {
                history.courses(&latency);
            }
        });
        assert!(conceal(&history, &latency).0 <= 2_000);
    }
}
