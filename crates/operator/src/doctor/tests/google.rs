//! Broken set-ups of the settings, the clock, and Google.

use std::time::Duration;

use super::api::{ACCOUNT, NAMESPACE};
use super::cases::{Case, case};
use super::ward::{CLUSTER, GOOGLE_ACCOUNT, ISSUER, Kind, NOBODY, PROVIDER, Ward, endpoint};
use crate::doctor::Step;
use identity::workloads::{ClusterUri, Provider, Trust, WorkloadPool};
use mock::google::{Authority, Endpoint as Method, Fault, Issuer, Workload};

fn oauth(ward: &Ward, error: &str, description: &str) {
    ward.google.fault(Method::Sts, Fault::Oauth { error: error.into(), description: description.into() });
}

/// The settings, the clock, and the exchange. Refusals are the fake Google's own, where it has them.
#[expect(clippy::too_many_lines, reason = "a table")]
pub(super) fn of_the_exchange() -> Vec<Case> {
    vec![
        case(
            "neither pool nor provider",
            |ward| ward.settings.federation = None,
            Step::Settings,
            "neither --workload-pool nor --workload-identity-provider is set",
            "--workload-pool=PROJECT.svc.id.goog",
        ),
        case(
            "clock 10 minutes ahead",
            |ward| ward.api.change(|state| state.ahead = 600),
            Step::Clock,
            "the API server's clock is 10 min ahead of Google's",
            "kubectl get nodes --selector=node-role.kubernetes.io/control-plane",
        ),
        case(
            "wrong issuer",
            |ward| ward.api.change(|state| state.issuer = Issuer::new("https://127.0.0.1:9/other")),
            Step::Exchange,
            "the provider cluster-1 trusts another issuer than this cluster's https://127.0.0.1:9/other",
            "--issuer-uri=https://127.0.0.1:9/other",
        ),
        case(
            "issuer and keys unreachable",
            |ward| oauth(ward, "invalid_grant", "Error connecting to the given credential's issuer."),
            Step::Exchange,
            "the provider cluster-1 does not have the key that signed the token",
            "--jwk-json-path=jwks.json",
        ),
        case(
            "keys rotated",
            |ward| ward.api.change(|state| state.issuer = Issuer::rotated(ISSUER)),
            Step::Exchange,
            "does not have the key that signed the token",
            "kubectl get --raw /openid/v1/jwks > jwks.json",
        ),
        case(
            "wrong provider",
            |ward| {
                let name = PROVIDER.replace("cluster-1", "cluster-2");
                ward.federation().trust = Trust::Provider(Provider::parse(&name).expect("a provider"));
            },
            Step::Exchange,
            "Google knows no provider cluster-2 in the pool my-pool",
            "gcloud iam workload-identity-pools providers list --workload-identity-pool=my-pool",
        ),
        case(
            "provider with a project's ID",
            |ward| {
                let name = PROVIDER.replace("projects/123", "projects/shop");
                ward.federation().trust = Trust::Provider(Provider::parse(&name).expect("a provider"));
            },
            Step::Settings,
            "has the project shop, and needs its number",
            "gcloud projects describe shop --format='value(projectNumber)'",
        ),
        case(
            "audience not allowed",
            |ward| ward.federation().token_audience = Some("mine".into()),
            Step::Exchange,
            "the provider cluster-1 does not take tokens for mine",
            "--allowed-audiences=mine",
        ),
        case(
            "attribute condition",
            |ward| oauth(ward, "unauthorized_client", "The given credential is rejected by the attribute condition."),
            Step::Exchange,
            "the attribute condition of the provider cluster-1 excludes this account",
            "--format='value(attributeCondition)'",
        ),
        case(
            "subject too long",
            |ward| {
                oauth(
                    ward,
                    "invalid_request",
                    "The size of mapped attribute google.subject exceeds the 127 bytes limit.",
                );
            },
            Step::Exchange,
            "the name of this account is too long",
            "--format='value(attributeMapping)'",
        ),
        case(
            "STS API off",
            |ward| ward.google.fault(Method::Sts, Fault::Disabled(123)),
            Step::Exchange,
            "the Security Token Service API is not enabled",
            "gcloud services enable sts.googleapis.com --project=123",
        ),
        case(
            "quota",
            |ward| ward.google.fault(Method::Sts, Fault::Quota(Duration::from_secs(7))),
            Step::Exchange,
            "the quota of exchanges is used up",
            "try again after 7 s",
        ),
        case(
            "STS away",
            |ward| ward.federation().sts = endpoint(NOBODY),
            Step::Sts,
            "nobody accepts connections at 127.0.0.1:9: Connection refused",
            "Private Google Access",
        ),
        case(
            "STS of an untrusted authority",
            |ward| {
                let file = ward.federation().google_ca.clone().expect("set");
                std::fs::write(file, Authority::ANOTHER.pem).expect("a temporary file");
            },
            Step::Sts,
            "the certificate that 127.0.0.1 shows is of an authority that is not trusted here",
            "--google-ca",
        ),
        case(
            "authorities unreadable",
            |ward| ward.federation().google_ca = Some("/none".into()),
            Step::Sts,
            "the file of authorities cannot be used: /none",
            "pass a PEM file of certificates",
        ),
    ]
}

