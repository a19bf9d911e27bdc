//! [`Request`]: a parsed request. All layers behind `layers::classify` use it instead of an HTTP request.

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use serde::Deserialize;

use super::{Endpoint, Host, MetadataPath, Principal, Query, headers};

/// A parsed metadata request, without a body. Layers pass it in a box, to avoid moving 300 bytes each time.
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

    /// Keeps only what goes upstream, in memory of its own. For a request that begins to wait: its path and headers share the
    /// buffer that the connection read it into, which has up to 16 KiB.
    pub fn detach(&mut self) {
        self.path = self.path.detached();
        self.headers = headers::copy_of_passed_on(&self.headers);
        if let Some(host) = &mut self.host {
            host.detach();
        }
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderValue;
    use http::header::USER_AGENT;
    use http::uri::PathAndQuery;

    use super::*;
    use crate::metadata::headers::X_GOOG_API_CLIENT;
    use crate::metadata::host::AllowedHosts;

    /// A request whose parts share one buffer, as hyper reads it.
    fn from_buffer(buffer: &Bytes, parts: [&'static str; 4]) -> Request {
        let [path, host, agent, other] = parts.map(|part| {
            let at = std::str::from_utf8(buffer).expect("text").find(part).expect("it is in the buffer");
            buffer.slice(at..at + part.len())
        });
        let value = |bytes| HeaderValue::from_maybe_shared(bytes).expect("a value");
        let target = PathAndQuery::from_maybe_shared(path).expect("a target");
        let path = MetadataPath::parse(&target).expect("a path");
        let mut request = Request::get(path, Query::default());
        request.host = Some(AllowedHosts::default().admit(&value(host)).expect("a name of the server"));
        request.headers.insert(USER_AGENT, value(agent));
        request.headers.insert("x-filler", value(other));
        request
    }

    #[test]
    fn a_detached_request_keeps_nothing_of_the_read_buffer() {
        let parts = ["/computeMetadata/v1/instance/tags", "metadata:80", "an-agent/1.0", "filler"];
        let buffer = Bytes::from(parts.join("\n"));
        let mut request = from_buffer(&buffer, parts);
        assert!(!buffer.is_unique());
        request.detach();
        assert!(buffer.is_unique(), "what it kept is copied");
        assert_eq!((request.path.as_str(), request.host.as_ref().map(Host::as_str)), (parts[0], Some(parts[1])));
        assert_eq!(request.headers.get(USER_AGENT).map(HeaderValue::as_bytes), Some(parts[2].as_bytes()));
        assert_eq!(request.headers.len(), 1);
    }

    #[test]
    fn a_value_that_no_library_sends_is_not_kept() {
        let mut request =
            Request::get(MetadataPath::parse(&"/".parse().expect("a target")).expect("a path"), Query::default());
        request.headers.insert(USER_AGENT, "x".repeat(15_000).parse().expect("a value"));
        request.headers.insert(X_GOOG_API_CLIENT, "gl-go/1.24".parse().expect("a value"));
        request.detach();
        assert_eq!(request.headers.keys().collect::<Vec<_>>(), [&X_GOOG_API_CLIENT]);
    }
}
