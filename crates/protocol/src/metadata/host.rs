//! [`Host`]: the host name of a request. [`AllowedHosts`]: the names that are allowed.
//!
//! With DNS rebinding an attacker can make a browser or library send a request to the metadata address under
//! the attacker's own name. Only `Host` shows this, so only known names are allowed. An address cannot be
//! rebound, so any IP literal is allowed. Spellings that only some resolvers accept (decimal, octal,
//! hexadecimal, IPv4 inside IPv6) count as names.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::HeaderValue;
use http::uri::Authority;

use super::path::letters_digits_and;

/// Names of the metadata server, and a name of the machine itself. Google documents the first and the third. Clients
/// that use a short name send the second (arrow's `object_store`). The last is for manual use of `curl`.
const WELL_KNOWN: [&str; 4] = ["metadata.google.internal", "metadata", "metadata.goog", "localhost"];

/// The values that nearly all clients send, byte for byte; client libraries hard-code them.
static USUAL: [HeaderValue; 2] =
    [HeaderValue::from_static("metadata.google.internal"), HeaderValue::from_static("169.254.169.254")];

/// An allowed authority: host and optional port, as sent. It is forwarded to the upstream, which builds the
/// `Location` of its redirects from it.
///
/// The default is the name that client libraries use, for requests without one: HTTP/1.0 needs none, and the proxy's own have
/// none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Host(
    /// `None` is the first of [`USUAL`].
    Option<HeaderValue>,
);

/// Names for access to the admin listener from the node itself, and through `kubectl port-forward`. Scrapers and the
/// kubelet send the address that they connect to.
const ADMIN_NAMES: [&str; 1] = ["localhost"];

/// The host names that a listener accepts, in addition to all IP addresses.
#[derive(Debug, Clone)]
pub struct AllowedHosts {
    /// Accepted without parsing.
    usual: &'static [HeaderValue],
    well_known: &'static [&'static str],
    /// Without trailing dots.
    added: Vec<Box<str>>,
}

/// The names that the listener for pods accepts without configuration.
impl Default for AllowedHosts {
    fn default() -> Self {
        Self::with([])
    }
}

/// Reason why an authority was not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// Not `host` or `host:port`.
    #[error("it is not a host name or address with an optional port")]
    Malformed,
    /// A name that is not on the list.
    #[error("{0:?} is not a name of the metadata server")]
    NotAllowed(String),
}

impl Host {
    /// Copies the value, so that it no longer shares the buffer that the request was read into.
    pub(super) fn detach(&mut self) {
        let copied = |value: HeaderValue| HeaderValue::from_bytes(value.as_bytes()).unwrap_or(value);
        self.0 = self.0.take().map(copied);
    }

    /// The name and port as sent by the client.
    pub fn as_str(&self) -> &str {
        self.as_header().to_str().expect("an allowed host is ASCII")
    }

