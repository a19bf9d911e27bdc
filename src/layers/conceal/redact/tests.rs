use super::*;
use crate::policy::{Choice, Source};

fn built_in(name: &str) -> Policy {
    Choice { source: Source::parse(name), recursive: None }.load().expect("built in")
}

/// What the node may see.
fn of_node(policy: &Policy) -> View<'_> {
    View { policy: Some(policy), has_accounts: true }
}

fn redacted_json(policy: &str, directory: &str, tree: &str) -> String {
    let left = json(of_node(&built_in(policy)), directory, tree.as_bytes()).expect("a tree");
    String::from_utf8(left.bytes).expect("text")
}

#[test]
fn a_listing_keeps_served_values_and_the_directories_above_them() {
    let strict = built_in("strict");
    let entries = "attributes/\ndisks/\nhostname\nid\nservice-accounts/\nid/\n../\n\nkube-env\n";
    assert_eq!(listing(of_node(&strict), "instance", entries), "attributes/\nhostname\nid\nservice-accounts/\nid/\n");
    assert_eq!(listing(of_node(&strict), "", "instance/\noslogin/\nproject/\nuniverse/\n"), "instance/\nproject/\n");
    let account = "aliases\nemail\nidentity\nscopes\ntoken\n";
    let left = listing(of_node(&strict), "instance/service-accounts/default", account);
    assert_eq!(left, "aliases\nemail\nscopes\ntoken\n");
}

#[test]
fn concealed_subtrees_are_removed_and_the_rest_is_unchanged() {
    let tree = r#"{"id":4520031799277581759,"sshKeys":"X","attributes":{"kube-env":"X","sshKeys":"X","a":"b \u00e9"},"credentials":{"x":"X"},"disks":[{"index":0}],"tags":["t"]}"#;
    let left =
        r#"{"id":4520031799277581759,"sshKeys":"X","attributes":{"a":"b \u00e9"},"disks":[{"index":0}],"tags":["t"]}"#;
    assert_eq!(redacted_json("compat", "instance", tree), left);
    assert_eq!(redacted_json("strict", "instance", tree), r#"{"id":4520031799277581759,"attributes":{}}"#);
}

#[test]
fn every_spelling_of_a_concealed_key_is_removed() {
    for key in
        ["kube-env", "kubeEnv", "KUBE-ENV", "kube\\u002denv", "kube-env/", "kube-env;x", "../kube-env", "kube%2Denv"]
    {
        let tree = format!(r#"{{"attributes":{{"{key}":"X"}}}}"#);
        assert_eq!(redacted_json("compat", "instance", &tree), r#"{"attributes":{}}"#, "{key}");
    }
    let twice = r#"{"attributes":{"a":"1","kube-env":"X","a":"2","kube-env":"X"}}"#;
    assert_eq!(redacted_json("compat", "instance", twice), r#"{"attributes":{"a":"1","a":"2"}}"#);
}

#[test]
fn an_account_is_redacted_alike_under_both_names() {
    let tree = r#"{"a@b.c":{"identity":"X","email":"a@b.c"},"default":{"identity":"X","email":"a@b.c"}}"#;
    let left = r#"{"a@b.c":{"email":"a@b.c"},"default":{"email":"a@b.c"}}"#;
    assert_eq!(redacted_json("strict", "instance/service-accounts", tree), left);
}

/// A numbered value with a rule of its own is judged by that rule, not by its directory's.
#[test]
fn a_numbered_value_is_removed_if_it_would_be_refused() {
    let rules = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nversion: '1'\nextends: compat\n\
                     rules:\n  - paths: [instance/network-interfaces/*/ip-aliases/1]\n    verdict: conceal\n    reason: x\n";
    let policy = Choice::default().compile(rules).expect("a policy");
    let tree = r#"{"ipAliases":["a","X","c"],"dnsServers":["d","e"]}"#;
    let left = json(of_node(&policy), "instance/network-interfaces/0", tree.as_bytes()).expect("a tree");
    assert_eq!(String::from_utf8(left.bytes).expect("text"), r#"{"ipAliases":["a","c"],"dnsServers":["d","e"]}"#);
}

#[test]
fn text_contains_the_visible_values() {
    let tree = r#"{"attributes":{"kube-env":"X\nY: Z","a":"1\n2"},"serviceAccounts":{"default":{"aliases":["default"]}},"networkInterfaces":[{"ipAliases":["10.0.0.0/8"],"mtu":1460}]}"#;
    let left = text(of_node(&built_in("compat")), "instance", tree.as_bytes(), 1000).expect("a tree");
    assert_eq!(
        String::from_utf8(left.bytes).expect("text"),
        "attributes/a 1\n2\nservice-accounts/default/aliases default\nnetwork-interfaces/0/ip-aliases/0 \
             10.0.0.0/8\nnetwork-interfaces/0/mtu 1460\n"
    );
}

#[test]
fn invalid_and_deeply_nested_trees_are_refused() {
    let deep = format!("{}1{}", r#"{"a":"#.repeat(200), "}".repeat(200));
    for tree in ["", "KUBELET_KEY: X", "\"X\"", "{\"a\":1", "{\"a\":1}x", &deep] {
        assert_eq!(
            json(of_node(&built_in("compat")), "instance", tree.as_bytes()),
            Err(RedactError::Unreadable),
            "{tree}"
        );
    }
}

#[test]
fn text_does_not_exceed_its_limit() {
    let values = vec!["1"; 1000].join(",");
    let tree = format!(r#"{{"{}":[{values}]}}"#, "x".repeat(100));
    let text = |max_bytes| text(of_node(&built_in("compat")), "instance", tree.as_bytes(), max_bytes);
    let whole = text(usize::MAX).expect("a tree").bytes.len();
    assert!(whole > 100_000);
    assert!(text(whole).is_ok());
    assert_eq!(text(whole - 1), Err(RedactError::TooLarge));
}
