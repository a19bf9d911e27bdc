//! What an operator sees: logs, metrics and, in a build that has them, traces.

mod compat;
mod export;
pub mod histogram;
pub mod history;
pub mod labels;
pub mod latency;
pub mod logging;
pub mod metrics;
mod moment;
#[cfg(feature = "otlp")]
pub mod otlp;
#[cfg(not(feature = "otlp"))]
#[path = "otlp/off.rs"]
pub mod otlp;
mod process;
mod sampled;
pub mod table;
pub mod talkers;
mod tally;

pub use metrics::Metrics;
pub use moment::Moment;
