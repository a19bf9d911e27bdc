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

/// The reader of responses, for `fuzz/`.
#[cfg(fuzzing)]
pub mod fuzzing {
    use bytes::Bytes;

    use super::framing::Framing;
    use super::head::Head;

    /// Reads a response that arrives in pieces of this size. Returns its status, its body, and whether its connection may be
    /// used again. `None` if it fails.
    pub fn response(bytes: &[u8], size: usize, is_head: bool) -> Option<(u16, Vec<u8>, bool)> {
        let mut pieces = bytes.chunks(size);
        let mut read = Bytes::new();
        let head = loop {
            match Head::split_off(&mut read, is_head).ok()? {
                Some(head) if head.is_interim() => {}
                Some(head) => break head,
                None => read = [&read[..], pieces.next()?].concat().into(),
            }
        };
        let (mut framing, mut body) = (head.framing, Vec::new());
        loop {
            body.extend_from_slice(&framing.decode(&mut read).ok()?);
            let is_kept = if framing.is_complete() {
                head.is_kept && read.is_empty() && pieces.next().is_none()
            } else if let Some(piece) = pieces.next() {
                read = Bytes::copy_from_slice(piece);
                continue;
            } else if matches!(framing, Framing::ToEnd) {
                false
            } else {
                return None;
            };
            return Some((head.status.as_u16(), body, is_kept));
        }
    }
}
