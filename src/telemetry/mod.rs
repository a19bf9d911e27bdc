//! Logs and metrics.

mod compat;
mod export;
pub mod histogram;
pub mod history;
pub mod labels;
pub mod latency;
pub mod logging;
pub mod minute;
mod moment;
mod process;
pub mod refusals;
pub mod registry;
pub mod requests;
pub(crate) mod sampled;
pub mod shedding;
pub mod table;
pub mod talkers;

pub use moment::{Moment, nanos};
pub use registry::Registry;
