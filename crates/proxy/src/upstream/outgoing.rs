//! [`Outgoing`]: a request as it is sent.

use std::net::SocketAddr;

use http::HeaderMap;
use smallvec::SmallVec;

use telemetry::latency::EndpointClass;

/// Determines the maximum time to wait for the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// [`UPSTREAM_TIMEOUT`](crate::failure::UPSTREAM_TIMEOUT) until the response can be passed on.
    Ordinary,
    /// A hanging GET: its own `timeout_sec` plus 5 s, or until the client disconnects.
    Hanging {
        /// `timeout_sec` of the client.
        timeout_sec: Option<u32>,
    },
}

/// The head of a request. Nearly all have less than 256 bytes, which the future of the request has room for.
pub(super) type RequestHead = SmallVec<[u8; 256]>;

/// A request as sent to the upstream. It has no body.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) bytes: RequestHead,
    /// Whether the method is HEAD, so that the response has no body.
    pub(super) is_head: bool,
    pub(super) endpoint: EndpointClass,
    pub(super) kind: RequestKind,
    /// The client that is charged for a buffered response.
    pub(super) peer: Option<SocketAddr>,
    /// An empty map for the headers of the response.
    pub(super) headers: HeaderMap,
}
