//! The upstream: the node's metadata server, or configured values on a machine without one.
//!
//! [`UpstreamClient`] owns connections and deadlines. [`Forward`], the innermost service of the stack, decides which
//! requests are sent. All upstream requests go through them.

mod access;
mod body;
mod client;
mod forward;
mod health;
mod metrics;
mod pool;
mod timing;
mod values;

use std::fmt;

use protocol::metadata::{Target, TargetError};

pub use access::Access;
pub use body::MAX_BUFFERED_BYTES;
pub use client::{RequestKind, UpstreamClient};
pub use forward::Forward;
pub use health::Health;
pub use metrics::UpstreamMetrics;
pub use values::{Named, Values};

/// Destination of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upstream {
    /// The metadata server.
    Server(Target),
    /// None: the machine has no metadata server, and these values are the answers.
    None(Named),
}

impl Upstream {
    /// The server at this URL.
    pub fn at(url: &str) -> Result<Self, TargetError> {
        Target::parse(url).map(Self::Server)
    }
}

/// The address of the server, or `none`.
impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(target) => target.fmt(f),
            Self::None(_) => f.write_str("none"),
        }
    }
}