/// The account's link. Refusals are those of the fake Google.
pub(super) fn of_the_link() -> Vec<Case> {
    vec![
        case(
            "malformed annotation",
            |ward| ward.api.change(|state| state.annotation = "app@shop"),
            Step::Link,
            r#"the annotation iam.gke.io/gcp-service-account is malformed: "app@shop""#,
            "kubectl annotate serviceaccount checkout --namespace=shop --overwrite iam.gke.io/gcp-service-account=",
        ),
        case(
            "IAM away",
            |ward| ward.federation().iam = endpoint(NOBODY),
            Step::Iam,
            "nobody accepts connections",
            "firewall",
        ),
        case(
            "no binding, for a provider",
            |ward| ward.google.unbind(Workload::new(NAMESPACE, ACCOUNT), GOOGLE_ACCOUNT),
            Step::Impersonation,
            "this account has no binding that lets it act as app@shop.iam.gserviceaccount.com",
            "gcloud iam service-accounts add-iam-policy-binding app@shop.iam.gserviceaccount.com \
             --role=roles/iam.workloadIdentityUser --member=principal://iam.googleapis.com/projects/123/locations/global/\
             workloadIdentityPools/my-pool/subject/system:serviceaccount:shop:checkout",
        ),
        Case {
            kind: Kind::Gke,
            ..case(
                "no binding, for a GKE cluster",
                |ward| ward.google.unbind(Workload::new(NAMESPACE, ACCOUNT), GOOGLE_ACCOUNT),
                Step::Impersonation,
                "this account has no binding",
                "--member='serviceAccount:shop.svc.id.goog[shop/checkout]'",
            )
        },
        case(
            "Google account missing",
            |ward| ward.google.remove_account(GOOGLE_ACCOUNT),
            Step::Impersonation,
            "there is no Google account app@shop.iam.gserviceaccount.com",
            "gcloud iam service-accounts create app --project=shop",
        ),
        case(
            "IAM API off",
            |ward| ward.google.fault(Method::AccessToken, Fault::Disabled(77)),
            Step::Impersonation,
            "the IAM Service Account Credentials API is not enabled",
            "gcloud services enable iamcredentials.googleapis.com --project=77",
        ),
        Case {
            kind: Kind::Gke,
            ..case(
                "cluster URI of another cluster",
                |ward| {
                    let uri = ClusterUri::parse(&CLUSTER.replace("/one", "/two")).expect("a URI");
                    let Trust::Pool(_, cluster) = &mut ward.federation().trust else { panic!("a pool") };
                    *cluster = uri;
                },
                Step::Settings,
                "--cluster-uri is https://container.googleapis.com/v1/projects/shop/locations/europe-west3/clusters/two, but the issuer",
                "set --cluster-uri=https://container.googleapis.com/v1/projects/shop/locations/europe-west3/clusters/one",
            )
        },
        Case {
            kind: Kind::Gke,
            ..case(
                "wrong pool",
                |ward| {
                    let Trust::Pool(pool, _) = &mut ward.federation().trust else { panic!("a pool") };
                    *pool = WorkloadPool::parse("shop-2.svc.id.goog").expect("a pool");
                },
                Step::Exchange,
                "Google knows no pool shop-2.svc.id.goog with the cluster",
                "gcloud container clusters describe one --location=europe-west3 --project=shop",
            )
        },
    ]
}
