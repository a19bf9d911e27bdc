//! [`Request`]: a request after it was read. Everything behind `layers::classify` sees this and no HTTP.

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use serde::Deserialize;

use super::{Endpoint, Host, MetadataPath, Principal, Query};

/// A metadata request, parsed. It has no body: one that came with a body was refused. Layers hand it on in a box, for each of
/// them would move its 300 bytes.
#[derive(Debug, Clone)]
pub struct Request {
    /// Reading is all that is let through.
    pub method: Method,
    /// What is asked for.
    pub endpoint: Endpoint,
    /// The same as text.
    pub path: MetadataPath,
    /// How it is asked for.
    pub query: Query,
    /// On whose behalf.
    pub principal: Principal,
    /// The other end of the connection; none for a request of the proxy's own.
    pub peer: Option<SocketAddr>,
    /// Under which name the client reached us; absent only where HTTP/1.0 lets it be.
    pub host: Option<Host>,
    /// As sent; `upstream::forward` decides which of them go on.
    pub headers: HeaderMap,
}

impl Request {
    /// Whether its answer may wait for a change of the value. A token's never does: the server answers such a request
    /// with 400.
    pub fn hangs(&self) -> bool {
        self.query.waits_for_change() && !matches!(self.endpoint, Endpoint::Token(_) | Endpoint::Identity(_))
    }

    /// From which address, by which pods are told apart where they share what is scarce; none for the proxy's own requests.
    pub fn client(&self) -> Option<IpAddr> {
        self.peer.map(|peer| peer.ip().to_canonical())
    }

    /// A request of the proxy's own, for a path that it wrote itself.
    ///
    /// # Panics
    ///
    /// If the path is not canonical.
    pub fn own(endpoint: Endpoint, path: &str, query: Query, principal: Principal) -> Self {
        let target = path.parse().expect("the proxy's own paths are request targets");
        let path = MetadataPath::parse(&target).expect("the proxy's own paths are canonical");
        Self { endpoint, principal, ..Self::get(path, query) }
    }

    /// A GET that nobody sent.
    pub fn get(path: MetadataPath, query: Query) -> Self {
        Self {
            method: Method::Get,
            endpoint: Endpoint::of(&path),
            path,
            query,
            principal: Principal::Node,
            peer: None,
            host: None,
            headers: HeaderMap::new(),
        }
    }
}

/// The methods of the metadata server that only read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "UPPERCASE")]
pub enum Method {
    /// The value.
    Get,
    /// Its headers.
    Head,
}

impl From<Method> for http::Method {
    fn from(method: Method) -> Self {
        match method {
            Method::Get => Self::GET,
            Method::Head => Self::HEAD,
        }
    }
}
