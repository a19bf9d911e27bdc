//! [`Settings`]: the start configuration of a fake Google.

use super::{Authority, Jwks};

/// The start configuration of a fake Google. Accounts and bindings are set on the [`Handle`](super::Handle).
#[derive(Debug, Clone)]
pub struct Settings {
    /// The authority of the server's certificate. Default: [`Authority::USUAL`].
    pub authority: Authority,
    /// The pools that are known to STS.
    pub pools: Vec<Pool>,
    /// Keys that sign service account tokens. Default: none.
    pub jwks: Jwks,
}

impl Settings {
    /// The defaults, with one pool.
    pub fn new(pool: Pool) -> Self {
        Self { authority: Authority::USUAL, pools: vec![pool], jwks: Jwks::default() }
    }
}

/// A workload identity pool with one cluster or provider, and conditions for the service account tokens that it accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// The `audience` of requests.
    pub(super) audience: String,
    /// The accepted values of `aud` in service account tokens.
    pub(super) token_audiences: Vec<String>,
    /// The `iss` of service account tokens.
    pub(super) issuer: String,
}

impl Pool {
    /// A GKE cluster in a pool such as `PROJECT.svc.id.goog`. The tokens' audience is the pool, their issuer the
    /// cluster's URI.
    pub fn gke(pool: &str, cluster_uri: &str) -> Self {
        Self {
            audience: format!("identitynamespace:{pool}:{cluster_uri}"),
            token_audiences: vec![pool.to_owned()],
            issuer: cluster_uri.to_owned(),
        }
    }

    /// A provider with the name `//iam.googleapis.com/projects/N/locations/global/workloadIdentityPools/P/providers/X`.
    /// The tokens' audience is that name, or the URL with `https:` before it.
    pub fn provider(name: &str, issuer: &str) -> Self {
        Self {
            audience: name.to_owned(),
            token_audiences: vec![name.to_owned(), format!("https:{name}")],
            issuer: issuer.to_owned(),
        }
    }

    /// The same pool for tokens of another issuer: an API server with another issuer URL.
    #[must_use]
    pub fn issued_by(self, issuer: &str) -> Self {
        Self { issuer: issuer.to_owned(), ..self }
    }
}
