//! [`Request`]: a request after it was read. Everything behind `layers::classify` sees this and no HTTP.

use std::net::IpAddr;

use http::HeaderMap;

use super::{Endpoint, Host, MetadataPath, Principal, Query};

/// A metadata request, parsed. It has no body: one that came with a body was refused.
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
    /// From which address, by which pods are told apart where they share what is scarce; none for the proxy's own requests.
    pub client: Option<IpAddr>,
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

    /// A request of the proxy's own, for a path that it wrote itself.
    ///
    /// # Panics
    ///
    /// If the path is not canonical.
    pub fn own(endpoint: Endpoint, path: &str, query: Query, principal: Principal) -> Self {
        let target = path.parse().expect("the proxy's own paths are request targets");
        let path = MetadataPath::parse(&target).expect("the proxy's own paths are canonical");
        Self {
            method: Method::Get,
            endpoint,
            path,
            query,
            principal,
            client: None,
            host: None,
            headers: HeaderMap::new(),
        }
    }
}

/// The methods of the metadata server that only read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
