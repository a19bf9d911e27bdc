//! The flags for Google's trust in the cluster, and for the exchange of tokens.

use clap::{ArgMatches, Args};
use serde::Serialize;

use super::flag::{Flag, unset};
use super::given::{Given, Mistakes, syntax, value};
use super::syntax::{ArgExt as _, Choice, OrNone, Switch};
use identity::workloads::{ClusterUri, Endpoint, Federation, Prefetch, Provider, Trust, WorkloadPool};

const STS: &str = "https://sts.googleapis.com";
const IAM: &str = "https://iamcredentials.googleapis.com";

/// Where the tokens of pods' accounts come from.
#[derive(Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct FederationArgs {
    /// Workload identity pool of a GKE cluster, whose pods get Google tokens of their own. Requires --cluster-uri
    #[arg(long, value_name = "PROJECT.svc.id.goog", env = "METADATA_PROXY_WORKLOAD_POOL")]
    workload_pool: Option<Given<WorkloadPool>>,

    /// URI by which Google knows the cluster of --workload-pool
    #[arg(long, value_name = "URL", env = "METADATA_PROXY_CLUSTER_URI")]
    cluster_uri: Option<Given<ClusterUri>>,

    /// Workload identity provider that trusts any cluster, in place of --workload-pool. none: pods' accounts have no tokens
    #[arg(long, value_name = "//iam.googleapis.com/...|none", env = "METADATA_PROXY_WORKLOAD_IDENTITY_PROVIDER")]
    workload_identity_provider: Option<Given<OrNone<Provider>>>,

    /// Audience of pods' Kubernetes tokens. By default the pool, or the provider
    #[arg(long, value_name = "AUDIENCE", env = "METADATA_PROXY_TOKEN_AUDIENCE")]
    token_audience: Option<Given<String>>,

    /// Google's Security Token Service, which exchanges Kubernetes tokens
    #[arg(long, value_name = "URL", env = "METADATA_PROXY_STS_ENDPOINT", default_value = STS)]
    sts_endpoint: Given<Endpoint>,

    /// Google's IAM Service Account Credentials API, which issues tokens of Google service accounts
    #[arg(long, value_name = "URL", env = "METADATA_PROXY_IAM_ENDPOINT", default_value = IAM)]
    iam_endpoint: Given<Endpoint>,

    /// PEM file of authorities to trust for both endpoints instead of public ones
    #[arg(long, value_name = "FILE", env = "METADATA_PROXY_GOOGLE_CA")]
    google_ca: Option<Given<String>>,

    /// Whose tokens to fetch before pods request them. linked: accounts that have a Google account or have requested a token
    /// before
    #[arg(long, env = "METADATA_PROXY_PREFETCH", choice = Prefetch::default())]
    prefetch: Choice<Prefetch>,

    /// Bind the tokens that pods request by POST to the certificate that they send, as client libraries do where a pod has an
    /// agent certificate
    #[arg(long, env = "METADATA_PROXY_BOUND_TOKENS", switch = false)]
    bound_tokens: Switch,
}

impl FederationArgs {
    /// Whether a flag specifies the source of tokens, or that there is none.
    pub(super) fn says_whose_tokens(&self) -> bool {
        self.workload_pool.as_ref().is_some_and(Given::is_not_empty)
            || self.cluster_uri.as_ref().is_some_and(Given::is_not_empty)
            || self.workload_identity_provider.as_ref().is_some_and(Given::is_not_empty)
    }

    /// `None` if pods' accounts have no tokens, or if there are mistakes.
    pub(super) fn resolve(self, mistakes: &mut Mistakes) -> Option<Federation> {
        let pool = mistakes.optional(self.workload_pool);
        let cluster = mistakes.optional(self.cluster_uri);
        let provider = mistakes.optional(self.workload_identity_provider);
        let (sts, iam) = (mistakes.value(self.sts_endpoint), mistakes.value(self.iam_endpoint));
        let token_audience = mistakes.optional(self.token_audience).map(Into::into);
        let google_ca = mistakes.optional(self.google_ca).map(Into::into);
        let prefetch = mistakes.value(self.prefetch);
        let bound_tokens = self.bound_tokens.resolve(mistakes);
        let trust = match (pool, cluster, provider) {
            (Some(pool), Some(cluster), None) => Trust::Pool(pool, cluster),
            (None, None, Some(Some(provider))) => Trust::Provider(provider),
            (None, None, None | Some(None)) => return None,
            (Some(_), _, Some(_)) => return mistakes.refuse(format!("only one may be given of {EITHER}")),
            (Some(_), None, None) => {
                return mistakes
                    .refuse("--workload-pool requires --cluster-uri, the URI by which Google knows the cluster");
            }
            (None, Some(_), _) => return mistakes.refuse("--cluster-uri requires --workload-pool"),
        };
        Some(Federation {
            trust,
            token_audience,
            sts: sts?,
            iam: iam?,
            google_ca,
            prefetch: prefetch?,
            bound_tokens: bound_tokens?,
        })
    }

