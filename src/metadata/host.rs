//! [`Host`]: the host name of a request, and which names are allowed.
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

/// Names of the metadata server, and the machine's own. Google's page names the first and third; the second is what
/// short-name clients send (arrow's `object_store`), the last is for a person with `curl`.
const WELL_KNOWN: [&str; 4] = ["metadata.google.internal", "metadata", "metadata.goog", "localhost"];

/// What nearly every client sends, to the letter; client libraries have it built in.
static USUAL: [HeaderValue; 2] =
    [HeaderValue::from_static("metadata.google.internal"), HeaderValue::from_static("169.254.169.254")];

/// An allowed authority: host and optional port, as sent. It is forwarded to the upstream, which builds the
/// `Location` of its redirects from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host(HeaderValue);

/// Names under which operators' pages are asked for: from the node itself, and through `kubectl port-forward`. A scraper and a
/// kubelet send the address that they connect to.
const OF_OPERATORS: [&str; 1] = ["localhost"];

/// The host names that a listener accepts, in addition to all IP addresses.
#[derive(Debug, Clone)]
pub struct AllowedHosts {
    /// Let in without being read.
    usual: &'static [HeaderValue],
    well_known: &'static [&'static str],
    /// Without final dots.
    added: Vec<Box<str>>,
}

/// Those of the listener for pods, and no more.
impl Default for AllowedHosts {
    fn default() -> Self {
        Self::with([])
    }
}

/// Why an authority was not allowed.
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
    /// Moves it out of the buffer that the request was read into.
    pub(super) fn detach(&mut self) {
        if let Ok(copy) = HeaderValue::from_bytes(self.0.as_bytes()) {
            self.0 = copy;
        }
    }

    /// As the client sent it.
    pub fn as_str(&self) -> &str {
        self.0.to_str().expect("what was let in is ASCII")
    }

    /// As the upstream is sent it.
    pub fn as_header(&self) -> &HeaderValue {
        &self.0
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl AllowedHosts {
    /// The well-known names and these; case and a final dot do not matter.
    pub fn with(added: impl IntoIterator<Item = String>) -> Self {
        Self::besides(&USUAL, &WELL_KNOWN, added)
    }

    /// `localhost` and these, for the listener for operators.
    pub fn of_operators(added: impl IntoIterator<Item = String>) -> Self {
        Self::besides(&[], &OF_OPERATORS, added)
    }

    fn besides(
        usual: &'static [HeaderValue],
        well_known: &'static [&'static str],
        added: impl IntoIterator<Item = String>,
    ) -> Self {
        Self { usual, well_known, added: added.into_iter().map(|name| name.trim_end_matches('.').into()).collect() }
    }

    /// Judges the authority of an absolute target.
    pub fn admit_authority(&self, authority: &Authority) -> Result<Host, HostError> {
        self.admit(&HeaderValue::from_str(authority.as_str()).map_err(|_| HostError::Malformed)?)
    }

    /// Judges the value of a `Host` header.
    pub fn admit(&self, value: &HeaderValue) -> Result<Host, HostError> {
        if let Some(usual) = self.usual.iter().find(|usual| *usual == value) {
            return Ok(Host(usual.clone()));
        }
        let authority = value.to_str().map_err(|_| HostError::Malformed)?;
        let (host, _) = host_and_port(authority).ok_or(HostError::Malformed)?;
        if is_ip_literal(host) || self.names(host) {
            Ok(Host(value.clone()))
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

/// The host of an authority, with the brackets of IPv6, and its port. Nothing if there is more to it: a port that is no
/// port, or user information, which has no place in a `Host` (`169.254.169.254@evil` names evil).
pub(crate) fn host_and_port(authority: &str) -> Option<(&str, Option<u16>)> {
    let host_ends = match authority.as_bytes() {
        [b'[', address @ ..] => {
            let ends = address.iter().position(|byte| !is_of_address(*byte));
            ends.filter(|end| address[*end] == b']')? + "[]".len()
        }
        name => name.iter().position(|byte| !OF_NAME[usize::from(*byte)]).unwrap_or(name.len()),
    };
    let (host, port) = authority.split_at(host_ends);
    let port = match port.strip_prefix(':') {
        Some(digits) if digits.bytes().all(|digit| digit.is_ascii_digit()) => Some(digits.parse().ok()?),
        None if port.is_empty() => None,
        _ => return None,
    };
    (!host.is_empty()).then_some((host, port))
}

/// What RFC 3986, section 3.2.2, lets a name consist of, but for escapes.
const OF_NAME: [bool; 256] = letters_digits_and(b"-._~!$&'()*+,;=");

/// What an address of IPv6 is written with.
fn is_of_address(byte: u8) -> bool {
    byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.')
}

/// Dotted quads and bracketed IPv6 only; `::ffff:a9fe:a9fe` is another spelling of an IPv4 address, not an address.
fn is_ip_literal(host: &str) -> bool {
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let address = match bracketed {
        Some(v6) => v6.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        // Names begin with a letter for the most part, and those need not be tried.
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
    fn the_servers_names_and_every_address_are_let_in() {
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
    fn operators_come_by_address_by_localhost_and_by_what_was_added() {
        let hosts = AllowedHosts::of_operators(["node-1.example".to_owned()]);
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
    fn other_names_and_other_spellings_of_an_address_are_not() {
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
    fn what_is_no_authority_is_malformed() {
        let hosts = AllowedHosts::default();
        for host in [
            "",
            "169.254.169.254:80@evil",
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
