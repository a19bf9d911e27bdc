//! [`Target`]: the address of a plain HTTP server.

use std::fmt;

use http::Uri;

use super::host::host_and_port;

/// The address of the upstream. Only plain HTTP is supported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    host: Box<str>,
    port: u16,
}

/// An invalid upstream URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected http://HOST or http://HOST:PORT, without a path")]
pub struct TargetError;

impl Target {
    /// Parses an upstream URL.
    pub fn parse(url: &str) -> Result<Self, TargetError> {
        let uri: Uri = url.parse().map_err(|_| TargetError)?;
        let authority = uri.authority().ok_or(TargetError)?;
        let (host, port) = host_and_port(authority.as_str()).ok_or(TargetError)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = port.unwrap_or(80);
        let is_plain = uri.scheme_str() == Some("http") && matches!(uri.path(), "" | "/") && uri.query().is_none();
        if !is_plain || host.is_empty() || port == 0 {
            return Err(TargetError);
        }
        Ok(Self { host: host.into(), port })
    }

    /// Host and port to connect to.
    pub fn address(&self) -> (&str, u16) {
        (&self.host, self.port)
    }
}

/// Formats an authority, without the default port 80.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = &self.host;
        match (host.contains(':'), self.port) {
            (false, 80) => write!(f, "{host}"),
            (false, port) => write!(f, "{host}:{port}"),
            (true, 80) => write!(f, "[{host}]"),
            (true, port) => write!(f, "[{host}]:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_a_plain_http_authority() {
        for (url, shown) in [
            ("http://169.254.169.254", "169.254.169.254"),
            ("http://169.254.169.254/", "169.254.169.254"),
            ("http://169.254.169.254:80", "169.254.169.254"),
            ("http://127.0.0.1:8080", "127.0.0.1:8080"),
            ("http://[fd20:ce::254]", "[fd20:ce::254]"),
            ("http://[::1]:8080", "[::1]:8080"),
            ("http://metadata.google.internal", "metadata.google.internal"),
        ] {
            assert_eq!(Target::parse(url).map(|target| target.to_string()).as_deref(), Ok(shown), "{url}");
        }
        for url in [
            "",
            "169.254.169.254",
            "https://169.254.169.254",
            "http://",
            "http://a/b",
            "http://a/?b",
            "http://a:0",
            "http://a:b",
            "http://u@a",
            "/x",
        ] {
            assert_eq!(Target::parse(url), Err(TargetError), "{url}");
        }
    }
}
