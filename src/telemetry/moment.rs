//! [`Moment`]: a look at the clock, to measure by.
//!
//! A token hit looks at the clock a dozen times, so that looking is a good part of what it costs. The processor's own counter
//! tells the time in half the time that the system takes; where there is none that runs evenly, quanta asks the system, too.
//!
//! Only measurements go by it. What is decided by time (deadlines, the end of a token) goes by tokio's clock, which is the
//! kernel's, and is right over days and where a machine is moved to another host. In unit tests measurements go by that as
//! well, since it can be stopped there.

#[cfg(not(test))]
pub use quanta::Instant as Moment;
#[cfg(test)]
pub use tokio::time::Instant as Moment;

/// A duration in nanoseconds, which fit for 584 years.
pub fn nanos(duration: std::time::Duration) -> u64 {
    duration.as_secs().wrapping_mul(1_000_000_000).wrapping_add(duration.subsec_nanos().into())
}
