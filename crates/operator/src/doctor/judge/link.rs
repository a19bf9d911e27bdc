//! The account's annotations, and the token of its Google account.

use std::time::Duration;

use http::StatusCode;

use super::{no_answer, time};
use crate::doctor::commands;
use crate::doctor::patient::Patient;
use crate::doctor::report::{Finding, Step, Tried};
use identity::cluster::Annotations;
use identity::tokens::{NotGiven, Said};
use identity::workloads::{GoogleAccount, Link, Malformed};

/// The role that lets a Kubernetes account act as a Google account.
const USER: &str = "roles/iam.workloadIdentityUser";

const GOOGLE_ACCOUNT: &str = "iam.gke.io/gcp-service-account";

/// Judges the account's annotations. `member` is the account's own name in IAM.
pub(in crate::doctor) fn link(
    patient: &Patient,
    annotations: &Annotations,
    link: &Result<Link, Malformed>,
    member: &str,
) -> Finding {
    let tried = Step::Link.trying(format!("annotations of {}", patient.name()));
    let Patient { namespace, account, .. } = patient;
    let annotate = |name: &str, value: &str| {
        format!("kubectl annotate serviceaccount {account} --namespace={namespace} --overwrite {name}={value}")
    };
    match link {
        Ok(Link { google_account: Some(google), .. }) => tried.ok(format!("it acts as {google}")),
        Ok(_) => tried.ok(format!("it has no Google account and acts as itself: grant roles to {member}")),
        Err(malformed) => {
            let (name, value, example) = match malformed {
                Malformed::GoogleAccount => {
                    (GOOGLE_ACCOUNT, &annotations.google_account, "NAME@PROJECT.iam.gserviceaccount.com")
                }
                Malformed::Delegates => (
                    "iam.gke.io/gcp-service-account-delegates",
                    &annotations.delegates,
                    r#"'["NAME@PROJECT.iam.gserviceaccount.com"]'"#,
                ),
                Malformed::QuotaProject => {
                    ("iam.gke.io/credential-quota-project", &annotations.quota_project, "PROJECT")
                }
            };
            let value: String = value.as_deref().unwrap_or_default().chars().take(100).collect();
            tried
                .trouble(format!("the annotation {name} is malformed: {value:?}"))
                .saying(malformed.to_string())
                .running(annotate(name, example))
        }
    }
}

/// Judges the token of a Google account. `Ok` has its lifetime.
pub(in crate::doctor) fn impersonation(
    link: &Link,
    google: &GoogleAccount,
    member: &str,
    issued: Result<Duration, &NotGiven>,
) -> Finding {
    let tried = Step::Impersonation.trying(format!("access token of {google}"));
    let said = match issued {
        Ok(life) => return tried.ok(format!("issued, for {}", time(life))),
        Err(NotGiven::Failed(why)) => return no_answer(&tried, "the IAM Credentials API", why),
        Err(NotGiven::Throttled(after)) => {
            return tried
                .trouble("the quota of IAM is used up: 60,000 tokens in a minute for a project")
                .advising(format!("try again after {}", time(*after)));
        }
        Err(NotGiven::Refused(said)) => said,
    };
    refused(said, link, google, member, &tried).saying(said.to_string())
}

fn refused(said: &Said, link: &Link, google: &GoogleAccount, member: &str, tried: &Tried) -> Finding {
    match (said.status, said.code.as_str()) {
        (_, "SERVICE_DISABLED") => tried
            .trouble("the IAM Service Account Credentials API is not enabled in the project")
            .running(commands::enable("iamcredentials.googleapis.com", &said.consumer)),
        (_, "USER_PROJECT_DENIED") => {
            let project = link.quota_project.as_ref().map_or("PROJECT", |project| project.as_str());
            tried.trouble(format!("the quota project {project} may not be charged by this account")).running(format!(
                "gcloud projects add-iam-policy-binding {project} --role=roles/serviceusage.serviceUsageConsumer --member={}",
                commands::quoted(member)
            ))
        }
        (StatusCode::FORBIDDEN, _) if link.delegates.is_empty() => tried
            .trouble(format!("this account has no binding that lets it act as {google}"))
            .running(commands::bind(google, member, USER))
            .advising(MEANT),
        (StatusCode::FORBIDDEN, _) => chain(link, google, member, tried),
        (StatusCode::NOT_FOUND, _) => {
            let delegates = if link.delegates.is_empty() { "" } else { ", or one of its delegates is missing" };
            let finding = tried
                .trouble(format!("there is no Google account {google}{delegates}"))
                .advising("create it, or correct the annotation iam.gke.io/gcp-service-account");
            match commands::create(google) {
                Some(command) => finding.running(command),
                None => finding,
            }
        }
        (StatusCode::UNAUTHORIZED, _) => tried
            .trouble("IAM does not accept the federated token")
            .advising("--sts-endpoint and --iam-endpoint must be of the same universe"),
        _ => tried.trouble("IAM refuses").advising("see its words above"),
    }
}

/// Anyone who may annotate the service account chooses the Google account, so the decision is the operator's.
const MEANT: &str = "only if the account is meant to act as that one: its annotation is its own claim. It takes effect within two \
    minutes";

/// In a chain, each account must be allowed to act as the next.
fn chain(link: &Link, google: &GoogleAccount, member: &str, tried: &Tried) -> Finding {
    let mut finding = tried
        .trouble(format!("a binding is missing in the chain of delegates that leads to {google}"))
        .advising(format!("add those that are missing; {MEANT}"));
    let mut who = member.to_owned();
    let mut role = USER;
    for account in link.delegates.iter().chain([google]) {
        finding = finding.running(commands::bind(account, &who, role));
        (who, role) = (format!("serviceAccount:{account}"), "roles/iam.serviceAccountTokenCreator");
    }
    finding
}
