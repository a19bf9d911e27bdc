//! Verdicts of the built-in and other policies.

mod own;

use super::*;
use crate::metadata::CommonPath;
use crate::policy::{Choice, Concealed, Source};

fn request(target: &str) -> Request {
    let target = target.parse().expect("a target");
    Request::get(MetadataPath::parse(&target).expect("a path"), Query::parse(target.query()).expect("a query"))
}

fn built_in(name: &str) -> Policy {
    Choice { source: Source::parse(name), recursive: None }.load().expect("built in")
}

#[test]
fn precomputed_matches_equal_those_of_a_walk() {
    for policy in ["compat", "strict", "k8s-metadata-proxy"].map(built_in) {
        for common in CommonPath::ALL {
            let path = common.as_str().trim_start_matches("/computeMetadata/v1/").trim_end_matches('/');
            assert_eq!(policy.common[common as usize], policy.patterns.walk(path), "{} by {}", path, policy.name());
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Allow,
    Flat,
    Redact,
    Redirect,
    Conceal(u16),
}

fn by(policy: &Policy, target: &str) -> Verdict {
    let request = request(target);
    match policy.judge(&request) {
        Decision::Allow => Verdict::Allow,
        Decision::Flat => Verdict::Flat,
        Decision::Redact => Verdict::Redact,
        Decision::Redirect => Verdict::Redirect,
        Decision::Conceal(cause) => Verdict::Conceal(policy.answer(cause, &request.query).status().as_u16()),
    }
}

fn verdict(target: &str) -> Verdict {
    by(&built_in("compat"), target)
}

/// The published table of k8s-metadata-proxy (`metadata/metadata_test.go`) and the list of Kubernetes' own
/// check (`test/check_metadata_concealment.go`), as far as they depend on path and query. Requests that they
/// refuse earlier (an opaque URL, a `;`) are refused when the request is parsed.
#[test]
fn verdicts_equal_those_of_k8s_metadata_proxy() {
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
        "/computeMetadata/v1/?alt=text",
        "/computeMetadata/v1/?wait_for_change=true",
        "/computeMetadata/v1/?wait_for_change=true&timeout_sec=3600",
        "/computeMetadata/v1/?wait_for_change=true&last_etag=d34db33fd34db33f",
        "/0.1/meta-data/service-accounts/default/acquire?scopes=cloud-platform+email",
        "/0.1/meta-data/auth-token?service_account=test@www.example.com&scope=cloud-platform",
    ];
    let published = built_in("k8s-metadata-proxy");
    for target in allowed {
        assert_eq!(by(&published, target), Verdict::Allow, "{target}");
    }
    for account in ["default", "12345-compute@developer.gserviceaccount.com"] {
        let tree = format!("/computeMetadata/v1/instance/service-accounts/{account}/?recursive=True");
        assert_eq!(by(&published, &tree), Verdict::Redact, "answered without concealed values");
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
        assert_eq!(by(&published, target), Verdict::Conceal(403), "{target}");
    }
}

#[test]
fn compat_redacts_recursive_reads() {
    for directory in ["", "instance/", "instance/attributes/", "project/", "instance/service-accounts/default/"] {
        let target = format!("/computeMetadata/v1/{directory}?recursive=true");
        assert_eq!(verdict(&target), Verdict::Redact, "{target}");
    }
    let refusing = Choice { recursive: Some(Recursive::Refuse), ..Choice::default() }.load().expect("built in");
    assert_eq!(by(&refusing, "/computeMetadata/v1/instance/?recursive=true"), Verdict::Conceal(403));
    let account = "/computeMetadata/v1/instance/service-accounts/default/?recursive=true";
    assert_eq!(by(&refusing, account), Verdict::Redact, "Python's library requests it first");
}

/// gcloud ignores 404, and fails on 403. Kubernetes' check names no audience.
#[test]
fn an_identity_token_is_not_found_for_any_audience() {
    let identity = "/computeMetadata/v1/instance/service-accounts/default/identity?audience=";
    let gcloud = "32555940559.apps.googleusercontent.com&format=standard&licenses=FALSE";
    for (policy, without) in [("compat", 403), ("strict", 404)] {
        let policy = built_in(policy);
        assert_eq!(by(&policy, &format!("{identity}{gcloud}")), Verdict::Conceal(404));
        assert_eq!(by(&policy, &format!("{identity}https://example.com")), Verdict::Conceal(404));
        assert_eq!(by(&policy, identity.trim_end_matches("?audience=")), Verdict::Conceal(without));
    }
    let text = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: one\nversion: '1'\nqueryKeys: [audience]\n\
                rules:\n  - paths: [instance/service-accounts/*/identity]\n    verdict: conceal\n    reason: r\n    \
                notFoundForAudiences: [a]\n";
    let one = Choice::default().compile(text).expect("a policy");
    for (audience, status) in [("a", 404), ("b", 403), ("x.a", 403)] {
        assert_eq!(by(&one, &format!("{identity}{audience}")), Verdict::Conceal(status), "{audience}");
    }
    assert_eq!(by(&built_in("k8s-metadata-proxy"), &format!("{identity}{gcloud}")), Verdict::Conceal(403));
}

#[test]
fn spellings_that_a_lenient_server_accepts_are_concealed() {
    for name in ["KUBE-ENV", "kube-env/", "Kube-Env/x", "ssh-keys", "sshKeys"] {
        assert!(
            matches!(verdict(&format!("/computeMetadata/v1/instance/attributes/{name}")), Verdict::Conceal(403)),
            "{name}"
        );
    }
    for target in ["/computeMetadata/v1/project/attributes/ssh-keys", "/computeMetadata/v1/instance/credentials/x"] {
        assert!(matches!(verdict(target), Verdict::Conceal(403)), "{target}");
    }
}

#[test]
fn all_known_secrets_are_concealed() {
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
        "kube-master-certs",
        "gce-initial-windows-password",
        "gce-initial-windows-user",
        "google-container-manifest",
    ];
    let directories = ["credentials", "gce-workload-certificates", "workload-identities"];
    let names = attributes.iter().map(|name| format!("attributes/{name}"));
    for name in names.chain(directories.iter().map(ToString::to_string)) {
        for tree in ["/computeMetadata/v1/instance", "/computeMetadata/v1beta1/instance", "/0.1/meta-data"] {
            assert!(matches!(verdict(&format!("{tree}/{name}")), Verdict::Conceal(403)), "{tree}/{name}");
        }
    }
}

#[test]
fn names_that_only_start_like_a_secret_are_allowed() {
    for target in [
        "/computeMetadata/v1/instance/attributes/kube-env-x",
        "/computeMetadata/v1/instance/attributes/",
        "/computeMetadata/v1/instance/",
    ] {
        assert_eq!(verdict(target), Verdict::Allow, "{target}");
    }
}

#[test]
fn recursive_is_dropped_where_it_has_no_effect() {
    assert_eq!(verdict("/computeMetadata/v1/project/project-id?recursive=true"), Verdict::Flat);
    assert_eq!(verdict("/computeMetadata/v1/instance/service-accounts/default?recursive=true"), Verdict::Flat);
}

#[test]
fn strict_serves_what_the_gke_metadata_server_serves() {
    let strict = built_in("strict");
    let below = |path: &str| by(&strict, &format!("/computeMetadata/v1/{path}"));
    for path in [
        "instance/hostname",
        "instance/id?alt=json",
        "instance/zone?unknown=1",
        "instance/service-accounts/default/token?scopes=a",
        "instance/service-accounts/a@b.c/email",
        "instance/service-accounts",
        "instance/attributes/cluster-uid",
        "project/project-id",
        "universe/universe-domain",
    ] {
        assert_eq!(below(path), Verdict::Allow, "{path}");
    }
    for path in ["", "instance/", "instance/?recursive=true", "project/attributes/../", "instance/service-accounts/"] {
        assert_eq!(below(path), Verdict::Redact, "{path}");
    }
    for path in ["instance", "project", "instance/attributes"] {
        assert_eq!(below(path), Verdict::Redirect, "{path}");
    }
    for path in [
        "instance/image",
        "instance/ID",
        "instance/disks/",
        "instance/attributes/kube-env",
        "instance/attributes/my-app-password",
        "instance/attributes/clusterName",
        "instance/service-accounts/default/identity?audience=x",
        "project/attributes/",
        "oslogin/",
        "universe/other",
    ] {
        assert_eq!(below(path), Verdict::Conceal(404), "{path}");
    }
    assert_eq!(by(&strict, "/0.1/meta-data/zone"), Verdict::Conceal(404));
    assert_eq!(by(&strict, "/computeMetadata/v1beta1/instance/id"), Verdict::Conceal(404));
}

#[test]
fn query_keys_that_are_not_allowed_are_dropped_or_refused() {
    let policy = |other: &str| {
        let text = format!(
            "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nversion: '1'\nunmatched: allow\n\
             queryKeys: [alt]\notherQueryKeys: {other}\nrecursive: redact\n"
        );
        Choice::default().compile(&text).expect("a policy")
    };
    let (refuses, drops) = (policy("refuse"), policy("drop"));
    let target = "/computeMetadata/v1/instance/?recursive=true&alt=text&scopes=a&x=1";
    assert_eq!(by(&refuses, target), Verdict::Conceal(403));
    assert_eq!(by(&refuses, "/computeMetadata/v1/instance/id?scopes=a"), Verdict::Conceal(403));
    assert_eq!(by(&drops, target), Verdict::Redact, "as a listing");
    assert_eq!(by(&drops, "/computeMetadata/v1/instance/id?recursive=true"), Verdict::Allow);
    assert_eq!(drops.trim(request(target).query).to_string(), "?alt=text");
}

/// A path allowed as a directory might be a concealed leaf, so it is not requested.
#[test]
fn a_directory_on_the_way_is_not_served_as_a_value() {
    let text = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nversion: '1'\n\
                rules:\n  - paths: [instance/attributes/*/shown]\n    verdict: allow\n";
    let policy = Choice::default().compile(text).expect("a policy");
    assert_eq!(by(&policy, "/computeMetadata/v1/instance/attributes/secret"), Verdict::Redirect);
    assert_eq!(by(&policy, "/computeMetadata/v1/instance/attributes/secret/shown"), Verdict::Allow);
}

/// The legacy trees have two more names for the token; one names its account in the query.
#[test]
fn legacy_token_names_are_treated_as_the_token() {
    let head = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nversion: '1'\n";
    let policy = |rest: &str| Choice::default().compile(&format!("{head}{rest}")).expect("a policy");
    let closed = policy(
        "extends: compat\nrules:\n  - paths: [instance/service-accounts/*/token]\n    verdict: conceal\n    reason: x\n",
    );
    let one_account = policy(
        "trees: [v1, '0.1']\nrules:\n  - paths: [instance/service-accounts/default/token]\n    verdict: allow\n",
    );
    for target in [
        "/computeMetadata/v1beta1/instance/service-accounts/default/acquire",
        "/computeMetadata/v1beta1/instance/service-accounts/a@b.c/Acquire/",
        "/0.1/meta-data/service-accounts/default/acquire?scopes=a",
        "/0.1/meta-data/auth-token?service_account=a@b.c&scope=a",
        "/0.1/meta-data/Auth-Token/",
    ] {
        assert_eq!(by(&closed, target), Verdict::Conceal(403), "{target}");
    }
    assert_eq!(by(&one_account, "/0.1/meta-data/service-accounts/default/acquire"), Verdict::Allow);
    for target in ["/0.1/meta-data/auth-token?service_account=a@b.c", "/0.1/meta-data/auth-token"] {
        assert_eq!(by(&one_account, target), Verdict::Conceal(403), "{target}");
    }
}

#[test]
fn secrets_are_concealed_in_the_layout_of_the_oldest_tree() {
    for target in [
        "/0.1/meta-data/instance/attributes/kube-env",
        "/0.1/meta-data/project/attributes/ssh-keys",
        "/0.1/meta-data/oslogin/users",
    ] {
        assert_eq!(verdict(target), Verdict::Conceal(403), "{target}");
    }
}

#[test]
fn a_refusal_names_the_path_and_the_reason() {
    let policy = built_in("compat");
    let request = request("/computeMetadata/v1/instance/attributes//kube-env");
    let Decision::Conceal(cause) = policy.judge(&request) else { panic!("kube-env is concealed") };
    assert_eq!(
        Concealed::new(&policy, &request.path, &request.query, cause).to_string(),
        "Refused: /computeMetadata/v1/instance/attributes/kube-env is concealed from pods by the policy compat: it \
         holds the credentials with which a node joins the cluster."
    );
}

#[test]
fn a_pods_own_account_is_not_the_nodes() {
    let own =
        |target: &str| Request { principal: Principal::Workload(crate::metadata::WorkloadId(1)), ..request(target) };
    for policy in ["compat", "strict", "k8s-metadata-proxy"].map(built_in) {
        for below in ["default/identity?audience=a", "default/token", "default/?recursive=true", "default/email"] {
            let target = format!("/computeMetadata/v1/instance/service-accounts/{below}");
            assert!(matches!(policy.judge(&own(&target)), Decision::Allow), "{below} by {}", policy.name());
        }
        let identity = request("/computeMetadata/v1/instance/service-accounts/default/identity?audience=a");
        assert!(matches!(policy.judge(&identity), Decision::Conceal(_)), "the node's, by {}", policy.name());
        for target in [
            "/computeMetadata/v1/instance/attributes/kube-env",
            "/computeMetadata/v1beta1/instance/service-accounts/default/identity",
            "/computeMetadata/v1/instance/service-accounts/default/token?unknown",
        ] {
            let (own, node) = (own(target), request(target));
            assert_eq!(
                matches!(policy.judge(&own), Decision::Conceal(_)),
                matches!(policy.judge(&node), Decision::Conceal(_)),
                "{target} by {}",
                policy.name()
            );
        }
    }
}
