//! The upstream: the node's metadata server, or configured values on a machine without one.
//!
//! [`UpstreamClient`] owns connections and deadlines. [`Forward`], the innermost service of the stack, decides which
//! requests are sent. All upstream requests go through them.

mod access;
mod body;
mod client;
mod connection;
mod exchange;
mod forward;
mod framing;
mod head;
mod health;
mod metrics;
mod outgoing;
mod pool;
mod server;
mod spare;
mod timing;
mod values;

use std::fmt;

use protocol::metadata::{Target, TargetError};

pub use access::Access;
pub use body::MAX_BUFFERED_BYTES;
pub use client::UpstreamClient;
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

/// The reader of responses, for `fuzz/`.
#[cfg(fuzzing)]
pub mod fuzzing {
    use bytes::Bytes;
    use http::HeaderMap;

    use super::head::Head;

    /// Reads a response that arrives in pieces of this size. Returns its status, its body, and whether its connection may be
    /// used again. `None` if it fails.
    pub fn response(bytes: &[u8], size: usize, is_head: bool) -> Option<(u16, Vec<u8>, bool)> {
        let mut pieces = bytes.chunks(size).map(Bytes::copy_from_slice);
        let (mut read, mut body) = (Bytes::new(), Vec::new());
        let Head { status, mut rest, .. } =
            pieces.find_map(|piece| Head::read(&mut read, piece, is_head, &mut HeaderMap::new()).transpose())?.ok()?;
        loop {
            let (data, end) = rest.decode().ok()?;
            body.extend_from_slice(&data);
            if let Some(is_kept) = end {
                return Some((status.as_u16(), body, is_kept && pieces.next().is_none()));
            }
            rest.add(pieces.next().unwrap_or_default()).ok()?;
        }
    }
}
