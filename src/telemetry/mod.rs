//! What an operator sees: logs and metrics.

pub mod audit;
mod compat;
mod export;
pub mod histogram;
pub mod history;
pub mod labels;
pub mod latency;
pub mod logging;
pub mod metrics;
mod process;
mod sampled;
pub mod table;
pub mod talkers;

pub use metrics::Metrics;
