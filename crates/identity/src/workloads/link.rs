//! [`Link`]: the Google identity of a Kubernetes service account, from its annotations.

use std::sync::Arc;

use serde::Serialize;

use crate::cluster::Annotations;
use crate::text::{is_made_of, texts};

/// Maximum length of an e-mail, in bytes. A name has at most 30 characters, a project 30 and a domain before it.
const MAX_EMAIL: usize = 254;

/// Maximum number of delegates in a chain. The API has no documented limit; real chains have one or two.
const MAX_DELEGATES: usize = 16;

/// Maximum length of a quota project, in bytes: the ID of a project with its domain.
const MAX_PROJECT: usize = 128;

/// Domains of Google accounts that do not belong to a project.
const COMMON_DOMAINS: [&str; 2] = ["appspot.gserviceaccount.com", "developer.gserviceaccount.com"];

/// Suffix of the domain of a project's accounts, in every universe.
const PROJECT_DOMAIN: &str = ".iam.gserviceaccount.com";

/// The Google identity of a Kubernetes service account.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Link {
    /// The Google service account that it acts as. Without one, it acts as itself.
    pub google_account: Option<GoogleAccount>,
    /// The accounts through which it acts as that one, in order. Usually none.
    pub delegates: Box<[GoogleAccount]>,
    /// The project charged for IAM calls, in place of that of the Google account.
    pub quota_project: Option<QuotaProject>,
    /// Whether pods see its principal in place of an e-mail.
    pub principal_as_email: bool,
}

/// The e-mail of a Google service account. It needs no escaping in a URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct GoogleAccount(Arc<str>);

/// The ID or number of a Google project. It needs no escaping in a header.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct QuotaProject(Arc<str>);

/// An annotation that cannot be used. The text is sent to pods; the first text is Google's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
pub enum Malformed {
    /// Not the e-mail of a Google service account.
    #[error(
        "Annotated service account must be in format of '[SA-NAME]@[PROJECT-ID].iam.gserviceaccount.com', \
         '[SA_NAME]@appspot.gserviceaccount.com' or '[SA_NAME]@developer.gserviceaccount.com'"
    )]
    GoogleAccount,
    /// Not a list of such e-mails.
    #[error(
        "The annotation iam.gke.io/gcp-service-account-delegates must be a JSON list of at most {MAX_DELEGATES} Google \
         service accounts"
    )]
    Delegates,
    /// Not the ID or number of a project.
    #[error("The annotation iam.gke.io/credential-quota-project must be the ID or number of a Google project")]
    QuotaProject,
}

impl Link {
    /// Parses annotations.
    pub fn parse(annotations: &Annotations) -> Result<Self, Malformed> {
        let Annotations { google_account, delegates, quota_project, principal_as_email } = annotations;
        let account = |email| GoogleAccount::parse(email).ok_or(Malformed::GoogleAccount);
        let project = |project| QuotaProject::parse(project).ok_or(Malformed::QuotaProject);
        Ok(Self {
            google_account: given(google_account.as_deref()).map(account).transpose()?,
            delegates: given(delegates.as_deref()).map(parse_delegates).transpose()?.unwrap_or_default(),
            quota_project: given(quota_project.as_deref()).map(project).transpose()?,
            principal_as_email: principal_as_email.as_deref() == Some("true"),
        })
    }
}

fn given(annotation: Option<&str>) -> Option<&str> {
    annotation.filter(|annotation| !annotation.is_empty())
}

fn parse_delegates(list: &str) -> Result<Box<[GoogleAccount]>, Malformed> {
    let names: Vec<String> = serde_json::from_str(list).map_err(|_| Malformed::Delegates)?;
    if names.len() > MAX_DELEGATES {
        return Err(Malformed::Delegates);
    }
    // A name may also have the form that IAM's API takes.
    let account = |name: &String| {
        GoogleAccount::parse(name.strip_prefix("projects/-/serviceAccounts/").unwrap_or(name))
            .ok_or(Malformed::Delegates)
    };
    names.iter().map(account).collect()
}

impl GoogleAccount {
    /// Parses an e-mail of any universe.
    pub fn parse(email: &str) -> Option<Self> {
        let (name, domain) = email.split_once('@')?;
        let is_common = COMMON_DOMAINS.contains(&domain);
        let is_projects = || domain.strip_suffix(PROJECT_DOMAIN).is_some_and(is_subdomain);
        let is_valid = email.len() <= MAX_EMAIL && is_local_part(name) && (is_common || is_projects());
        is_valid.then(|| Self(email.into()))
    }

    /// Its project. The whole e-mail where that does not name it.
    pub(crate) fn project(&self) -> &str {
        let domain = self.0.split_once('@').map_or("", |(_, domain)| domain);
        domain.strip_suffix(PROJECT_DOMAIN).unwrap_or(&self.0)
    }
}

