//! [`Federation`]: the trust between a cluster and Google, and the servers that exchange tokens.

use std::fmt;
use std::path::PathBuf;

use http::Uri;

use crate::text::{is_made_of, texts};

/// Suffix of the name of a cluster's workload identity pool, in every universe.
pub(super) const POOL_SUFFIX: &str = ".svc.id.goog";

/// The trust between a cluster and Google, and the servers that exchange tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Federation {
    pub trust: Trust,
    /// The audience of Kubernetes tokens. `None` for the one that Google expects by default.
    pub token_audience: Option<Box<str>>,
    /// Google's Security Token Service.
    pub sts: Endpoint,
    /// Google's IAM Service Account Credentials API.
    pub iam: Endpoint,
    /// File with the certificates of the authorities that are trusted in place of the public ones, in PEM.
    pub google_ca: Option<PathBuf>,
    /// The accounts whose tokens are fetched before they are requested.
    pub prefetch: Prefetch,
    /// Whether tokens are bound to the certificates that pods send.
    pub bound_tokens: bool,
}

/// The accounts whose tokens are fetched before they are requested.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, strum::Display, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Prefetch {
    /// Accounts that are linked to a Google account, or have requested tokens.
    #[default]
    Linked,
    /// All accounts.
    All,
    /// No accounts.
    None,
}

/// The issuer that Google trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// A GKE cluster, by its project's pool.
    Pool(WorkloadPool, ClusterUri),
    /// Any cluster, by a provider of a pool.
    Provider(Provider),
}

/// The workload identity pool of a project's clusters, `PROJECT.svc.id.goog`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadPool(Box<str>);

/// The URI by which Google knows a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterUri(Box<str>);

/// The resource name of a provider,
/// `//iam.googleapis.com/projects/N/locations/global/workloadIdentityPools/POOL/providers/P`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provider {
    name: Box<str>,
    project: Box<str>,
    location: Box<str>,
    pool: Box<str>,
    id: Box<str>,
}

/// The URL of a server, without a path and without a final slash. Plain HTTP only to this machine, because tokens are sent there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint(Box<str>);

impl Federation {
    /// The audience requested from the Security Token Service.
    pub fn sts_audience(&self) -> String {
        match &self.trust {
            Trust::Pool(pool, cluster) => format!("identitynamespace:{}:{}", pool.0, cluster.0),
            Trust::Provider(provider) => provider.name.to_string(),
        }
    }

    /// The audience of Kubernetes tokens: Google's default, unless one is set.
    pub fn token_audience(&self) -> &str {
        self.token_audience.as_deref().unwrap_or(match &self.trust {
            Trust::Pool(pool, _) => &pool.0,
            Trust::Provider(provider) => &provider.name,
        })
    }

    /// The name of the pool, which stands for an account without a Google account.
    pub fn pool(&self) -> &str {
        match &self.trust {
            Trust::Pool(pool, _) => &pool.0,
            Trust::Provider(provider) => &provider.pool,
        }
    }
}

impl WorkloadPool {
    /// Parses `PROJECT.svc.id.goog`. The project may have a domain or a universe.
    pub fn parse(name: &str) -> Option<Self> {
        let project = name.strip_suffix(POOL_SUFFIX)?;
        let begins_with_letter = project.starts_with(|first: char| first.is_ascii_lowercase());
        let is_valid = begins_with_letter && name.len() <= 253 && is_made_of(name, b"-.:");
        is_valid.then(|| Self(name.into()))
    }

    /// The name without its suffix: the ID of the pool's project.
    pub fn project(&self) -> &str {
        self.0.strip_suffix(POOL_SUFFIX).unwrap_or(&self.0)
    }
}

impl ClusterUri {
    /// Parses a URL such as `https://container.googleapis.com/v1/projects/P/locations/L/clusters/C`.
    pub fn parse(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let is_valid = uri.scheme_str() == Some("https") && uri.path().len() > 1 && uri.query().is_none();
        is_valid.then(|| Self(url.into()))
    }
}

impl Provider {
    /// Parses a resource name.
    pub fn parse(name: &str) -> Option<Self> {
        let parts: Vec<&str> = name.strip_prefix("//")?.split('/').collect();
        let [host, "projects", project, "locations", location, "workloadIdentityPools", pool, "providers", provider] =
            parts[..]
        else {
            return None;
        };
        let names = [host, project, location, pool, provider];
        let is_valid = host.starts_with("iam.") && names.into_iter().all(|name| is_made_of(name, b"-."));
        is_valid.then(|| Self {
            name: name.into(),
            project: project.into(),
            location: location.into(),
            pool: pool.into(),
            id: provider.into(),
        })
    }

    /// The number of its project.
    pub fn project(&self) -> &str {
        &self.project
    }

