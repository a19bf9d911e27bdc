//! [`ServiceAccount`]: the service account that a path names.

use strum::Display;

/// The name after `service-accounts/`: the alias `default`, an account's e-mail, or the principal that is shown in place of
/// one. The alias and the e-mail of the instance's own account name the same account.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Display)]
pub enum ServiceAccount {
    /// The alias for the instance's own account.
    #[strum(to_string = "default")]
    Default,
    /// An e-mail, as sent by the client, or a principal.
    #[strum(transparent)]
    Email(Box<str>),
}

/// The first segment of a path that names a principal.
pub(super) const PRINCIPAL: &str = "principal:";

impl ServiceAccount {
    /// Parses the name of an account. A principal gets its `//` back, of which a path
    /// keeps one slash.
    pub fn from_name(name: &str) -> Self {
        match name.strip_prefix(PRINCIPAL) {
            Some(rest) => Self::Email(format!("{PRINCIPAL}//{}", rest.trim_start_matches('/')).into()),
            None => Self::from_segment(name),
        }
    }

    /// Parses a name of one path segment. `default` is case-sensitive, as is every metadata path.
    pub(super) fn from_segment(segment: &str) -> Self {
        match segment {
            "default" => Self::Default,
            email => Self::Email(email.into()),
        }
    }

    /// Splits a canonical path below `service-accounts/` after the name of the account. The rest is empty or begins with `/`.
    ///
    /// The name is one segment, unless it is a principal:
    /// `principal:/iam.googleapis.com/projects/NUMBER/locations/global/workloadIdentityPools/POOL/subject/SUBJECT`. Its
    /// subject is one segment, or `ns/NAMESPACE/sa/NAME`.
    pub(super) fn split(below: &str) -> (&str, &str) {
        let end = below.bytes().position(|byte| byte == b'/').unwrap_or(below.len());
        match below.split_at(end) {
            (PRINCIPAL, _) => {
                let segments = if below.split('/').nth(9) == Some("ns") { 13 } else { 10 };
                let end = below.match_indices('/').nth(segments - 1).map_or(below.len(), |(end, _)| end);
                below.split_at(end)
            }
            one_segment => one_segment,
        }
    }
}
