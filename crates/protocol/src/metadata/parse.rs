//! [`Request::parse`]: parses a request head once, and refuses requests that could be read in more than one way.
//!
//! The proxy, `explain` and the tests all parse requests here, so they cannot disagree about what a request means.
//! The checks run from framing to meaning: an error about a missing header does not help a client whose framing is
//! broken.

use std::net::SocketAddr;

use http::request::Parts;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderName, Uri, Version};

use super::headers::{Lines, Signs};
use super::host::{AllowedHosts, HostError};
use super::path::PathError;
use super::query::QueryError;
use super::{BoundTo, Endpoint, Host, MetadataPath, Method, NotBound, Principal, Query, Request};

/// Maximum length of a request target, in bytes, as received and as sent upstream. The longest legitimate ones list a
/// token's scopes: Google has about 500 scopes of some 50 bytes each, and no client requests a third of them at once.
const MAX_TARGET_BYTES: usize = 8 * 1024;

/// Maximum number of bytes that one byte of a request target becomes when it is sent upstream: `%` and two digits.
const MAX_GROWTH: usize = 3;

/// Reason why a request was refused before the policy was consulted. The text is sent to the client.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RequestError {
    /// Not a request that HTTP/1.1 or this protocol allows.
    #[error("Bad request: {0}.")]
    Malformed(#[from] Malformed),
    /// A request target that is too long, as received or as it would be sent upstream.
    #[error("Refused: the percent-encoded request target is {bytes} bytes long; the limit is {limit} bytes.")]
    TargetTooLong {
        /// Its length in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Only GET and HEAD are allowed.
    #[error("Refused: the method {0} is not allowed; use GET or HEAD.")]
    Method(http::Method),
    /// A token is requested by POST, bound to a certificate of the client.
    #[error(
        "Not found: {0}; set GOOGLE_API_ENABLE_RUNTIME_BOUND_TOKEN=false in the pod, so that its client library uses GET."
    )]
    BoundToken(#[from] NotBound),
    /// A `Host` (or the authority of an absolute target) that is not allowed.
    #[error("Refused: {0}; use metadata.google.internal or 169.254.169.254, or allow the name with --allowed-host.")]
    Host(HostError),
    /// The request came through another proxy.
    #[error("Refused: requests with the header {0} are not allowed, because they were forwarded by another proxy.")]
    Forwarded(HeaderName),
    /// The header that shows that the client intends to call a metadata server is missing or wrong.
    #[error("Refused: the header `Metadata-Flavor: Google` is missing or has a different value.")]
    Flavor,
    /// A path that is refused or cannot exist.
    #[error("Refused: invalid path: {0}.")]
    Path(#[from] PathError),
    /// A query that could be read in two ways, or that no server accepts.
    #[error("Refused: invalid query: {0}.")]
    Query(#[from] QueryError),
}

/// Reason why no server could answer a request safely.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// HTTP/1.1 without exactly one `Host`, or HTTP/1.0 with several.
    #[error("exactly one Host header is required")]
    HostCount,
    /// A `Host` that is not an authority.
    #[error("the Host header is not a host name or address with an optional port")]
    Host,
    /// An absolute target of another scheme, or a target that is neither a path nor absolute.
    #[error("the request target must be a path, or an http:// URL of the metadata server")]
    Target,
    /// A body, which has no meaning here. It might contain another request.
    #[error("a metadata request must not have a body")]
    Body,
}

impl RequestError {
    /// A label from a fixed set, for metrics and logs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::TargetTooLong { .. } => "target_too_long",
            Self::Method(_) => "method",
            Self::BoundToken(_) => "bound_token",
            Self::Host(_) => "host",
            Self::Forwarded(_) => "forwarded",
            Self::Flavor => "flavor",
            Self::Path(_) => "path",
            Self::Query(_) => "query",
        }
    }
}

impl From<HostError> for RequestError {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Malformed => Malformed::Host.into(),
            HostError::NotAllowed(_) => Self::Host(error),
        }
    }
}

impl Request {
    /// Parses the head of a request from this peer. `hosts` are the names that the peer may use for the server.
    /// `has_body` is true if a body follows the head, unless it is known to be empty.
    pub fn parse(
        head: Parts,
        has_body: bool,
        peer: Option<SocketAddr>,
        hosts: &AllowedHosts,
    ) -> Result<Box<Self>, RequestError> {
        let method = method_of(&head)?;
        let signs = Signs::new(&head.headers);
        check_framing(&signs, has_body)?;
        let target = target_of(&head.uri)?;
        let path = MetadataPath::parse(target)?;
        let endpoint = Endpoint::from_path(&path);
        let is_ping = endpoint == Endpoint::Root && target.query().is_none_or(str::is_empty);
        let host = host_of(&signs, &head, hosts)?;
        if let Some(name) = signs.forwarded_by() {
            return Err(RequestError::Forwarded(name));
        }
        if !is_ping && !signs.has_flavor() {
            return Err(RequestError::Flavor);
        }
        let query = Query::parse(target.query())?;
        check_upstream_length(target, &path, &query)?;
        // The head does not identify the caller: `layers::classify` does, if pods have identities.
        let principal = Principal::Node;
        Ok(Box::new(Self {
            method,
            endpoint,
            path,
            query,
            principal,
            pod: None,
            bound_to: None,
            peer,
            host,
            headers: head.headers,
        }))
    }

