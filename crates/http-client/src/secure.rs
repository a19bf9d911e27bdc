//! [`SecureConnector`]: connects by TLS, and through the proxy that the environment names.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use http::uri::Scheme;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tower::{BoxError, Service};

use super::dial::Dial;

/// Connects by TLS to `https` URLs, and by TCP to others.
pub type SecureConnector = HttpsConnector<ThroughProxy>;

/// Reason why a file of certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// The file cannot be read, or is not PEM.
    #[error("{}: {error}", .file.display())]
    Unreadable { file: PathBuf, error: pem::Error },
    /// The file has no certificate, or one that is not of an authority.
    #[error("{}: {reason}", .file.display())]
    Invalid { file: PathBuf, reason: String },
}

/// A connector that trusts the authorities in this file, or else the public ones. Proxies are those of `HTTPS_PROXY`,
/// `ALL_PROXY` and `NO_PROXY`, as they are now.
pub fn connector(ca: Option<&Path>) -> Result<SecureConnector, CaError> {
    tls(ca).map(with_tls)
}

/// A connector that trusts the authorities in this text. `file` is its path, for errors.
pub(super) fn connector_for(file: &Path, text: &[u8]) -> Result<SecureConnector, CaError> {
    parse_roots(file, text).map(trusting).map(with_tls)
}

fn with_tls(tls: ClientConfig) -> SecureConnector {
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
    builder.wrap_connector(ThroughProxy::from_env())
}

/// TLS that trusts the authorities in this file, or else the public ones.
pub(super) fn tls(ca: Option<&Path>) -> Result<ClientConfig, CaError> {
    let roots = match ca {
        Some(file) => parse_roots(file, &read(file)?)?,
        None => webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect(),
    };
    Ok(trusting(roots))
}

fn trusting(roots: RootCertStore) -> ClientConfig {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// Reads a file of certificates.
pub(super) fn read(file: &Path) -> Result<Vec<u8>, CaError> {
    fs::read(file).map_err(|error| CaError::Unreadable { file: file.to_owned(), error: pem::Error::Io(error) })
}

fn parse_roots(file: &Path, text: &[u8]) -> Result<RootCertStore, CaError> {
    let unreadable = |error| CaError::Unreadable { file: file.to_owned(), error };
    let invalid = |reason: String| CaError::Invalid { file: file.to_owned(), reason };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(text) {
        roots.add(certificate.map_err(unreadable)?).map_err(|error| invalid(error.to_string()))?;
    }
    if roots.is_empty() { Err(invalid("it has no certificate".to_owned())) } else { Ok(roots) }
}

/// Connects by TCP, through a proxy where the environment names one.
#[derive(Clone)]
pub struct ThroughProxy {
    matcher: Arc<Matcher>,
}

/// The proxy's URL may have a password.
impl fmt::Debug for ThroughProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThroughProxy").finish_non_exhaustive()
    }
}

impl ThroughProxy {
    /// Uses the proxies that the environment names now.
    pub(super) fn from_env() -> Self {
        Self::new(Matcher::from_env())
    }

    fn new(matcher: Matcher) -> Self {
        Self { matcher: Arc::new(matcher) }
    }

    /// The proxy for a URL. Plain HTTP is only for servers on this machine, to which there is none.
    pub(super) fn proxy(&self, destination: &Uri) -> Option<Intercept> {
        let is_secure = destination.scheme() == Some(&Scheme::HTTPS);
        is_secure.then(|| self.matcher.intercept(destination)).flatten()
    }
}

impl Service<Uri> for ThroughProxy {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Dial.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, destination: Uri) -> Self::Future {
        let Some(proxy) = self.proxy(&destination) else {
            let connecting = Dial.call(destination);
            return Box::pin(async move { connecting.await.map_err(Into::into) });
        };
        if proxy.uri().scheme() != Some(&Scheme::HTTP) {
            return Box::pin(async { Err("only proxies with http:// URLs are supported (HTTPS_PROXY)".into()) });
        }
        let mut tunnel = Tunnel::new(proxy.uri().clone(), Dial);
        if let Some(credentials) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(credentials.clone());
        }
        Box::pin(async move {
            tunnel.call(destination).await.map_err(|error| format!("the proxy (HTTPS_PROXY) failed: {error}").into())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(proxy: &str, destination: &str) -> Option<String> {
        let matcher = Matcher::builder().all(proxy).no("internal.example,10.0.0.0/8").build();
        let destination = destination.parse().expect("a URL");
        ThroughProxy::new(matcher).proxy(&destination).map(|proxy| proxy.uri().to_string())
    }

    #[test]
    fn https_goes_through_the_proxy_unless_it_is_excepted() {
        let proxy = "http://user:secret@proxy:3128";
        assert_eq!(through(proxy, "https://sts.googleapis.com").as_deref(), Some("http://proxy:3128/"));
        for direct in ["https://sts.internal.example", "https://10.1.2.3", "http://127.0.0.1:80"] {
            assert_eq!(through(proxy, direct), None, "{direct}");
        }
        let connector = ThroughProxy::new(Matcher::builder().all(proxy).build());
        assert!(!format!("{connector:?}").contains("secret"));
    }

    #[test]
    fn a_file_without_authorities_is_refused() {
        let file = std::env::temp_dir().join(format!("google-ca-{}", std::process::id()));
        for text in ["", "nothing", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            std::fs::write(&file, text).expect("written");
            let error = connector(Some(&file)).expect_err(text).to_string();
            assert!(error.starts_with(&file.display().to_string()), "{error}");
        }
        std::fs::remove_file(&file).expect("removed");
        assert!(matches!(connector(Some(&file)), Err(CaError::Unreadable { .. })));
        assert!(connector(None).is_ok());
    }
}
