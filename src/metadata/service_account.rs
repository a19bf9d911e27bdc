//! [`ServiceAccount`]: which of the instance's accounts a path names.

use std::fmt;

/// The segment behind `service-accounts/`: the alias `default`, or the account's e-mail. Both name one account.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ServiceAccount {
    /// The alias of the instance's own account.
    Default,
    /// By e-mail, as sent.
    Email(Box<str>),
}

impl ServiceAccount {
    /// Reads one path segment. `default` is case-sensitive, as all of the tree is.
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
