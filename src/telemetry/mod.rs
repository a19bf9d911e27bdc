//! What an operator sees: logs and metrics.

mod compat;
mod export;
pub mod histogram;
pub mod labels;
pub mod latency;
pub mod logging;
pub mod metrics;
mod process;
mod shed_log;
pub mod table;

pub use metrics::Metrics;
