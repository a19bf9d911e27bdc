//! [`Authority`]: signs the certificate of a fake Google.

use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

/// A certificate authority, and what it signed: a server's certificate for `localhost` and the addresses of loopback. They are
/// published, so they are worthless outside a fake Google, and valid until 2120. openssl wrote them.
#[derive(Debug, Clone, Copy)]
pub struct Authority {
    /// The authority's certificate, in PEM.
    pub pem: &'static str,
    server: &'static str,
    server_key: &'static [u8],
}

impl Authority {
    /// The one that a fake Google has by default.
    pub const USUAL: Self = Self {
        pem: include_str!("keys/authority-1.pem"),
        server: include_str!("keys/server-1.pem"),
        server_key: include_bytes!("keys/server-1.der"),
    };

    /// Another, which clients of the usual one do not trust.
    pub const ANOTHER: Self = Self {
        pem: include_str!("keys/authority-2.pem"),
        server: include_str!("keys/server-2.pem"),
        server_key: include_bytes!("keys/server-2.der"),
    };

    /// TLS with its server's certificate, and HTTP/1.1 in ALPN.
    pub(super) fn tls(self) -> ServerConfig {
        let certificate = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate in PEM");
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider's versions")
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate(self.server), certificate(self.pem)],
                PrivatePkcs8KeyDer::from(self.server_key).into(),
            )
            .expect("the certificate's key");
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config
    }
}