    /// The location of its pool. Google has them in `global` only.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// The ID of its pool.
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// Its own ID, which is unique in its pool.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl Endpoint {
    /// Parses `https://HOST`, with or without a port.
    pub fn parse(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
        let is_here = || host == "localhost" || host.parse().is_ok_and(|addr: std::net::IpAddr| addr.is_loopback());
        let is_safe = match uri.scheme_str()? {
            "https" => true,
            "http" => is_here(),
            _ => false,
        };
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        let authority = uri.authority()?.as_str();
        let is_valid = is_safe && is_bare && !host.is_empty() && !authority.contains('@');
        is_valid.then(|| Self(url.trim_end_matches('/').into()))
    }
}

texts!(WorkloadPool, ClusterUri, Endpoint);

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const CLUSTER: &str =
        "https://container.googleapis.com/v1/projects/shop/locations/europe-west3/clusters/one";
    pub(crate) const PROVIDER: &str =
        "//iam.googleapis.com/projects/123/locations/global/workloadIdentityPools/my-pool/providers/cluster-1";

    pub(crate) fn federation(trust: Trust) -> Federation {
        let endpoint = |url| Endpoint::parse(url).expect("a URL");
        let (sts, iam) = (endpoint("https://sts.googleapis.com"), endpoint("https://iamcredentials.googleapis.com/"));
        Federation {
            trust,
            token_audience: None,
            sts,
            iam,
            google_ca: None,
            prefetch: Prefetch::default(),
            bound_tokens: false,
        }
    }

    /// A cluster's pool in this project.
    pub(crate) fn gke(project: &str) -> Federation {
        let pool = WorkloadPool::parse(&format!("{project}.svc.id.goog")).expect("a pool");
        federation(Trust::Pool(pool, ClusterUri::parse(CLUSTER).expect("a URI")))
    }

    /// The provider of a cluster elsewhere.
    pub(crate) fn elsewhere() -> Federation {
        federation(Trust::Provider(Provider::parse(PROVIDER).expect("a provider")))
    }

    #[test]
    fn a_pool_and_a_provider_have_their_audiences() {
        let pool = WorkloadPool::parse("shop.svc.id.goog").expect("a pool");
        let of_pool = federation(Trust::Pool(pool, ClusterUri::parse(CLUSTER).expect("a URI")));
        assert_eq!(of_pool.sts_audience(), format!("identitynamespace:shop.svc.id.goog:{CLUSTER}"));
        assert_eq!((of_pool.token_audience(), of_pool.pool()), ("shop.svc.id.goog", "shop.svc.id.goog"));
        let of_provider = elsewhere();
        assert_eq!((of_provider.sts_audience().as_str(), of_provider.token_audience()), (PROVIDER, PROVIDER));
        assert_eq!(of_provider.pool(), "my-pool");
        let own = Federation { token_audience: Some("mine".into()), ..of_provider };
        assert_eq!((own.sts_audience().as_str(), own.token_audience()), (PROVIDER, "mine"));
    }

    #[test]
    fn names_of_every_universe_are_accepted_and_others_are_not() {
        for name in ["shop.svc.id.goog", "example.com:shop.svc.id.goog", "p.eu0.svc.id.goog"] {
            assert!(WorkloadPool::parse(name).is_some(), "{name}");
        }
        for name in
            ["", "shop", ".svc.id.goog", "svc.id.goog", "Shop.svc.id.goog", "a b.svc.id.goog", "shop.svc.id.goog/x"]
        {
            assert_eq!(WorkloadPool::parse(name), None, "{name}");
        }
        for name in
            ["", "/", CLUSTER, &PROVIDER[2..], &PROVIDER[..60], &format!("{PROVIDER}/x"), &PROVIDER.replace("123", "")]
        {
            assert_eq!(Provider::parse(name), None, "{name}");
        }
        for url in ["", "container.googleapis.com/x", "http://container.googleapis.com/x", "https://a", "https://a/b?c"]
        {
            assert_eq!(ClusterUri::parse(url), None, "{url}");
        }
    }

    #[test]
    fn tokens_are_sent_in_clear_to_this_machine_only() {
        for url in [
            "https://sts.googleapis.com",
            "https://10.0.0.1:8443",
            "http://127.0.0.1:80",
            "http://[::1]:8080",
            "http://localhost",
        ] {
            assert_eq!(Endpoint::parse(url).map(|it| it.to_string()).as_deref(), Some(url), "{url}");
        }
        assert_eq!(Endpoint::parse("https://a/").map(|it| it.to_string()).as_deref(), Some("https://a"));
        for url in [
            "",
            "sts.googleapis.com",
            "http://sts.googleapis.com",
            "http://127.0.0.1.evil.com",
            "https://a/b",
            "https://a?b",
            "https://u@a",
            "ftp://127.0.0.1",
        ] {
            assert_eq!(Endpoint::parse(url), None, "{url}");
        }
    }
}