    /// The value of the upstream request's `Host` header.
    pub fn as_header(&self) -> &HeaderValue {
        self.0.as_ref().unwrap_or(&USUAL[0])
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl AllowedHosts {
    /// The well-known names of the metadata server and these names. Case and a trailing dot do not matter.
    pub fn with(added: impl IntoIterator<Item = String>) -> Self {
        Self::new(&USUAL, &WELL_KNOWN, added)
    }

    /// `localhost` and these names, for the admin listener.
    pub fn for_admin(added: impl IntoIterator<Item = String>) -> Self {
        Self::new(&[], &ADMIN_NAMES, added)
    }

    fn new(
        usual: &'static [HeaderValue],
        well_known: &'static [&'static str],
        added: impl IntoIterator<Item = String>,
    ) -> Self {
        Self { usual, well_known, added: added.into_iter().map(|name| name.trim_end_matches('.').into()).collect() }
    }

    /// Checks the authority of an absolute target.
    pub fn admit_authority(&self, authority: &Authority) -> Result<Host, HostError> {
        self.admit(&HeaderValue::from_str(authority.as_str()).map_err(|_| HostError::Malformed)?)
    }

    /// Checks the value of a `Host` header.
    pub fn admit(&self, value: &HeaderValue) -> Result<Host, HostError> {
        if let Some((at, usual)) = self.usual.iter().enumerate().find(|(_, usual)| *usual == value) {
            return Ok(Host((at > 0).then(|| usual.clone())));
        }
        let authority = value.to_str().map_err(|_| HostError::Malformed)?;
        let (host, _) = host_and_port(authority).ok_or(HostError::Malformed)?;
        if is_ip_literal(host) || self.names(host) {
            Ok(Host(Some(value.clone())))
        } else {
            Err(HostError::NotAllowed(host.to_owned()))
        }
    }

    fn names(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        let added = self.added.iter().map(|name| &**name);
        self.well_known.iter().copied().chain(added).any(|name| name.eq_ignore_ascii_case(host))
    }
}

/// The host of an authority, with the brackets of IPv6, and its port. `None` if the port is invalid, or if there is
/// user information, which is not allowed in `Host` (`169.254.169.254@evil` names evil).
pub fn host_and_port(authority: &str) -> Option<(&str, Option<u16>)> {
    let host_ends = match authority.as_bytes() {
        [b'[', address @ ..] => {
            let ends = address.iter().position(|byte| !is_ipv6_byte(*byte));
            ends.filter(|end| address[*end] == b']')? + "[]".len()
        }
        name => name.iter().position(|byte| !IS_NAME_BYTE[usize::from(*byte)]).unwrap_or(name.len()),
    };
    let (host, port) = authority.split_at(host_ends);
    let port = match port.strip_prefix(':') {
        // Not more digits than a port has: zeros before it would make a long header.
        Some(digits) if digits.len() <= 5 && digits.bytes().all(|digit| digit.is_ascii_digit()) => {
            Some(digits.parse().ok()?)
        }
        None if port.is_empty() => None,
        _ => return None,
    };
    (!host.is_empty()).then_some((host, port))
}

/// The bytes that RFC 3986, section 3.2.2, allows in a name, without escapes.
const IS_NAME_BYTE: [bool; 256] = letters_digits_and(b"-._~!$&'()*+,;=");

/// Whether an IPv6 address may contain the byte.
fn is_ipv6_byte(byte: u8) -> bool {
    byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.')
}

/// Whether the host is a dotted quad or bracketed IPv6. `::ffff:a9fe:a9fe` is not: it is another spelling of an IPv4
/// address.
fn is_ip_literal(host: &str) -> bool {
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let address = match bracketed {
        Some(v6) => v6.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        // Most names start with a letter; skip the parser for them.
        None if host.starts_with(|first: char| first.is_ascii_digit()) => host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        None => None,
    };
    address.is_some_and(|address| address.to_canonical() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(hosts: &AllowedHosts, host: &str) -> Result<Host, HostError> {
        hosts.admit(&HeaderValue::from_str(host).expect("a header can carry it"))
    }

    #[test]
    fn names_of_the_server_and_ip_addresses_are_allowed() {
        let hosts = AllowedHosts::with(["proxy.example".to_owned()]);
        for host in [
            "metadata.google.internal",
            "metadata.google.internal.",
            "METADATA.google.internal:80",
            "metadata",
            "metadata.goog",
            "localhost:8080",
            "169.254.169.254",
            "10.0.0.7:988",
            "[fd20:ce::254]",
            "[::1]:988",
            "Proxy.Example",
            "proxy.example.:80",
        ] {
            assert_eq!(admitted(&hosts, host).map(|host| host.to_string()).as_deref(), Ok(host));
        }
    }

    #[test]
    fn the_admin_listener_allows_addresses_localhost_and_added_names() {
        let hosts = AllowedHosts::for_admin(["node-1.example".to_owned()]);
        for host in ["localhost", "LocalHost.:989", "127.0.0.1:989", "[::1]:989", "10.128.0.2", "node-1.example:989"] {
            assert!(admitted(&hosts, host).is_ok(), "{host}");
        }
        for host in
            ["metadata.google.internal", "metadata", "evil.example", "node-1.example.evil.example", "2130706433"]
        {
            assert!(matches!(admitted(&hosts, host), Err(HostError::NotAllowed(_))), "{host}");
        }
    }

    #[test]
    fn other_names_and_other_spellings_of_an_address_are_rejected() {
        let hosts = AllowedHosts::default();
        for host in [
            "evil.example",
            "metadata.google.internal.evil.example",
            "0xa9fea9fe",
            "2852039166",
            "0251.0376.0251.0376",
            "169.254.43518",
            "[::ffff:a9fe:a9fe]",
            "[::ffff:169.254.169.254]",
            "proxy.example",
        ] {
            assert!(matches!(admitted(&hosts, host), Err(HostError::NotAllowed(_))), "{host}");
        }
    }

    #[test]
    fn an_invalid_authority_is_malformed() {
        let hosts = AllowedHosts::default();
        for host in [
            "",
            "169.254.169.254:80@evil",
            "169.254.169.254:000080",
            "evil@169.254.169.254",
            "metadata:99999",
            "metadata:",
            "metadata:+80",
            "[::1",
            "[::1]x",
            "[::1x:80",
            "[::g]",
            "[fe80::1%25eth0]",
            "m\u{e9}tadata",
            "%6detadata",
            "a b",
            "metadata/x",
            "http://metadata",
        ] {
            assert_eq!(admitted(&hosts, host), Err(HostError::Malformed), "{host:?}");
        }
    }
}
