//! Judges the Security Token Service's answer to the Kubernetes token.

use std::borrow::Cow;
use std::time::Duration;

use super::{no_answer, settings, time};
use crate::doctor::claims::Claims;
use crate::doctor::commands;
use crate::doctor::report::{Finding, Step, Tried};
use identity::tokens::{NotGiven, Said};
use identity::workloads::{ClusterUri, Federation, Provider, Trust};

/// The text that names this step.
pub(in crate::doctor) const TRIED: Tried =
    Tried(Step::Exchange, Cow::Borrowed("exchange of the token at the Security Token Service"));

/// The reason for refusing a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The pool or provider does not exist.
    Pool,
    /// The issuer is not that of the provider.
    Issuer,
    /// The provider does not allow the audience.
    Audience,
    /// Expired, or not valid yet.
    Time,
    /// The attribute condition does not hold.
    Condition,
    /// The key is unknown, or cannot be fetched.
    Keys,
    /// The mapped subject is too long.
    Subject,
    /// The API is not enabled.
    Disabled,
    Other,
}

impl Why {
    /// The reason, according to the known wording of Google's messages.
    fn of(said: &Said) -> Self {
        let has = |word: &str| said.message.to_lowercase().contains(word);
        match said.code.as_str() {
            "SERVICE_DISABLED" => Self::Disabled,
            "invalid_target" => Self::Pool,
            _ if has("attribute condition") => Self::Condition,
            _ if has("mapped attribute") => Self::Subject,
            _ if has("stale to sign-in") || has("not valid yet") || has("expired") => Self::Time,
            _ if has("audience in id token") => Self::Audience,
            _ if has("issuer in id token") => Self::Issuer,
            _ if has("credential's issuer") || has("signature") || has("signed by a key") || has("jwk") => Self::Keys,
            "invalid_request" if has("\"audience\"") => Self::Pool,
            _ => Self::Other,
        }
    }
}

/// Judges the exchange. `Ok` has the lifetime of the federated token.
pub(in crate::doctor) fn exchange(
    federation: &Federation,
    claims: Option<&Claims>,
    exchanged: Result<Duration, &NotGiven>,
) -> Finding {
    match exchanged {
        Ok(life) => TRIED.ok(format!("a federated token for {}", time(life))),
        Err(NotGiven::Failed(why)) => no_answer(&TRIED, "the Security Token Service", why),
        Err(NotGiven::Throttled(after)) => {
            let seen = "the quota of exchanges is used up: 6,000 in a minute for a project";
            TRIED.trouble(seen).advising(format!("try again after {}; --prefetch=none makes fewer", time(*after)))
        }
        Err(NotGiven::Refused(said)) => {
            let finding = match &federation.trust {
                Trust::Pool(_, cluster) => of_gke(Why::of(said), federation, cluster, claims, said),
                Trust::Provider(provider) => of_provider(Why::of(said), federation, provider, claims, said),
            };
            finding.saying(said.to_string())
        }
    }
}

fn refused(seen: impl AsRef<str>) -> Finding {
    TRIED.trouble(seen)
}

fn of_provider(
    why: Why,
    federation: &Federation,
    provider: &Provider,
    claims: Option<&Claims>,
    said: &Said,
) -> Finding {
    let issuer = claims.map_or("", |claims| &claims.issuer);
    let describe = |field: &str| commands::provider("describe", provider, &[("format", field)]);
    match why {
        Why::Pool => refused(format!("Google knows no provider {} in the pool {}", provider.id(), provider.pool()))
            .advising("correct --workload-identity-provider, or create or enable what is missing")
            .looking(format!("gcloud iam workload-identity-pools list --location=global --project={}", provider.project()))
            .looking(format!(
                "gcloud iam workload-identity-pools providers list --workload-identity-pool={} --location=global --project={}",
                provider.pool(),
                provider.project()
            )),
        Why::Issuer => refused(format!("the provider {} trusts another issuer than this cluster's {issuer}", provider.id()))
            .running(commands::provider("update-oidc", provider, &[("issuer-uri", issuer)])),
        Why::Audience => {
            let audience = federation.token_audience();
            refused(format!("the provider {} does not take tokens for {audience}", provider.id()))
                .advising("allow it there (this replaces the list), or set --token-audience to one that is allowed")
                .running(commands::provider("update-oidc", provider, &[("allowed-audiences", audience)]))
        }
        Why::Condition => refused(format!("the attribute condition of the provider {} excludes this account", provider.id()))
            .advising("change the condition so that it holds for this account (update-oidc --attribute-condition)")
            .looking(describe("value(attributeCondition)")),
        Why::Subject => refused("the name of this account is too long for the provider's mapping: google.subject has 127 bytes at most")
            .advising("map a shorter attribute, such as the account's UID (assertion['kubernetes.io']['serviceaccount']['uid'])")
            .looking(describe("value(attributeMapping)")),
        Why::Keys => {
            let [fetch, upload] = commands::upload_keys(provider);
            refused(format!("the provider {} does not have the key that signed the token", provider.id()))
                .advising("upload the cluster's keys again after each rotation")
                .running(fetch)
                .running(upload)
        }
        Why::Time | Why::Disabled | Why::Other => common(why, said),
    }
}

fn of_gke(why: Why, federation: &Federation, cluster: &ClusterUri, claims: Option<&Claims>, said: &Said) -> Finding {
    let pool = federation.pool();
    let issuer = claims.map_or("", |claims| &claims.issuer);
    let describe = settings::place(cluster).map(|(project, location, name)| {
        format!(
            "gcloud container clusters describe {name} --location={location} --project={project} \
             --format='value(workloadIdentityConfig.workloadPool,selfLink)'"
        )
    });
    let with_describe = |finding: Finding| match &describe {
        Some(command) => finding.looking(command),
        None => finding,
    };
    match why {
        Why::Pool => with_describe(
            refused(format!("Google knows no pool {pool} with the cluster {cluster}"))
                .advising("set --workload-pool and --cluster-uri as this prints them; if it prints no pool, turn it on for the cluster"),
        ),
        Why::Issuer | Why::Keys => with_describe(
            refused(format!("the cluster {cluster} is not the one that issues the tokens here, {issuer}"))
                .advising("set --cluster-uri to the issuer of the tokens here, which is the URI of this cluster"),
        ),
        Why::Audience => refused(format!("the pool {pool} does not take tokens for {}", federation.token_audience()))
            .advising("remove --token-audience: tokens for a GKE cluster's pool are for the pool"),
        Why::Time | Why::Condition | Why::Subject | Why::Disabled | Why::Other => common(why, said),
    }
}

fn common(why: Why, said: &Said) -> Finding {
    match why {
        Why::Disabled => refused("the Security Token Service API is not enabled in the project")
            .running(commands::enable("sts.googleapis.com", &said.consumer)),
        Why::Time => refused("the token has expired or is not valid yet, by Google's clock")
            .advising("set the API server's clock; see what is said of clocks above"),
        _ => refused("Google refuses the token").advising("see its words above"),
    }
}
