//! What an operator sees: logs and metrics.

pub mod logging;
pub mod metrics;
mod shed_log;

pub use metrics::Metrics;
