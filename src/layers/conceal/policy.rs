//! The rules: which paths are concealed and why, and which requests are refused by their form.
//!
//! These are the verdicts of `GoogleCloudPlatform/k8s-metadata-proxy`, which clusters have been tested against for years,
//! and what else is known to be secret on a node. A rule is matched against the most lenient reading that any server
//! might make of a path (letters of any case, a final slash or not), so that no spelling slips by; what is forwarded is
//! the strict reading.

use crate::metadata::{Endpoint, MetadataPath, Request};

/// What becomes of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Allow,
    /// It goes on without its `recursive`, which means nothing there.
    AllowFlat,
    /// The client is refused, and told why.
    Conceal(Concealed),
}

/// A refusal by policy. Its text is what the client reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Refused: {path} is concealed from pods: {reason}.")]
pub struct Concealed {
    path: MetadataPath,
    reason: Reason,
}

/// Why a request is concealed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Reason {
    #[error("{0}")]
    Rule(&'static str),
    #[error("a recursive answer would hold what is concealed; ask for the values one by one")]
    Recursive,
    #[error("the metadata API versions known here are computeMetadata/v1, computeMetadata/v1beta1 and 0.1/meta-data")]
    UnknownVersion,
    #[error("the query parameter {0:?} is not known here")]
    UnknownParameter(Box<str>),
}

/// One row of the policy.
#[derive(Debug)]
struct Rule {
    /// Segments below `instance/` or `project/` (v1, v1beta1) or `meta-data/` (0.1); `*` stands for any one segment. All
    /// that lies below a match is concealed too.
    path: &'static [&'static str],
    /// What the client is told.
    reason: &'static str,
    /// Where the rule comes from.
    #[allow(dead_code, reason = "documents the row; `explain` will print it")]
    source: &'static str,
}

const BOOTSTRAP: &str = "it holds the credentials with which a node joins the cluster";
const SCRIPT: &str = "start-up scripts and user data often hold credentials";
const ACCESS: &str = "it lists who may log in to the machine and with which keys";
const KEY: &str = "it holds a private key of the machine";

/// First match wins. The keys are those that GKE reserves for its nodes (container API, `NodeConfig.metadata`) and those
/// that other installers are known to use.
const RULES: &[Rule] = &[
    Rule { path: &["attributes", "kube-env"], reason: BOOTSTRAP, source: "k8s-metadata-proxy metadata_test.go" },
    Rule { path: &["attributes", "kubeconfig"], reason: BOOTSTRAP, source: "Karpenter's GCP provider" },
    Rule { path: &["attributes", "bootstrap-kubeconfig"], reason: BOOTSTRAP, source: "kube-up" },
    Rule { path: &["attributes", "kubelet-config"], reason: BOOTSTRAP, source: "Karpenter's GCP provider" },
    Rule { path: &["attributes", "configure-sh"], reason: SCRIPT, source: "container API, NodeConfig.metadata" },
    Rule {
        path: &["attributes", "containerd-configure-sh"],
        reason: SCRIPT,
        source: "container API, NodeConfig.metadata",
    },
    Rule { path: &["attributes", "user-data"], reason: SCRIPT, source: "container API, NodeConfig.metadata" },
    Rule { path: &["attributes", "startup-script"], reason: SCRIPT, source: "container API, NodeConfig.metadata" },
    Rule { path: &["attributes", "startup-script-url"], reason: SCRIPT, source: "Compute Engine, startup scripts" },
    Rule { path: &["attributes", "shutdown-script"], reason: SCRIPT, source: "Compute Engine, shutdown scripts" },
    Rule { path: &["attributes", "shutdown-script-url"], reason: SCRIPT, source: "Compute Engine, shutdown scripts" },
    Rule { path: &["attributes", "ssh-keys"], reason: ACCESS, source: "Compute Engine, SSH keys in metadata" },
    Rule {
        path: &["attributes", "sshkeys"],
        reason: ACCESS,
        source: "Compute Engine, SSH keys in metadata (old spelling)",
    },
    Rule { path: &["attributes", "windows-keys"], reason: ACCESS, source: "Compute Engine, Windows passwords" },
    Rule {
        path: &["service-accounts", "*", "identity"],
        reason: "an identity token lets whoever holds it pass for the node",
        source: "k8s-metadata-proxy metadata_test.go",
    },
    Rule { path: &["credentials"], reason: KEY, source: "guest agent, mtls_mds.go" },
    Rule { path: &["gce-workload-certificates"], reason: KEY, source: "guest agent, gce_workload_cert_refresh" },
    Rule { path: &["workload-identities"], reason: KEY, source: "older name of gce-workload-certificates" },
];

