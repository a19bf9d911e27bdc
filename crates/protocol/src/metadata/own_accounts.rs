//! [`Asked`] and [`Shown`]: the directory `service-accounts/` of a pod that has one account.

use std::collections::BTreeMap;

use serde::Serialize;

use super::query::Param;
use super::{MetadataPath, Query, ServiceAccount};

/// The scopes that are shown. The rights of the account depend on IAM, not on scopes.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// The alias of a pod's own account.
const DEFAULT: &str = "default";

/// The entries of an account's directory, in order.
const LISTING: &str = "aliases\nemail\nidentity\nscopes\ntoken\n";

/// The format of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// JSON, as the server writes it by default.
    Json,
    /// Lines of `path value`.
    Text,
}

/// The resource that a path below `service-accounts` names.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// The directory of all accounts.
    Accounts {
        /// Whether the path ends with a slash.
        has_slash: bool,
    },
    /// The directory of an account.
    Account {
        /// The name as requested.
        name: ServiceAccount,
        /// Whether the path ends with a slash.
        has_slash: bool,
    },
    /// A value of an account.
    Value {
        /// The name as requested.
        name: ServiceAccount,
        value: Value,
    },
    /// No existing resource.
    Nothing,
}

/// The values of an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum Value {
    /// The other names of the account.
    Aliases,
    /// The account's name at Google.
    Email,
    /// The uses that its tokens permit.
    Scopes,
    /// Answered elsewhere.
    Token,
    /// Answered elsewhere.
    Identity,
}

impl Asked {
    /// Parses a path of v1. `None` if it is not below `service-accounts`.
    pub fn parse(path: &MetadataPath) -> Option<Self> {
        let below = path.as_str().strip_prefix("/computeMetadata/v1/instance/service-accounts")?;
        let Some(below) = below.strip_prefix('/') else {
            return below.is_empty().then_some(Self::Accounts { has_slash: false });
        };
        let (name, rest) = ServiceAccount::split(below);
        let account = || ServiceAccount::from_name(name);
        Some(match (name, rest) {
            ("", _) => Self::Accounts { has_slash: true },
            (_, "" | "/") => Self::Account { name: account(), has_slash: !rest.is_empty() },
            (_, value) => match value[1..].parse() {
                Ok(value) => Self::Value { name: account(), value },
                Err(_) => Self::Nothing,
            },
        })
    }

    /// The account that the path names, if any.
    pub fn account(&self) -> Option<&ServiceAccount> {
        match self {
            Self::Account { name, .. } | Self::Value { name, .. } => Some(name),
            Self::Accounts { .. } | Self::Nothing => None,
        }
    }
}

/// The response for a directory or value.
#[derive(Debug, PartialEq, Eq)]
pub enum Shown {
    Text(String),
    Json(String),
    /// A directory without its final slash.
    Redirect,
    /// There is no such resource.
    Missing,
    /// A listing has only one format.
    NoFormat,
    /// A token has no such format.
    NoSuchFormat,
    /// A value never changes, and a token cannot be waited for.
    NoChange,
    /// The request is answered elsewhere.
    Elsewhere,
}

