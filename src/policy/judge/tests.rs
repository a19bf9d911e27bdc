//! Verdicts of the built-in policies and of some others.

use super::*;
use crate::metadata::CommonPath;
use crate::policy::Concealed;
use crate::policy::{Choice, Source};

fn request(target: &str) -> Request {
    let target = target.parse().expect("a target");
    Request::get(MetadataPath::parse(&target).expect("a path"), Query::parse(target.query()).expect("a query"))
}

fn built_in(name: &str) -> Policy {
    Choice { source: Source::named(name), recursive: None }.load().expect("built in")
}

#[test]
fn what_is_known_of_a_common_path_is_what_a_walk_finds() {
    for policy in [built_in("compat"), built_in("strict")] {
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
    match policy.judge(&request(target)) {
        Decision::Allow => Verdict::Allow,
        Decision::Flat => Verdict::Flat,
        Decision::Redact => Verdict::Redact,
        Decision::Redirect => Verdict::Redirect,
        Decision::Conceal(cause) => Verdict::Conceal(policy.answer(cause).status().as_u16()),
    }
}

fn verdict(target: &str) -> Verdict {
    by(&built_in("compat"), target)
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
        "/computeMetadata/v1/?alt=text",
        "/computeMetadata/v1/?wait_for_change=true",
        "/computeMetadata/v1/?wait_for_change=true&timeout_sec=3600",
        "/computeMetadata/v1/?wait_for_change=true&last_etag=d34db33fd34db33f",
        "/0.1/meta-data/service-accounts/default/acquire?scopes=cloud-platform+email",
        "/0.1/meta-data/auth-token?service_account=test@www.example.com&scope=cloud-platform",
    ];
    for target in allowed {
        assert_eq!(verdict(target), Verdict::Allow, "{target}");
    }
    for account in ["default", "12345-compute@developer.gserviceaccount.com"] {
        let tree = format!("/computeMetadata/v1/instance/service-accounts/{account}/?recursive=True");
        assert_eq!(verdict(&tree), Verdict::Redact, "answered, less what is concealed");
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
        assert!(matches!(verdict(target), Verdict::Conceal(403)), "{target}");
    }
}

#[test]
fn a_lenient_servers_spelling_is_concealed_too() {
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
    assert_eq!(verdict("/computeMetadata/v1/project/project-id?recursive=true"), Verdict::Flat);
    assert_eq!(verdict("/computeMetadata/v1/instance/service-accounts/default?recursive=true"), Verdict::Flat);
}

#[test]
fn strict_serves_what_gkes_server_serves() {
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
        "universe/universe-domain",
    ] {
        assert_eq!(below(path), Verdict::Conceal(404), "{path}");
    }
    assert_eq!(by(&strict, "/0.1/meta-data/zone"), Verdict::Conceal(404));
    assert_eq!(by(&strict, "/computeMetadata/v1beta1/instance/id"), Verdict::Conceal(404));
}

#[test]
fn a_key_that_is_not_let_through_is_dropped_or_refused() {
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

/// A name that is allowed to be a directory might be a leaf that is concealed, so it is not asked for.
#[test]
fn a_way_through_is_not_a_value() {
    let text = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nversion: '1'\n\
                rules:\n  - paths: [instance/attributes/*/shown]\n    verdict: allow\n";
    let policy = Choice::default().compile(text).expect("a policy");
    assert_eq!(by(&policy, "/computeMetadata/v1/instance/attributes/secret"), Verdict::Redirect);
    assert_eq!(by(&policy, "/computeMetadata/v1/instance/attributes/secret/shown"), Verdict::Allow);
}

/// Two names of the token that only the old trees have, one of which names its account in the query.
#[test]
fn the_old_names_of_a_token_are_judged_as_the_token() {
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
fn the_layout_of_the_oldest_tree_hides_nothing() {
    for target in [
        "/0.1/meta-data/instance/attributes/kube-env",
        "/0.1/meta-data/project/attributes/ssh-keys",
        "/0.1/meta-data/oslogin/users",
    ] {
        assert_eq!(verdict(target), Verdict::Conceal(403), "{target}");
    }
}

#[test]
fn an_earlier_rule_opens_what_a_later_one_conceals_letter_by_letter() {
    let text = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nversion: '1'\nextends: compat\n\
                rules:\n  - paths: [instance/attributes/user-data]\n    verdict: allow\n";
    let policy = Choice::default().compile(text).expect("a policy");
    assert_eq!(by(&policy, "/computeMetadata/v1/instance/attributes/user-data"), Verdict::Allow);
    for spelling in ["USER-DATA", "userData", "user-data/", "user-data/x"] {
        let target = format!("/computeMetadata/v1/instance/attributes/{spelling}");
        let visible = spelling == "user-data/";
        assert_eq!(by(&policy, &target) == Verdict::Conceal(403), !visible, "{spelling}");
    }
}

#[test]
fn the_client_reads_what_and_why() {
    let policy = built_in("compat");
    let request = request("/computeMetadata/v1/instance/attributes//kube-env");
    let Decision::Conceal(cause) = policy.judge(&request) else { panic!("kube-env is concealed") };
    assert_eq!(
        Concealed::new(&policy, &request.path, cause).to_string(),
        "Refused: /computeMetadata/v1/instance/attributes/kube-env is concealed from pods by the policy compat: it \
         holds the credentials with which a node joins the cluster."
    );
}