    /// The flags of a proxy that identifies pods.
    pub(super) fn showing(federation: Option<Federation>) -> Self {
        let Some(Federation { trust, token_audience, sts, iam, google_ca, prefetch, bound_tokens }) = federation else {
            return Self { workload_identity_provider: Flag::showing(Some(None)), ..unset() };
        };
        let (pool, cluster, provider) = match trust {
            Trust::Pool(pool, cluster) => (Some(pool), Some(cluster), None),
            Trust::Provider(provider) => (None, None, Some(Some(provider))),
        };
        Self {
            workload_pool: Flag::showing(pool),
            cluster_uri: Flag::showing(cluster),
            workload_identity_provider: Flag::showing(provider),
            token_audience: Flag::showing(token_audience.map(Into::into)),
            sts_endpoint: Flag::showing(sts),
            iam_endpoint: Flag::showing(iam),
            google_ca: Flag::showing(google_ca.map(|file| file.display().to_string())),
            prefetch: Flag::showing(prefetch),
            bound_tokens: Flag::showing(bound_tokens),
        }
    }
}

/// The two flags for the source of tokens, of which only one may be given.
pub(super) const EITHER: &str = "--workload-pool or --workload-identity-provider";

/// Whether pods' accounts have tokens, according to the flags. Also true if an invalid value leaves this open.
pub(super) fn has_tokens(given: &ArgMatches) -> bool {
    !matches!(value::<OrNone<Provider>>(given, "workload_identity_provider"), Some(None))
}

syntax! {
    WorkloadPool => Self, WorkloadPool::parse, "PROJECT.svc.id.goog";
    ClusterUri => Self, ClusterUri::parse,
        "https://container.googleapis.com/v1/projects/PROJECT/locations/LOCATION/clusters/NAME";
    Provider => Self, Provider::parse,
        "//iam.googleapis.com/projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/PROVIDER";
    Endpoint => Self, Endpoint::parse,
        "https://HOST or https://HOST:PORT, without a path; http:// only for addresses of this machine";
}

#[cfg(test)]
mod tests {
    use crate::cli::tests::{mistakes, serve};
    use identity::workloads::{Federation, Prefetch};

    const ON: &str = "--workload-identity --node-name=n";
    const NO_TOKENS: &str = "--workload-identity-provider=none";
    const URI: &str = "https://container.googleapis.com/v1/projects/p/locations/l/clusters/c";
    const PROVIDER: &str = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/c";

    fn federation(flags: &str) -> Option<Federation> {
        serve(&format!("{ON} {flags}")).identity.expect("it is on").federation
    }

    #[test]
    fn there_are_no_tokens_if_that_is_said() {
        assert_eq!(federation(NO_TOKENS), None);
        assert_eq!(federation(&format!("--workload-pool= --cluster-uri= {NO_TOKENS}")), None);
    }

    #[test]
    fn a_pool_or_a_provider_is_what_google_trusts() {
        let pool = federation(&format!("--workload-pool=p.svc.id.goog --cluster-uri={URI}")).expect("tokens");
        assert_eq!(pool.sts_audience(), format!("identitynamespace:p.svc.id.goog:{URI}"));
        assert_eq!((pool.sts.as_str(), pool.iam.as_str()), (super::STS, super::IAM));
        assert_eq!(pool.prefetch, Prefetch::Linked);
        let provider = format!(
            "--workload-identity-provider={PROVIDER} --token-audience=mine --google-ca=/ca.pem
             --prefetch=all"
        );
        let provider = federation(&provider).expect("tokens");
        assert_eq!((provider.sts_audience().as_str(), provider.token_audience()), (PROVIDER, "mine"));
        assert_eq!((provider.google_ca.as_deref(), provider.prefetch), (Some("/ca.pem".as_ref()), Prefetch::All));
    }

    #[test]
    fn mistakes_say_what_was_expected() {
        let both = format!("--workload-pool=p.svc.id.goog --cluster-uri={URI} --workload-identity-provider={PROVIDER}");
        for (flags, expected) in [
            ("--workload-pool=p", "--workload-pool: \"p\" is not valid; expected PROJECT.svc.id.goog"),
            ("--workload-pool=p.svc.id.goog", "--workload-pool requires --cluster-uri"),
            (&format!("--cluster-uri={URI}"), "--cluster-uri requires --workload-pool"),
            (
                &format!("--workload-pool=p.svc.id.goog --cluster-uri={URI} {NO_TOKENS}"),
                "only one may be given of --workload-pool or --workload-identity-provider",
            ),
            (&both, "only one may be given of --workload-pool or --workload-identity-provider"),
            (&format!("{NO_TOKENS} --google-ca=/x"), "--google-ca has no effect without --workload-pool or"),
            ("--workload-identity-provider=//x", "--workload-identity-provider: \"//x\" is not valid; expected //iam."),
            (
                &format!("{NO_TOKENS} --sts-endpoint=http://sts.googleapis.com"),
                "http:// only for addresses of this machine",
            ),
            (
                &format!("{NO_TOKENS} --prefetch=some"),
                "--prefetch: \"some\" is not valid; expected linked or all or none",
            ),
        ] {
            let said = mistakes(&format!("{ON} {flags}"));
            assert!(said.contains(expected), "{flags}: {said}");
        }
    }
}
