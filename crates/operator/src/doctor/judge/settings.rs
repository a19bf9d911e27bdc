//! Whether the flags agree with each other and with the issuer of tokens.

use std::borrow::Cow;

use crate::doctor::commands;
use crate::doctor::report::{Finding, Step, Tried, Verdict};
use identity::workloads::{ClusterUri, Federation, Provider, Trust, WorkloadPool};

/// Prefix of the issuer of every GKE cluster.
const GKE: &str = "https://container.googleapis.com/v1/projects/";

const TRIED: Tried = Tried(Step::Settings, Cow::Borrowed("pool and provider settings"));

/// The finding if neither a pool nor a provider is set.
pub(in crate::doctor) fn none() -> Finding {
    let seen = "neither --workload-pool nor --workload-identity-provider is set, or --workload-identity-provider=none says that pods have \
                no tokens";
    TRIED.trouble(seen).advising(
        "if pods are to have tokens: for a GKE cluster set --workload-pool=PROJECT.svc.id.goog and --cluster-uri, for any other cluster \
         --workload-identity-provider; give the flags or the environment of the proxy itself",
    )
}

/// `issuer` is the issuer of a token, or the one that the API server publishes. If `is_exchanged`, Google has accepted a
/// token with these settings, so they work, however unusual.
pub(in crate::doctor) fn settings(federation: &Federation, issuer: Option<&str>, is_exchanged: bool) -> Finding {
    let finding = match &federation.trust {
        Trust::Pool(pool, cluster) => of_gke(pool, cluster, issuer),
        Trust::Provider(provider) => of_provider(provider, federation),
    };
    if is_exchanged && finding.verdict == Verdict::Trouble {
        return TRIED.warning(format!("{}; Google accepts these settings nevertheless", finding.seen));
    }
    finding
}

fn of_gke(pool: &WorkloadPool, cluster: &ClusterUri, issuer: Option<&str>) -> Finding {
    match issuer {
        Some(issuer) if issuer == cluster.as_str() => {}
        Some(issuer) if issuer.starts_with(GKE) => {
            let seen = format!("--cluster-uri is {cluster}, but the issuer of this cluster is {issuer}");
            return TRIED.trouble(seen).advising(format!("set --cluster-uri={issuer}"));
        }
        Some(issuer) if !is_fleet(cluster) => {
            let seen = format!("--workload-pool is for GKE clusters, but the issuer of this cluster is {issuer}");
            return TRIED.trouble(seen)
                .advising("then set --workload-identity-provider in place of --workload-pool")
                .running("gcloud iam workload-identity-pools create POOL --location=global")
                .running("kubectl get --raw /openid/v1/jwks > jwks.json")
                .running(format!(
                    "gcloud iam workload-identity-pools providers create-oidc PROVIDER --workload-identity-pool=POOL \
                     --location=global --issuer-uri={} --jwk-json-path=jwks.json --attribute-mapping=google.subject=assertion.sub",
                    commands::quoted(issuer)
                ));
        }
        _ => {}
    }
    match place(cluster) {
        None if !is_fleet(cluster) => TRIED
            .warning(format!(
                "--cluster-uri is {cluster}, which is not of the form {GKE}PROJECT/locations/LOCATION/clusters/NAME"
            ))
            .looking("gcloud container clusters list --format='value(selfLink)'"),
        Some((project, ..)) if project != pool.project() => TRIED.warning(format!(
            "the pool {pool} is not that of the cluster's project {project}; this is right only for a fleet"
        )),
        _ => TRIED.ok(format!("the pool {pool} and the cluster {cluster} fit the tokens of this cluster")),
    }
}

/// Project, location and name of a GKE cluster.
pub(super) fn place(cluster: &ClusterUri) -> Option<(&str, &str, &str)> {
    let parts: Vec<_> = cluster.as_str().strip_prefix(GKE)?.split('/').collect();
    match parts[..] {
        [project, "locations" | "zones", location, "clusters", name] => Some((project, location, name)),
        _ => None,
    }
}

/// Whether the cluster is registered as a member of a fleet.
fn is_fleet(cluster: &ClusterUri) -> bool {
    cluster.as_str().starts_with("https://gkehub.googleapis.com/")
}

fn of_provider(provider: &Provider, federation: &Federation) -> Finding {
    if !provider.project().bytes().all(|byte| byte.is_ascii_digit()) {
        let seen = format!("--workload-identity-provider has the project {}, and needs its number", provider.project());
        let project = provider.project();
        return TRIED
            .trouble(seen)
            .looking(format!("gcloud projects describe {project} --format='value(projectNumber)'"));
    }
    if provider.location() != "global" {
        let seen =
            format!("--workload-identity-provider has the location {}, and must have global", provider.location());
        return TRIED.trouble(seen).looking("gcloud iam workload-identity-pools list --location=global");
    }
    match &federation.token_audience {
        Some(audience) if !is_default(audience, provider) => {
            TRIED.ok(format!("{provider}, with the audience {audience}, which must be one of its allowed audiences"))
        }
        _ => TRIED.ok(format!("{provider}, with its default audience")),
    }
}

/// Whether the audience is one that a provider without allowed audiences accepts: its own name, or the URL of that.
fn is_default(audience: &str, provider: &Provider) -> bool {
    let name = provider.to_string();
    audience == name || audience.strip_prefix("https:") == Some(&name)
}
