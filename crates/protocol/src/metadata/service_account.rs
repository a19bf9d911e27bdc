//! [`ServiceAccount`]: the service account that a path names.

use std::fmt;

/// The segment after `service-accounts/`: the alias `default`, or an account's e-mail. The alias and the e-mail of the
/// instance's own account name the same account.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ServiceAccount {
    /// The alias for the instance's own account.
    Default,
    /// An e-mail, as sent by the client.
    Email(Box<str>),
}

impl ServiceAccount {
    /// Parses one path segment. `default` is case-sensitive, as is every metadata path.
    pub fn from_segment(segment: &str) -> Self {
        match segment {
            "default" => Self::Default,
            email => Self::Email(email.into()),
        }
    }
}

impl fmt::Display for ServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Email(email) => f.write_str(email),
        }
    }
}
