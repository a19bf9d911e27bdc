//! [`reach`]: opens a connection step by step, as [`connector`](super::secure::connector) does, and returns the step
//! that fails.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use rustls::pki_types::ServerName;
use tokio::net::lookup_host;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tower::{BoxError, Service};

use super::certificate::{BadCertificate, TlsFailure};
use super::dial::{host, port};
use super::secure::{CaError, ThroughProxy, tls};

/// Maximum time of each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(3);

/// Reason why a server cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// The file of authorities cannot be used.
    #[error("the file of authorities cannot be used: {0}")]
    Authorities(#[from] CaError),
    /// The name of the server, or of the proxy, is unknown.
    #[error("the name {host} has no address: {error}")]
    Name {
        host: String,
        /// The resolver's error.
        error: io::Error,
    },
    /// Nothing accepts a connection.
    #[error("nobody accepts connections at {address}: {error}")]
    Closed {
        /// Host and port.
        address: String,
        error: BoxError,
    },
    /// The HTTP proxy of the environment does not connect.
    #[error("the HTTP proxy {proxy} does not connect to {address}: {error}")]
    Proxy {
        /// Host and port of the proxy.
        proxy: String,
        /// Host and port of the server.
        address: String,
        error: BoxError,
    },
    /// The server's certificate was issued by an authority that is not trusted.
    #[error("the certificate that {host} shows is of an authority that is not trusted here")]
    Untrusted {
        /// The server's name.
        host: String,
    },
    /// TLS fails for another reason.
    #[error("TLS with {host} fails: {error}")]
    Tls {
        /// The server's name.
        host: String,
        error: io::Error,
    },
}

/// Opens a connection to the server of a URL and closes it, within 9 s. Returns host and port of the proxy in between, if
/// the environment names one.
///
/// # Panics
///
/// Outside a runtime.
pub async fn reach(url: &Uri, ca: Option<&Path>) -> Result<Option<String>, Unreachable> {
    let tls = tls(ca)?;
    let mut connector = ThroughProxy::from_env();
    let is_secure = url.scheme() == Some(&Scheme::HTTPS);
    let proxy = connector.proxy(url).map(|proxy| proxy.uri().clone());
    let first = proxy.as_ref().unwrap_or(url);
    let (address, proxy) = (address(url), proxy.as_ref().map(self::address));
    find(first).await?;
    let stream = match within(connector.call(url.clone())).await {
        Ok(stream) => stream.into_inner(),
        Err(error) => {
            return Err(match proxy {
                Some(proxy) => Unreachable::Proxy { proxy, address, error },
                None => Unreachable::Closed { address, error: root_cause(&*error) },
            });
        }
    };
    if is_secure {
        let host = host(url);
        let failed = |error: io::Error| match TlsFailure::find(&error) {
            Some(TlsFailure::Certificate(BadCertificate::Untrusted)) => {
                Unreachable::Untrusted { host: host.to_owned() }
            }
            _ => Unreachable::Tls { host: host.to_owned(), error },
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|error| failed(io::Error::other(error)))?;
        let handshake = TlsConnector::from(Arc::new(tls)).connect(name, stream);
        within(async { handshake.await.map_err(BoxError::from) }).await.map_err(|error| failed(into_io(error)))?;
    }
    Ok(proxy)
}

/// Resolves the name in a URL.
async fn find(url: &Uri) -> Result<(), Unreachable> {
    let (host, nothing) = (host(url), || io::Error::new(io::ErrorKind::NotFound, "no address found"));
    let found = within(async { Ok(lookup_host((host, port(url))).await?.next().ok_or_else(nothing)?) }).await;
    found.map(drop).map_err(|error| Unreachable::Name { host: host.to_owned(), error: into_io(error) })
}

async fn within<T>(step: impl Future<Output = Result<T, BoxError>>) -> Result<T, BoxError> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", STEP_TIMEOUT.as_secs()));
    timeout(STEP_TIMEOUT, step).await.unwrap_or_else(|_| Err(late().into()))
}

fn into_io(error: BoxError) -> io::Error {
    error.downcast::<io::Error>().map_or_else(io::Error::other, |error| *error)
}

/// The connector's own error only names the step.
fn root_cause(error: &(dyn Error + Send + Sync + 'static)) -> BoxError {
    let innermost = std::iter::successors(error.source(), |error| (*error).source()).last();
    innermost.map_or_else(|| error.to_string(), ToString::to_string).into()
}

/// Host and port.
fn address(url: &Uri) -> String {
    format!("{}:{}", url.host().unwrap_or_default(), port(url))
}
