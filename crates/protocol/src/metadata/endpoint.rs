//! [`Endpoint`]: classifies a path. The only place that matches on path text.

use super::service_account::PRINCIPAL;
use super::{MetadataPath, ServiceAccount};

/// The kind of resource that a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// `/`, which Go's and gsutil's libraries request without any header to detect GCE.
    Root,
    /// `/computeMetadata` and `/computeMetadata/`, above the API versions.
    Versions,
    /// An account's access token.
    Token(ServiceAccount),
    /// An account's identity token.
    Identity(ServiceAccount),
    /// Any other path under `instance/service-accounts/`, including that directory.
    ServiceAccounts,
    /// Any other path of v1 that ends in `/`.
    Directory,
    /// Any other path of v1.
    Leaf,
    /// `/computeMetadata/v1beta1` and `/0.1/meta-data`, which once answered without a header.
    Legacy,
    /// Any other path: an unknown API version.
    Unknown,
}

impl Endpoint {
    /// Classifies a path. Nearly all are in v1, which is checked first.
    pub fn from_path(path: &MetadataPath) -> Self {
        if let Some(below) = path.as_str().strip_prefix("/computeMetadata/v1/") {
            return Self::from_v1(path, below);
        }
        let mut segments = path.segments();
        match (segments.next(), segments.next()) {
            (None, _) => Self::Root,
            (Some("computeMetadata"), None) => Self::Versions,
            (Some("computeMetadata"), Some("v1")) => Self::Leaf,
            (Some("computeMetadata"), Some("v1beta1")) | (Some("0.1"), None | Some("meta-data")) => Self::Legacy,
            _ => Self::Unknown,
        }
    }

    fn from_v1(path: &MetadataPath, below: &str) -> Self {
        let Some(below) =
            below.strip_prefix("instance/service-accounts").filter(|rest| matches!(rest.as_bytes(), [] | [b'/', ..]))
        else {
            return if path.is_directory() { Self::Directory } else { Self::Leaf };
        };
        // `token/` is not a token: the server answers 404 to a leaf with a trailing slash.
        let below = &below[1.min(below.len())..];
        let account_ends = below.bytes().position(|byte| byte == b'/').unwrap_or(below.len());
        match below.split_at(account_ends) {
            (account, "/token") => Self::Token(ServiceAccount::from_segment(account)),
            (account, "/identity") => Self::Identity(ServiceAccount::from_segment(account)),
            (PRINCIPAL, _) => Self::of_principal(below),
            _ => Self::ServiceAccounts,
        }
    }

    /// The same for an account that a principal names. Apart, so that others cost nothing more.
    #[cold]
    fn of_principal(below: &str) -> Self {
        match ServiceAccount::split(below) {
            (account, "/token") => Self::Token(ServiceAccount::from_name(account)),
            (account, "/identity") => Self::Identity(ServiceAccount::from_name(account)),
            _ => Self::ServiceAccounts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(path: &str) -> Endpoint {
        Endpoint::from_path(&MetadataPath::parse(&path.parse().expect("a target")).expect("a path"))
    }

    #[test]
    fn paths_are_classified_as_the_server_does() {
        let email = || ServiceAccount::Email("a@b.c".into());
        for (path, endpoint) in [
            ("/", Endpoint::Root),
            ("/computeMetadata", Endpoint::Versions),
            ("/computeMetadata/", Endpoint::Versions),
            ("/computeMetadata/v1", Endpoint::Leaf),
            ("/computeMetadata/v1/", Endpoint::Directory),
            ("/computeMetadata/v1/instance/", Endpoint::Directory),
            ("/computeMetadata/v1/instance/id", Endpoint::Leaf),
            ("/computeMetadata/v1/instance/service-accounts/", Endpoint::ServiceAccounts),
            ("/computeMetadata/v1/instance/service-accounts/default/", Endpoint::ServiceAccounts),
            ("/computeMetadata/v1/instance/service-accounts/default/token", Endpoint::Token(ServiceAccount::Default)),
            ("/computeMetadata/v1/instance/service-accounts/a@b.c/token", Endpoint::Token(email())),
            ("/computeMetadata/v1/instance/service-accounts/a%40b.c/identity", Endpoint::Identity(email())),
            ("/computeMetadata/v1/instance/service-accounts/default/token/", Endpoint::ServiceAccounts),
            ("/computeMetadata/v1/instance/service-accounts/default/token/x", Endpoint::ServiceAccounts),
            ("/computeMetadata/v1/service-accounts/default/token", Endpoint::Leaf),
            ("/computeMetadata/v1beta1/project/project-id", Endpoint::Legacy),
            ("/0.1", Endpoint::Legacy),
            ("/0.1/meta-data/attributes/kube-env", Endpoint::Legacy),
            ("/0.1/user-data", Endpoint::Unknown),
            ("/computeMetadata/v2/", Endpoint::Unknown),
            ("/COMPUTEMETADATA/V1/instance/id", Endpoint::Unknown),
            ("/0.2/", Endpoint::Unknown),
        ] {
            assert_eq!(self::endpoint(path), endpoint, "{path}");
        }
    }
}