/// An account, as the server presents it.
#[derive(Debug, Serialize)]
struct Account<'a> {
    aliases: [&'a str; 1],
    email: &'a str,
    scopes: [&'a str; 1],
}

/// The response to a request about an account with this e-mail.
pub fn show(asked: &Asked, query: &Query, email: &str) -> Shown {
    let format = query.value(Param::Alt);
    let is_recursive = query.is_recursive();
    let account = Account::of(email);
    match asked {
        Asked::Nothing => Shown::Missing,
        _ if query.waits_for_change() => Shown::NoChange,
        Asked::Value { value: Value::Token, .. } if !matches!(format, None | Some("json" | "text")) => {
            Shown::NoSuchFormat
        }
        Asked::Value { value: Value::Token | Value::Identity, .. } => Shown::Elsewhere,
        Asked::Accounts { has_slash: false } | Asked::Account { has_slash: false, .. } => Shown::Redirect,
        Asked::Accounts { .. } | Asked::Account { .. } if !is_recursive && format.is_some() => Shown::NoFormat,
        Asked::Accounts { .. } if !is_recursive => {
            Shown::Text(accounts(email).map(|name| format!("{name}/\n")).concat())
        }
        Asked::Account { .. } if !is_recursive => Shown::Text(LISTING.to_owned()),
        Asked::Accounts { .. } if is_text(format) => Shown::Text(lines(email, "")),
        Asked::Account { .. } if is_text(format) => Shown::Text(account.lines("")),
        Asked::Accounts { .. } => Shown::Json(tree(email)),
        Asked::Account { .. } => json(&account),
        Asked::Value { value, .. } => account.value(*value, format == Some("json")),
    }
}

/// The entry of a pod's accounts in the tree of the directory above them. `email` is `None` if the pod has no account.
/// `path` is the path of the accounts, relative to the tree.
pub fn entry(email: Option<&str>, format: Format, path: &str) -> String {
    match format {
        Format::Json => format!("\"serviceAccounts\":{}", email.map_or_else(|| "{}".to_owned(), tree)),
        Format::Text => email.map(|email| lines(email, &format!("{path}/"))).unwrap_or_default(),
    }
}

/// The directory of all accounts, as JSON.
fn tree(email: &str) -> String {
    let account = Account::of(email);
    to_json(&BTreeMap::from(accounts(email).map(|name| (name, &account))))
}

/// The directory of all accounts, as lines that begin with `path`.
fn lines(email: &str, path: &str) -> String {
    let account = Account::of(email);
    accounts(email).map(|name| account.lines(&format!("{path}{name}/"))).concat()
}

/// The names of the account's directories, sorted.
fn accounts(email: &str) -> [&str; 2] {
    let mut names = [DEFAULT, email];
    names.sort_unstable();
    names
}

/// Whether a recursive read is answered as text. The default is JSON.
fn is_text(format: Option<&str>) -> bool {
    format == Some("text")
}

impl<'a> Account<'a> {
    fn of(email: &'a str) -> Self {
        Self { aliases: [DEFAULT], email, scopes: [SCOPE] }
    }

    /// All values, as lines of `path value`.
    fn lines(&self, path: &str) -> String {
        let Self { aliases: [alias], email, scopes: [scope] } = self;
        format!("{path}aliases {alias}\n{path}email {email}\n{path}scopes {scope}\n")
    }

    fn value(&self, value: Value, is_json: bool) -> Shown {
        let lines = |items: &[&str; 1]| if is_json { json(items) } else { Shown::Text(format!("{}\n", items[0])) };
        match value {
            Value::Aliases => lines(&self.aliases),
            Value::Scopes => lines(&self.scopes),
            Value::Email if is_json => json(&self.email),
            Value::Email => Shown::Text(self.email.to_owned()),
            Value::Token | Value::Identity => Shown::Elsewhere,
        }
    }
}

fn json(value: &impl Serialize) -> Shown {
    Shown::Json(to_json(value))
}

fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("texts only")
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMAIL: &str = "my-project1.svc.id.goog";
    const ROOT: &str = "/computeMetadata/v1/instance/service-accounts";

    fn shown(below: &str) -> Shown {
        let target: http::uri::PathAndQuery = format!("{ROOT}{below}").parse().expect("a target");
        let path = MetadataPath::parse(&target).expect("a path");
        let query = Query::parse(target.query()).expect("a query");
        show(&Asked::parse(&path).expect("an account's"), &query, EMAIL)
    }

    #[test]
    fn the_tree_is_that_of_the_server() {
        let account = r#"{"aliases":["default"],"email":"my-project1.svc.id.goog","scopes":["https://www.googleapis.com/auth/cloud-platform"]}"#;
        let scope = "https://www.googleapis.com/auth/cloud-platform";
        let text = |text: &str| Shown::Text(text.to_owned());
        for (below, expected) in [
            ("", Shown::Redirect),
            ("/", text("default/\nmy-project1.svc.id.goog/\n")),
            ("/?recursive=true", Shown::Json(format!(r#"{{"default":{account},"{EMAIL}":{account}}}"#))),
            (
                "/?recursive=true&alt=text",
                text(
                    &["default/", "my-project1.svc.id.goog/"]
                        .map(|path| format!("{path}aliases default\n{path}email {EMAIL}\n{path}scopes {scope}\n"))
                        .concat(),
                ),
            ),
            ("/?alt=json", Shown::NoFormat),
            ("/default", Shown::Redirect),
            ("/default/", text("aliases\nemail\nidentity\nscopes\ntoken\n")),
            ("/default/?alt=text", Shown::NoFormat),
            ("/default/?recursive=true", Shown::Json(account.to_owned())),
            ("/default/?recursive=true&alt=json", Shown::Json(account.to_owned())),
            ("/default/?recursive=true&alt=text", text(&format!("aliases default\nemail {EMAIL}\nscopes {scope}\n"))),
            ("/default/email", text(EMAIL)),
            ("/default/email?recursive=true", text(EMAIL)),
            ("/default/email?alt=json", Shown::Json(format!("\"{EMAIL}\""))),
            ("/default/aliases", text("default\n")),
            ("/default/aliases?alt=json", Shown::Json(r#"["default"]"#.to_owned())),
            ("/default/scopes", text(&format!("{scope}\n"))),
            ("/default/scopes?alt=json", Shown::Json(format!("[\"{scope}\"]"))),
            ("/default/token", Shown::Elsewhere),
            ("/default/token?alt=text", Shown::Elsewhere),
            ("/default/token?alt=xml", Shown::NoSuchFormat),
            ("/default/token?wait_for_change=true", Shown::NoChange),
            ("/default/identity?audience=a&wait_for_change=true", Shown::NoChange),
            ("/default/identity?audience=a&alt=json", Shown::Elsewhere),
            ("/default/identity?audience=a", Shown::Elsewhere),
            ("/default/email?wait_for_change=true", Shown::NoChange),
            ("/default/email/", Shown::Missing),
            ("/default/token/", Shown::Missing),
            ("/default/nothing", Shown::Missing),
        ] {
            assert_eq!(shown(below), expected, "{below}");
        }
    }

    #[test]
    fn only_what_is_below_is_parsed() {
        for path in ["/computeMetadata/v1/instance/", "/computeMetadata/v1/instance/service-accountsx", "/"] {
            assert_eq!(
                Asked::parse(&MetadataPath::parse(&path.parse().expect("a target")).expect("a path")),
                None,
                "{path}"
            );
        }
    }

    #[test]
    fn accounts_are_sorted() {
        assert_eq!(accounts("a@b"), ["a@b", "default"]);
        assert_eq!(accounts("z@b"), ["default", "z@b"]);
    }
}
