//! [`Histogram`]: a histogram of durations that is cheap enough to be always on.
//!
//! The prometheus crate's histogram supports any value: it keeps two copies and adds floats with
//! compare-and-swap. This one counts nanoseconds, so an observation is two atomic additions, without locks or
//! allocations. It is read as a [`Snapshot`], which may miss concurrent observations.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::moment::nanos;

/// Bucket bounds of a filter's working time, in nanoseconds: those of Kubernetes'
/// `request_filter_duration_seconds` from 100 us, and smaller ones for decisions in memory.
pub const WORK_BOUNDS: [u64; 19] = [
    100,
    300,
    1_000,
    3_000,
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
    5_000_000_000,
    10_000_000_000,
    15_000_000_000,
    30_000_000_000,
];

/// Bucket bounds of durations that include waiting, in nanoseconds: from responses from memory to the upstream's
/// deadline of 2.5 s, the 3 s and 5 s after which client libraries give up, and the duration of hanging GETs.
pub const TIME_BOUNDS: [u64; 18] = [
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
    2_500_000_000,
    3_000_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
    300_000_000_000,
];

/// Counts observations by bucket.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    bounds: &'static [u64; N],
    counts: [AtomicU64; N],
    beyond: AtomicU64,
    nanoseconds: AtomicU64,
}

/// The state of a histogram at a point in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Upper bounds, in nanoseconds.
    pub bounds: &'static [u64],
    /// Observations in each bucket. The last bucket is for observations above all bounds.
    pub counts: Vec<u64>,
    /// Sum of all observations, in nanoseconds.
    pub nanoseconds: u64,
}

impl<const N: usize> Histogram<N> {
    pub const fn new(bounds: &'static [u64; N]) -> Self {
        Self {
            bounds,
            counts: [const { AtomicU64::new(0) }; N],
            beyond: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
        }
    }

    /// Counts one observation.
    pub fn record(&self, duration: Duration) {
        self.record_nanos(nanos(duration));
    }

    /// Counts one observation, in nanoseconds.
    pub fn record_nanos(&self, nanoseconds: u64) {
        let bucket = self.bounds.iter().position(|bound| nanoseconds <= *bound);
        bucket.map_or(&self.beyond, |bucket| &self.counts[bucket]).fetch_add(1, Relaxed);
        self.nanoseconds.fetch_add(nanoseconds, Relaxed);
    }

    pub fn snapshot(&self) -> Snapshot {
        let counts = self.counts.iter().chain([&self.beyond]).map(|count| count.load(Relaxed)).collect();
        Snapshot { bounds: self.bounds, counts, nanoseconds: self.nanoseconds.load(Relaxed) }
    }
}

impl Snapshot {
    /// A snapshot without observations.
    pub fn empty(bounds: &'static [u64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], nanoseconds: 0 }
    }

    /// Number of observations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds another snapshot with the same bounds.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.nanoseconds += other.nanoseconds;
    }

    /// The observations since an earlier snapshot of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = self.counts.iter().zip(&earlier.counts).map(|(now, then)| now.saturating_sub(*then)).collect();
        Self { bounds: self.bounds, counts, nanoseconds: self.nanoseconds.saturating_sub(earlier.nanoseconds) }
    }

    /// Estimates a quantile as `PromQL`'s `histogram_quantile` does: linear within a bucket, and the highest bound if
    /// it is above all bounds. `share` is between 0 and 1. Returns `None` without observations.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        #[expect(clippy::cast_precision_loss, reason = "this is an estimate")]
        let number = |count: u64| count as f64;
        let total = self.count();
        let rank = share * number(total);
        let mut below = 0;
        let mut lower = 0;
        for (count, bound) in self.counts.iter().zip(self.bounds) {
            if *count > 0 && number(below + count) >= rank {
                let inside = ((rank - number(below)) / number(*count)).clamp(0.0, 1.0);
                return Some(Duration::from_nanos(lower) + Duration::from_nanos(bound - lower).mul_f64(inside));
            }
            below += count;
            lower = *bound;
        }
        (total > 0).then(|| Duration::from_nanos(lower))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: [u64; 3] = [100, 1_000, 10_000];

    fn observed(nanoseconds: &[u64]) -> Snapshot {
        let histogram = Histogram::new(&BOUNDS);
        for observation in nanoseconds {
            histogram.record(Duration::from_nanos(*observation));
        }
        histogram.snapshot()
    }

    #[test]
    fn an_observation_equal_to_a_bound_is_in_the_bucket_below() {
        let snapshot = observed(&[0, 100, 101, 1_000, 10_000, 10_001, 3_000_000_000]);
        assert_eq!((snapshot.counts, snapshot.nanoseconds), (vec![2, 2, 1, 2], 3_000_021_202));
    }

    /// The expected values were computed by Prometheus for these buckets.
    #[test]
    fn quantiles_match_promql() {
        let snapshot = observed(&[50, 50, 500, 500, 500, 500, 500, 500, 5_000, 50_000]);
        for (share, nanoseconds) in
            [(0.0, 0), (0.1, 50), (0.2, 100), (0.5, 550), (0.8, 1_000), (0.9, 10_000), (0.99, 10_000)]
        {
            assert_eq!(snapshot.quantile(share), Some(Duration::from_nanos(nanoseconds)), "{share}");
        }
        assert_eq!(observed(&[]).quantile(0.5), None);
    }

    #[test]
    fn snapshots_are_added_and_subtracted_by_bucket() {
        let (earlier, mut later) = (observed(&[50, 500]), observed(&[50, 50, 500, 5_000]));
        assert_eq!(later.since(&earlier).counts, [1, 0, 1, 0]);
        later.add(&earlier);
        assert_eq!((later.count(), later.counts), (6, vec![3, 2, 1, 0]));
    }

    #[test]
    fn bounds_are_sorted() {
        assert!(WORK_BOUNDS.is_sorted_by(|a, b| a < b) && TIME_BOUNDS.is_sorted_by(|a, b| a < b));
    }
}
