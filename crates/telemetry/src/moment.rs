//! [`Moment`]: a point in time, for measurements.
//!
//! A token hit reads the clock a dozen times, which is a considerable part of its cost. quanta reads the processor's
//! time stamp counter, in half the time of the system's clock. Without a constant-rate counter it uses the system's
//! clock.
//!
//! It may step, back as well, when a machine is migrated. So it is only for measurements, and for the clients' shares of
//! time (`server/turns.rs` of the crate `proxy`), where a step costs little. Decisions use tokio's clock (deadlines) and
//! [`BootTime`](base::clock::BootTime) (token lifetimes), which are the kernel's and stay correct over days and across live
//! migrations. With the feature `test-util`, a debug build measures with tokio's clock, which tests pause.

#[cfg(not(all(feature = "test-util", debug_assertions)))]
pub use quanta::Instant as Moment;
#[cfg(all(feature = "test-util", debug_assertions))]
pub use tokio::time::Instant as Moment;

/// A duration in nanoseconds. 64 bits are enough for 584 years.
pub fn nanos(duration: std::time::Duration) -> u64 {
    duration.as_secs().wrapping_mul(1_000_000_000).wrapping_add(duration.subsec_nanos().into())
}
