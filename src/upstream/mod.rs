//! The upstream: the node's metadata server.
//!
//! [`UpstreamClient`] owns connections and deadlines. [`Forward`], the innermost service of the stack, decides what
//! is sent. All upstream requests go through them.

mod body;
mod client;
mod forward;
mod health;
mod metrics;
mod pool;
mod timing;

pub use body::MAX_BUFFERED_BYTES;
pub use client::{RequestKind, UpstreamClient};
pub use forward::Forward;
pub use health::Health;
pub use metrics::UpstreamMetrics;
