//! [`Endpoint`]: the method that a request's path calls.

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
}