/// Judges a request. Pure.
pub fn judge(request: &Request) -> Verdict {
    let conceal = |reason| Verdict::Conceal(Concealed { path: request.path.clone(), reason });
    if request.endpoint == Endpoint::Unknown {
        return conceal(Reason::UnknownVersion);
    }
    let below = below_top(&request.path);
    if let Some(rule) = RULES.iter().find(|rule| rule.covers(&below)) {
        return conceal(Reason::Rule(rule.reason));
    }
    if let Some(key) = request.query.unknown() {
        return conceal(Reason::UnknownParameter(key.into()));
    }
    // Recursive answers are let through below service-accounts: Python's library asks for one first of all, and they hold
    // no secret (an account's aliases, e-mail and scopes).
    if !request.query.is_recursive() || below[0] == Some("service-accounts") {
        return Verdict::Allow;
    }
    // The flag means nothing on a path without a final slash: the server answers a leaf as if it were not there, and a
    // directory by a redirect. It is taken off all the same, lest some server see it otherwise.
    if request.path.is_directory() { conceal(Reason::Recursive) } else { Verdict::AllowFlat }
}

impl Rule {
    fn covers(&self, below: &Below) -> bool {
        self.path
            .iter()
            .zip(below)
            .all(|(wanted, found)| found.is_some_and(|found| *wanted == "*" || wanted.eq_ignore_ascii_case(found)))
    }
}

/// The first segments below `instance` or `project`, as many as the longest rule has.
type Below<'a> = [Option<&'a str>; DEPTH];

/// Of the longest rule.
const DEPTH: usize = {
    let mut deepest = 0;
    let mut at = 0;
    while at < RULES.len() {
        if RULES[at].path.len() > deepest {
            deepest = RULES[at].path.len();
        }
        at += 1;
    }
    deepest
};