    /// Parses the head of a request from this peer, whose body was read. A token requested by POST is bound to the certificate
    /// in the body; any other request with a body is refused.
    pub fn parse_posted(
        mut head: Parts,
        body: &[u8],
        peer: Option<SocketAddr>,
        hosts: &AllowedHosts,
    ) -> Result<Box<Self>, RequestError> {
        if head.method != http::Method::POST || !names_a_token(&head.uri) {
            return Self::parse(head, !body.is_empty(), peer, hosts);
        }
        head.method = http::Method::GET;
        let mut request = Self::parse(head, false, peer, hosts)?;
        if matches!(request.endpoint, Endpoint::Identity(_)) {
            return Err(NotBound::Identity.into());
        }
        request.bound_to = Some(Box::new(BoundTo::parse(body)?));
        Ok(request)
    }
}

fn method_of(head: &Parts) -> Result<Method, RequestError> {
    match head.method {
        http::Method::GET => Ok(Method::Get),
        http::Method::HEAD => Ok(Method::Head),
        http::Method::POST if names_a_token(&head.uri) => Err(NotBound::Off.into()),
        _ => Err(RequestError::Method(head.method.clone())),
    }
}

/// Whether a target is an account's access or identity token. Client libraries that have a certificate request a token
/// by POST, and take 404 as a sign of a server without bound tokens.
fn names_a_token(uri: &Uri) -> bool {
    let path = target_of(uri).ok().and_then(|target| MetadataPath::parse(target).ok());
    path.is_some_and(|path| matches!(Endpoint::from_path(&path), Endpoint::Token(_) | Endpoint::Identity(_)))
}

/// Refuses bodies, except a chunked one that the server has read and found empty. The connection is closed after a
/// request with another body, announced or not, except after a POST with a short one, which `method_of` has refused.
///
/// `Upgrade` is ignored, as RFC 9110, section 7.8 allows: Java's HTTP clients, among others, send it by default. It is not
/// forwarded, so the connection never changes its protocol.
fn check_framing(signs: &Signs<'_>, has_body: bool) -> Result<(), Malformed> {
    let may_be_empty = match signs.transfer_encoding {
        Lines::None => true,
        Lines::One(coding) => coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
        Lines::Several => false,
    };
    if has_body || !may_be_empty { Err(Malformed::Body) } else { Ok(()) }
}

fn target_of(uri: &Uri) -> Result<&PathAndQuery, RequestError> {
    let target = uri.path_and_query().ok_or(Malformed::Target)?;
    check_length(target.as_str().len())?;
    // `OPTIONS *` ends up here as well.
    if !target.as_str().starts_with('/') || uri.scheme().is_some_and(|scheme| *scheme != Scheme::HTTP) {
        return Err(Malformed::Target.into());
    }
    Ok(target)
}

/// Checks the length of the target as it would be sent upstream: percent-encoding can make it longer. Nearly all
/// targets are short enough in any encoding; these are not measured.
fn check_upstream_length(target: &PathAndQuery, path: &MetadataPath, query: &Query) -> Result<(), RequestError> {
    if target.as_str().len() <= MAX_TARGET_BYTES / MAX_GROWTH {
        return Ok(());
    }
    check_length(path.as_str().len() + query.encoded_len())
}

fn check_length(bytes: usize) -> Result<(), RequestError> {
    if bytes > MAX_TARGET_BYTES { Err(RequestError::TargetTooLong { bytes, limit: MAX_TARGET_BYTES }) } else { Ok(()) }
}

/// Checks the `Host` header and the authority of an absolute target. Both must be allowed; the authority of the target
/// takes precedence (RFC 9112, section 3.2.2). HTTP/1.0 has no `Host`. A browser, which DNS rebinding needs, always
/// sends one.
fn host_of(signs: &Signs<'_>, head: &Parts, hosts: &AllowedHosts) -> Result<Host, RequestError> {
    let in_header = match signs.host {
        Lines::One(value) => Some(hosts.admit(value)?),
        Lines::None if head.version == Version::HTTP_10 => None,
        _ => return Err(Malformed::HostCount.into()),
    };
    let in_target = head.uri.authority().map(|authority| hosts.admit_authority(authority)).transpose()?;
    Ok(in_target.or(in_header).unwrap_or_default())
}

#[cfg(test)]
mod tests;
