//! [`Endpoint`]: the method that a request's path calls.

use percent_encoding::percent_decode_str;

/// The path of the Security Token Service.
const STS_PATH: &str = "/v1/token";

/// The path before an e-mail in IAM. Google accepts no project there either.
const ACCOUNTS: &str = "/v1/projects/-/serviceAccounts/";

/// A method of one of the two services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// STS: a federated token for a service account token.
    Sts,
    /// IAM's `generateAccessToken`.
    AccessToken,
    /// IAM's `generateIdToken`.
    IdToken,
}

impl Endpoint {
    /// The method for a path, with the e-mail in it. `None` for an unknown path.
    pub(super) fn of(path: &str) -> Option<(Self, Option<String>)> {
        let path = percent_decode_str(path).decode_utf8().ok()?;
        if path == STS_PATH {
            return Some((Self::Sts, None));
        }
        let (email, method) = path.strip_prefix(ACCOUNTS)?.split_once(':')?;
        let method = match method {
            "generateAccessToken" => Self::AccessToken,
            "generateIdToken" => Self::IdToken,
            _ => return None,
        };
        Some((method, Some(email.to_owned())))
    }

    /// The permission on a Google service account that the method requires.
    pub(super) fn permission(self) -> Option<&'static str> {
        match self {
            Self::Sts => None,
            Self::AccessToken => Some("iam.serviceAccounts.getAccessToken"),
            Self::IdToken => Some("iam.serviceAccounts.getOpenIdToken"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_googles_reference() {
        let account = Some("a@p.iam".to_owned());
        assert_eq!(Endpoint::of("/v1/token"), Some((Endpoint::Sts, None)));
        let path = "/v1/projects/-/serviceAccounts/a@p.iam:generateAccessToken";
        assert_eq!(Endpoint::of(path), Some((Endpoint::AccessToken, account.clone())));
        let path = "/v1/projects/-/serviceAccounts/a%40p.iam:generateIdToken";
        assert_eq!(Endpoint::of(path), Some((Endpoint::IdToken, account)));
        for path in ["/", "/v1/token/", "/v1/projects/p/serviceAccounts/a@p.iam:generateIdToken", "/v1/projects/-/x"] {
            assert_eq!(Endpoint::of(path), None, "{path}");
        }
        assert_eq!(Endpoint::of("/v1/projects/-/serviceAccounts/a@p.iam:signBlob"), None);
    }
}