impl QuotaProject {
    fn parse(project: &str) -> Option<Self> {
        let is_valid = project.len() <= MAX_PROJECT && is_made_of(project, b"-.:");
        is_valid.then(|| Self(project.into()))
    }
}

/// Names begin with a letter or, for Google's own accounts, a digit.
fn is_local_part(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphanumeric()) && is_made_of(name, b"-._")
}

fn is_subdomain(domain: &str) -> bool {
    domain.split('.').all(|label| is_made_of(label, b"-"))
}

texts!(GoogleAccount, QuotaProject);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e_mails_of_every_universe_are_google_accounts_and_nothing_else_is() {
        for email in [
            "app@shop-123.iam.gserviceaccount.com",
            "app@shop.example.com.iam.gserviceaccount.com",
            "x@p.eu0.iam.gserviceaccount.com",
            "shop-123@appspot.gserviceaccount.com",
            "1234-compute@developer.gserviceaccount.com",
        ] {
            assert_eq!(GoogleAccount::parse(email).map(|account| account.to_string()).as_deref(), Some(email));
        }
        for email in [
            "",
            "app",
            "app@",
            "@shop.iam.gserviceaccount.com",
            "app@iam.gserviceaccount.com",
            "app@.iam.gserviceaccount.com",
            "app@a..b.iam.gserviceaccount.com",
            "app@shop.iam.gserviceaccount.com.evil.com",
            "app@gmail.com",
            "a/b@shop.iam.gserviceaccount.com",
            "a:b@shop.iam.gserviceaccount.com",
            "a@b@shop.iam.gserviceaccount.com",
            "a@shop/x.iam.gserviceaccount.com",
            "-a@shop.iam.gserviceaccount.com",
            "App@shop.iam.gserviceaccount.com",
            "a@shop.iam.gserviceaccount.com ",
            &format!("{}@shop.iam.gserviceaccount.com", "a".repeat(254)),
        ] {
            assert_eq!(GoogleAccount::parse(email), None, "{email}");
        }
    }

    #[test]
    fn annotations_make_a_link() {
        assert_eq!(Link::parse(&Annotations::default()), Ok(Link::default()));
        let [google_account, delegates, quota_project] = [(); 3].map(|()| Some(String::new()));
        let empty = Annotations { google_account, delegates, quota_project, principal_as_email: None };
        assert_eq!(Link::parse(&empty), Ok(Link::default()));
        let link = Link::parse(&Annotations {
            google_account: Some("app@shop.iam.gserviceaccount.com".to_owned()),
            delegates: Some(
                r#"["projects/-/serviceAccounts/a@b.iam.gserviceaccount.com", "c@d.iam.gserviceaccount.com"]"#
                    .to_owned(),
            ),
            quota_project: Some("example.com:billing-1".to_owned()),
            principal_as_email: Some("true".to_owned()),
        })
        .expect("a link");
        assert_eq!(link.google_account.as_ref().map(GoogleAccount::as_str), Some("app@shop.iam.gserviceaccount.com"));
        let delegates: Vec<_> = link.delegates.iter().map(GoogleAccount::as_str).collect();
        assert_eq!(delegates, ["a@b.iam.gserviceaccount.com", "c@d.iam.gserviceaccount.com"]);
        assert_eq!(link.quota_project.as_ref().map(QuotaProject::as_str), Some("example.com:billing-1"));
        assert!(link.principal_as_email);
    }

    #[test]
    fn a_malformed_annotation_is_named() {
        let many = format!("[{}]", vec![r#""a@b.iam.gserviceaccount.com""#; MAX_DELEGATES + 1].join(","));
        let google_account = |value: &str| Annotations { google_account: Some(value.into()), ..Annotations::default() };
        let delegates = |value: &str| Annotations { delegates: Some(value.into()), ..Annotations::default() };
        let quota_project = |value: &str| Annotations { quota_project: Some(value.into()), ..Annotations::default() };
        for (annotations, malformed) in [
            (google_account("app"), Malformed::GoogleAccount),
            (delegates("a@b.iam.gserviceaccount.com"), Malformed::Delegates),
            (delegates(r#"["a"]"#), Malformed::Delegates),
            (delegates(&many), Malformed::Delegates),
            (quota_project("a\r\nb"), Malformed::QuotaProject),
            // The replacement for an annotation that is too long.
            (google_account("[longer than 4096 bytes]"), Malformed::GoogleAccount),
            (delegates("[longer than 4096 bytes]"), Malformed::Delegates),
            (quota_project("[longer than 4096 bytes]"), Malformed::QuotaProject),
        ] {
            assert_eq!(Link::parse(&annotations), Err(malformed), "{annotations:?}");
        }
        let text = Malformed::GoogleAccount.to_string();
        assert!(text.starts_with("Annotated service account must be in format of '[SA-NAME]@[PROJECT-ID]."), "{text}");
    }
}
