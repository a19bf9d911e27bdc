//! What an operator sees: logs and metrics.

pub mod logging;
pub mod metrics;

pub use metrics::Metrics;
