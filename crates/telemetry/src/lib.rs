//! Logs and metrics.

#![forbid(unsafe_code)]

mod compat;
mod export;
pub mod histogram;
pub mod history;
pub mod labels;
pub mod latency;
pub mod logging;
mod lossy;
pub mod minute;
mod moment;
pub mod panics;
mod process;
pub mod refusals;
pub mod registry;
pub mod requests;
pub mod sampled;
pub mod shedding;
pub mod table;
pub mod talkers;

pub use moment::{Moment, nanos};
pub use registry::Registry;
