//! [`Request`]: a parsed request. All layers behind `layers::classify` use it instead of an HTTP request.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::HeaderMap;
use serde::Deserialize;

use super::{BoundTo, CallingPod, Endpoint, Host, MetadataPath, Principal, Query, headers};

/// A parsed metadata request, without a body. A POST for a token is a GET with a certificate ([`Request::bound_to`]). Layers
/// pass it in a box, to avoid moving 300 bytes each time.
#[derive(Debug, Clone)]
pub struct Request {
    /// GET or HEAD.
    pub method: Method,
    /// The kind of resource.
    pub endpoint: Endpoint,
    /// The path that `endpoint` was derived from.
    pub path: MetadataPath,
    pub query: Query,
    /// The principal on whose behalf the request is answered.
    pub principal: Principal,
    /// The pod that sent the request, if pods have identities and it is not the node itself.
    pub pod: Option<Arc<CallingPod>>,
    /// The certificate that the requested token is bound to. Only a POST for a token has one.
    pub bound_to: Option<Box<BoundTo>>,
    /// The client's address. `None` for the proxy's own requests.
    pub peer: Option<SocketAddr>,
    /// The host name that the client used for the server.
    pub host: Host,
    /// All headers as received. `upstream::forward` selects those to forward.
    pub headers: HeaderMap,
}

impl Request {
    /// Whether its response may wait for the value to change. Token requests never wait: the server answers them with
    /// 400.
    pub fn hangs(&self) -> bool {
        self.query.waits_for_change() && !matches!(self.endpoint, Endpoint::Token(_) | Endpoint::Identity(_))
    }

    /// The client's IP address, which identifies the pod when resources are shared. `None` for the proxy's own requests.
    pub fn client(&self) -> Option<IpAddr> {
        self.peer.map(|peer| peer.ip().to_canonical())
    }

    /// Drops headers that are not forwarded and copies the rest. Call it before a request waits: its path and headers
    /// share the connection's read buffer of up to 16 KiB.
    pub fn detach(&mut self) {
        self.path = self.path.detached();
        self.headers = headers::copy_forwarded(&self.headers);
        self.host.detach();
    }

    /// A request that the proxy itself sends, for a path of its own.
    ///
    /// # Panics
    ///
    /// If the path is not canonical.
    pub fn own(endpoint: Endpoint, path: &str, query: Query, principal: Principal) -> Self {
        let target = path.parse().expect("the proxy's own paths are request targets");
        let path = MetadataPath::parse(&target).expect("the proxy's own paths are canonical");
        Self { endpoint, principal, ..Self::get(path, query) }
    }

    /// A GET without a client.
    pub fn get(path: MetadataPath, query: Query) -> Self {
        Self {
            method: Method::Get,
            endpoint: Endpoint::from_path(&path),
            path,
            query,
            principal: Principal::Node,
            pod: None,
            bound_to: None,
            peer: None,
            host: Host::default(),
            headers: HeaderMap::new(),
        }
    }
}

/// The methods of the metadata server that only read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "UPPERCASE")]
pub enum Method {
    /// Returns the value.
    Get,
    /// Returns only the headers.
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
        request.host = AllowedHosts::default().admit(&value(host)).expect("a name of the server");
        request.headers.insert(USER_AGENT, value(agent));
        request.headers.insert("x-filler", value(other));
        request
    }

    #[test]
    fn a_detached_request_does_not_share_the_read_buffer() {
        let parts = ["/computeMetadata/v1/instance/tags", "metadata:80", "an-agent/1.0", "filler"];
        let buffer = Bytes::from(parts.join("\n"));
        let mut request = from_buffer(&buffer, parts);
        assert!(!buffer.is_unique());
        request.detach();
        assert!(buffer.is_unique(), "all remaining parts are copies");
        assert_eq!((request.path.as_str(), request.host.as_str()), (parts[0], parts[1]));
        assert_eq!(request.headers.get(USER_AGENT).map(HeaderValue::as_bytes), Some(parts[2].as_bytes()));
        assert_eq!(request.headers.len(), 1);
    }

    #[test]
    fn a_detached_request_drops_oversized_headers() {
        let mut request =
            Request::get(MetadataPath::parse(&"/".parse().expect("a target")).expect("a path"), Query::default());
        request.headers.insert(USER_AGENT, "x".repeat(15_000).parse().expect("a value"));
        request.headers.insert(X_GOOG_API_CLIENT, "gl-go/1.24".parse().expect("a value"));
        request.detach();
        assert_eq!(request.headers.keys().collect::<Vec<_>>(), [&X_GOOG_API_CLIENT]);
    }
}