/// The segments below `instance` or `project`, of whichever tree; the oldest has no such level.
fn below_top(path: &MetadataPath) -> Below<'_> {
    let mut segments = path.segments();
    let above = if segments.next() == Some("0.1") { 1 } else { 2 };
    let mut below = segments.skip(above);
    std::array::from_fn(|_| below.next())
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;
    use crate::metadata::{Method, Principal, Query};

    fn verdict(target: &str) -> Verdict {
        let target = target.parse().expect("a target");
        let path = MetadataPath::parse(&target).expect("a path");
        judge(&Request {
            method: Method::Get,
            endpoint: Endpoint::of(&path),
            path,
            query: Query::parse(target.query()).expect("a query"),
            principal: Principal::Node,
            client: None,
            host: None,
            headers: HeaderMap::new(),
        })
    }

    /// The published table of k8s-metadata-proxy (`metadata/metadata_test.go`) and the list of Kubernetes' own check
    /// (`test/check_metadata_concealment.go`), as far as a path and a query say it; what they refuse before that (an
    /// opaque URL, a `;`) is refused when the request is read.
    #[test]
    fn the_verdicts_are_those_of_k8s_metadata_proxy() {
        let allowed = [
            "/",
            "/0.1",
            "/0.1/",
            "/0.1/meta-data",
            "/0.1/meta-data/",
            "/computeMetadata/",
            "/computeMetadata/v1beta1",
            "/computeMetadata/v1beta1/",
            "/computeMetadata/v1",
            "/computeMetadata/v1/",
            "/computeMetadata/v1/instance/service-accounts/default/token",
            "/computeMetadata/v1/instance/service-accounts/12345-compute@developer.gserviceaccount.com/token",
            "/computeMetadata/v1/instance/service-accounts/default/?recursive=True",
            "/computeMetadata/v1/instance/service-accounts/12345-compute@developer.gserviceaccount.com/?recursive=True",
            "/computeMetadata/v1/?alt=text",
            "/computeMetadata/v1/?wait_for_change=true",
            "/computeMetadata/v1/?wait_for_change=true&timeout_sec=3600",
            "/computeMetadata/v1/?wait_for_change=true&last_etag=d34db33fd34db33f",
            "/0.1/meta-data/service-accounts/default/acquire?scopes=cloud-platform+email",
            "/0.1/meta-data/auth-token?service_account=test@www.example.com&scope=cloud-platform",
        ];
        for target in allowed {
            assert!(matches!(verdict(target), Verdict::Allow), "{target}");
        }
        let concealed = [
            "/computeMetadata/v1/instance/?nonrecursive=true",
            "/computeMetadata/v1/?something_else=true",
            "/0.2/",
            "/computeMetadata/v2/",
            "/COMPUTEMETADATA/V1/",
            "/0.1/meta-data/attributes/kube-env",
            "/computeMetadata/v1beta1/instance/attributes/kube-env",
            "/computeMetadata/v1/instance/attributes/kube-env",
            "/0.1/meta-data/service-accounts/default/identity",
            "/computeMetadata/v1beta1/instance/service-accounts/default/identity",
            "/computeMetadata/v1/instance/service-accounts/default/identity",
            "/computeMetadata/v1/instance/service-accounts/default/identity?audience=www.example.com&format=full",
            "/computeMetadata/v1/instance/?recursive=true",
            "/computeMetadata/v1/instance/?%72%65%63%75%72%73%69%76%65=true",
            "/computeMetadata/v1/instance/?recursive",
            "/computeMetadata/v1/instance/?alt=text&recursive=true",
            "/computeMetadata/v1/instance/?recursive=true&alt=text",
            "/computeMetadata/v1/instance/attributes//kube-env",
            "/computeMetadata/v1/instance/attributes/../attributes/kube-env",
            "/computeMetadata/v1/instance/?recursive%3Dtrue",
            "/computeMetadata/v1/instance/service-accounts/../service-accounts/default/identity",
        ];
        for target in concealed {
            assert!(matches!(verdict(target), Verdict::Conceal(_)), "{target}");
        }
    }

    #[test]
    fn a_lenient_servers_spelling_is_concealed_too() {
        for name in ["KUBE-ENV", "kube-env/", "Kube-Env/x", "ssh-keys", "sshKeys"] {
            assert!(
                matches!(verdict(&format!("/computeMetadata/v1/instance/attributes/{name}")), Verdict::Conceal(_)),
                "{name}"
            );
        }
        for target in ["/computeMetadata/v1/project/attributes/ssh-keys", "/computeMetadata/v1/instance/credentials/x"]
        {
            assert!(matches!(verdict(target), Verdict::Conceal(_)), "{target}");
        }
    }

    #[test]
    fn every_name_that_is_known_to_be_secret_is_concealed() {
        let attributes = [
            "kube-env",
            "kubeconfig",
            "bootstrap-kubeconfig",
            "kubelet-config",
            "configure-sh",
            "containerd-configure-sh",
            "user-data",
            "startup-script",
            "startup-script-url",
            "shutdown-script",
            "shutdown-script-url",
            "ssh-keys",
            "sshKeys",
            "windows-keys",
        ];
        let directories = ["credentials", "gce-workload-certificates", "workload-identities"];
        let names = attributes.iter().map(|name| format!("attributes/{name}"));
        for name in names.chain(directories.iter().map(ToString::to_string)) {
            for tree in ["/computeMetadata/v1/instance", "/computeMetadata/v1beta1/instance", "/0.1/meta-data"] {
                assert!(matches!(verdict(&format!("{tree}/{name}")), Verdict::Conceal(_)), "{tree}/{name}");
            }
        }
    }

    #[test]
    fn a_name_that_only_begins_like_a_secret_is_none() {
        for target in [
            "/computeMetadata/v1/instance/attributes/kube-env-x",
            "/computeMetadata/v1/instance/attributes/",
            "/computeMetadata/v1/instance/",
        ] {
            assert_eq!(verdict(target), Verdict::Allow, "{target}");
        }
    }

    #[test]
    fn the_recursive_flag_does_not_go_upstream_where_it_means_nothing() {
        assert_eq!(verdict("/computeMetadata/v1/project/project-id?recursive=true"), Verdict::AllowFlat);
        let redirect = "/computeMetadata/v1/instance/service-accounts/default?recursive=true";
        assert_eq!(verdict(redirect), Verdict::Allow, "the redirect keeps the query");
    }

    #[test]
    fn the_client_reads_what_and_why() {
        let Verdict::Conceal(concealed) = verdict("/computeMetadata/v1/instance/attributes//kube-env") else {
            panic!("kube-env is concealed");
        };
        assert_eq!(
            concealed.to_string(),
            "Refused: /computeMetadata/v1/instance/attributes/kube-env is concealed from pods: it holds the credentials \
             with which a node joins the cluster."
        );
    }
}
