//! [`Histogram`]: a histogram of durations that is cheap enough to be always on.
//!
//! The prometheus crate's histogram supports any value: it keeps two copies and adds floats with
//! compare-and-swap. This one counts nanoseconds, so an observation is two atomic additions, without locks or
//! allocations. It is read as a [`Snapshot`], which may miss concurrent observations.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::moment::nanos;

/// Upper bounds of what a filter does itself, in nanoseconds: those of Kubernetes' `request_filter_duration_seconds` (from
/// 100 us on), extended downwards to where an in-memory decision is.
pub const WORK: [u64; 19] = [
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

/// Upper bounds of what includes waiting for somebody else, in nanoseconds: from an answer from memory to the upstream's
/// deadline of 2.5 s, the 3 s and 5 s after which client libraries give up, and what a hanging GET may take.
pub const TIME: [u64; 18] = [
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

/// How many observations fell under each bound.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    bounds: &'static [u64; N],
    counts: [AtomicU64; N],
    beyond: AtomicU64,
    nanoseconds: AtomicU64,
}

/// What a histogram held at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Upper bounds, in nanoseconds.
    pub bounds: &'static [u64],
    /// Observations under each bound and above the one before it; the last are those beyond all bounds.
    pub counts: Vec<u64>,
    /// Sum of all observations, in nanoseconds.
    pub nanoseconds: u64,
}

impl<const N: usize> Histogram<N> {
    /// Empty.
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

    /// What it holds now.
    pub fn snapshot(&self) -> Snapshot {
        let counts = self.counts.iter().chain([&self.beyond]).map(|count| count.load(Relaxed)).collect();
        Snapshot { bounds: self.bounds, counts, nanoseconds: self.nanoseconds.load(Relaxed) }
    }
}

impl Snapshot {
    /// Nothing, under these bounds.
    pub fn empty(bounds: &'static [u64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], nanoseconds: 0 }
    }

    /// How many observations there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds what another with the same bounds holds.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.nanoseconds += other.nanoseconds;
    }

    /// What came after an earlier snapshot of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = self.counts.iter().zip(&earlier.counts).map(|(now, then)| now.saturating_sub(*then)).collect();
        Self { bounds: self.bounds, counts, nanoseconds: self.nanoseconds.saturating_sub(earlier.nanoseconds) }
    }

    /// The duration that this share of all observations does not exceed, as `PromQL`'s `histogram_quantile` estimates it:
    /// evenly spread inside a bucket, and the highest bound for what is beyond it. Nothing if there were none.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        #[expect(clippy::cast_precision_loss, reason = "an estimate does not miss the 53rd bit")]
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

    fn of(nanoseconds: &[u64]) -> Snapshot {
        let histogram = Histogram::new(&BOUNDS);
        for observation in nanoseconds {
            histogram.record(Duration::from_nanos(*observation));
        }
        histogram.snapshot()
    }

    #[test]
    fn a_bound_belongs_to_the_bucket_below_it() {
        let snapshot = of(&[0, 100, 101, 1_000, 10_000, 10_001, 3_000_000_000]);
        assert_eq!((snapshot.counts, snapshot.nanoseconds), (vec![2, 2, 1, 2], 3_000_021_202));
    }

    /// The numbers are what Prometheus' own function gives for these buckets.
    #[test]
    fn quantiles_are_those_of_promql() {
        let snapshot = of(&[50, 50, 500, 500, 500, 500, 500, 500, 5_000, 50_000]);
        for (share, nanoseconds) in
            [(0.0, 0), (0.1, 50), (0.2, 100), (0.5, 550), (0.8, 1_000), (0.9, 10_000), (0.99, 10_000)]
        {
            assert_eq!(snapshot.quantile(share), Some(Duration::from_nanos(nanoseconds)), "{share}");
        }
        assert_eq!(of(&[]).quantile(0.5), None);
    }

    #[test]
    fn a_difference_and_a_sum_are_by_bucket() {
        let (earlier, mut later) = (of(&[50, 500]), of(&[50, 50, 500, 5_000]));
        assert_eq!(later.since(&earlier).counts, [1, 0, 1, 0]);
        later.add(&earlier);
        assert_eq!((later.count(), later.counts), (6, vec![3, 2, 1, 0]));
    }

    #[test]
    fn bounds_rise() {
        assert!(WORK.is_sorted_by(|a, b| a < b) && TIME.is_sorted_by(|a, b| a < b));
    }
}
