//! Each rule finds a mistake of its kind.

use crate::markdown::{Page, is_path_of_repository};
use crate::root;
use crate::rules::{Rules, without_numbers};
use crate::shell;

/// A page with this text, in `docs/`.
fn page(text: &str) -> Page {
    Page::parse(&root().join("docs/wrong.md"), text)
}

#[test]
fn broken_links_are_found() {
    for link in [
        "[a](no-such-page.md)",
        "[a](policies.md#no-such-heading)",
        "[a](#no-such-heading)",
        "![a](no-such-picture.svg)",
        "[a]: no-such-page.md",
    ] {
        assert_eq!(page(link).broken_links().len(), 1, "{link}");
    }
    let right =
        "# A heading\n[a](#a-heading) [b](policies.md#a-policy-of-your-own) [c](../README.md) `[d](no-such-page.md)`";
    assert_eq!(page(right).broken_links(), [""; 0]);
}

#[test]
fn code_that_no_test_reads_is_found() {
    for text in ["```\ncurl a\n```\n", "```bash\ncurl a\n```\n", "text:\n\n    curl a\n"] {
        assert_eq!(page(text).unchecked_code().len(), 1, "{text}");
    }
    assert_eq!(page("```sh\ncurl a\n```\n").unchecked_code(), [""; 0]);
}

#[test]
fn paths_are_recognised() {
    assert!(is_path_of_repository("src/stack.rs") && is_path_of_repository("deploy/"));
    assert!(!is_path_of_repository("src/NAME *") && !is_path_of_repository("kube-system/x"));
}

#[test]
fn wrong_commands_are_found() {
    for command in [
        "frobnicate --all",
        "NO_SUCH_VARIABLE=1 cargo test",
        "cargo",
        "cargo frobnicate",
        "cargo test --frobnicate",
        "cargo test --test no-such-target",
        "cargo test no_test_has_this_name",
        "cargo bench --bench no-such-bench",
        "cargo build --features no-such-feature",
        "cargo install no-such-crate",
        "cargo run -- demo",
        "cargo run --features mock -- demo --frobnicate",
        "gce-metadata-proxy --frobnicate",
        "gce-metadata-proxy --max-in-flight none",
        "gce-metadata-proxy frobnicate",
        "gce-metadata-proxy policy check no-such-file.yaml",
        "gce-metadata-proxy explain --policy no-such-file.yaml /",
        "target/release/gce-metadata-proxy --frobnicate",
        "curl -s",
        "curl --frobnicate http://127.0.0.1:989/metrics",
        "curl -s http://127.0.0.1:989/no-such-page",
        "curl -s http://169.254.169.254/computeMetadata/v1/instance/zone",
        "curl -s -H 'Metadata-Flavor: Google' 'http://169.254.169.254/computeMetadata/v1/instance/%zz'",
        "curl -s -H 'Metadata-Flavor: Google' 'http://metadata.example/computeMetadata/v1/instance/zone'",
        "kubectl frobnicate",
        "kubectl apply --frobnicate",
        "kubectl -n kube-system rollout pause daemonset/gce-metadata-proxy",
        "kubectl -n kube-system patch daemonset/gce-metadata-proxy -p '{spec: {}}'",
        "kubectl apply -k deploy/no-such-overlay",
        "kubectl kustomize deploy/no-such-overlay",
        "kubectl -n no-such-namespace rollout status daemonset/gce-metadata-proxy",
        "kubectl -n kube-system rollout status daemonset/no-such-daemonset",
        "kubectl -n kube-system exec POD -c no-such-container -- /gce-metadata-proxy check",
        "kubectl run check --image=REGISTRY/gce-metadata-proxy:0.0.0 -- check",
        "kubectl run check --image=REGISTRY/no-such-image:0.1.0 -- check",
        "kubectl run check --image=REGISTRY/gce-metadata-proxy:0.1.0 -- frobnicate",
        "helm install",
        "helm pull oci://REGISTRY/charts/gce-metadata-proxy --version 0.0.0",
        "helm frobnicate gce-metadata-proxy deploy/helm/gce-metadata-proxy",
        "helm install gce-metadata-proxy deploy/helm/no-such-chart",
        "helm install gce-metadata-proxy deploy/helm/gce-metadata-proxy --frobnicate yes",
        "helm install gce-metadata-proxy deploy/helm/gce-metadata-proxy --set image.no-such-value=1",
        "helm install gce-metadata-proxy deploy/helm/gce-metadata-proxy --values no-such-file.yaml",
        "helm template gce-metadata-proxy deploy/helm/gce-metadata-proxy --show-only templates/no-such-file.yaml",
        "deploy/tests/run frobnicate",
        "skopeo copy oci:target/images/no-such-image:0.1.0 docker://REGISTRY/gce-metadata-proxy:0.1.0",
        "skopeo copy oci:target/images/gce-metadata-proxy:0.1.0 docker://REGISTRY/no-such-image:0.1.0",
        "skopeo frobnicate",
        "cp -rn deploy/overlays/no-such-overlay/. deploy/overlays/mine",
        "cp -r deploy/overlays/self-managed deploy/overlays/mine",
        "cp -rn deploy/overlays/self-managed deploy/overlays/mine",
        "cp -r deploy/overlays/self-managed/. deploy/overlays/mine",
        "kubectl apply -k deploy/overlays/mine",
        "kubectl apply -f no-such-file.yaml",
        "kubectl -n no-such-namespace create serviceaccount checkout",
        "kubectl logs job/no-such-job",
        "kubectl run x --rm -i --restart=Never --image=curlimages/curl -- -sS http://169.254.169.254/computeMetadata/v1/",
        "kubectl exec POD -- /gce-metadata-proxy frobnicate",
        "cat a-file",
    ] {
        for step in shell::steps(command, false) {
            assert!(Rules::new().check(&step).is_err(), "no rule finds a mistake in: {command}");
        }
    }
}

#[test]
fn only_numbers_may_differ() {
    assert_eq!(without_numbers("100 of 100, in 7 ms"), without_numbers("99 of 100, in 1234 ms"));
    assert_ne!(without_numbers("100 of 100"), without_numbers("100 in 100"));
}

#[test]
fn wrong_output_is_found() {
    let mut rules = Rules::new();
    let shown = |command: &str, output: &str| shell::steps(&format!("$ {command}\n{output}\n"), true).remove(0);
    for (command, output) in [
        ("gce-metadata-proxy explain /computeMetadata/v1/instance/zone", "verdict    conceal"),
        ("cargo run --features mock -- demo", "A mock metadata server"),
        ("curl -H 'Metadata-Flavor: Google' http://127.0.0.1:8988/computeMetadata/v1/instance/zone", "no-such-zone"),
        ("cargo test", "ok"),
    ] {
        assert!(rules.check(&shown(command, output)).is_err(), "{command}");
    }
    let zone = "curl -H 'Metadata-Flavor: Google' http://127.0.0.1:8988/computeMetadata/v1/instance/zone";
    assert_eq!(rules.check(&shown(zone, "projects/123456789012/zones/us-central1-a")), Ok(()));
}
