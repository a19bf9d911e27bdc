//! A new node takes no pods before its redirect and its proxy work, and the account that removes the taint can do
//! nothing else to nodes.

use serde_json::{Value, json};

use crate::kube::{Client, NODE, OWN_ACCOUNT, STARTUP_TAINT};
use crate::process::Process;
use crate::support::needs::{Test, tests};
use crate::world::World;

pub const TESTS: &[Test] =
    tests![the_taint_goes_once_the_redirect_and_the_proxy_work, the_account_can_do_nothing_else_to_nodes];

/// Additional requirements of these tests.
pub const NEEDS: [&str; 1] = ["nft"];

/// The taint of deploy/components/startup-taint.
const KEY: &str = "startup-taint.cluster-autoscaler.kubernetes.io/gce-metadata-proxy";

const OTHER_NODE: &str = "node-2";

/// Two new nodes, and a token of the proxy's account on the first.
fn new_nodes(world: &World) -> (Client, String) {
    let mut api = world.server.admin();
    let taint = |key: &str| json!({"key": key, "value": "true", "effect": "NoSchedule"});
    for node in [NODE, OTHER_NODE] {
        let taints = [taint(KEY), taint("example.com/gpu")];
        api.create("/api/v1/nodes", &json!({"metadata": {"name": node}, "spec": {"taints": taints}}));
    }
    let token = api.own_token(NODE);
    api.apply(STARTUP_TAINT, "");
    (api, token)
}

/// The keys of a node's taints. Kubernetes adds its own to a node that has not reported yet.
fn taints(api: &mut Client, node: &str) -> Vec<String> {
    let node = api.patiently("GET", &format!("/api/v1/nodes/{node}"), None).body;
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    taints.iter().filter_map(|taint| taint["key"].as_str().map(str::to_owned)).collect()
}

fn the_taint_goes_once_the_redirect_and_the_proxy_work() {
    let world = World::new();
    let (mut api, token) = new_nodes(&world);
    let kubeconfig = world.server.own_account_kubeconfig(world.server.addr(), &token, false).display().to_string();
    let to = world.proxy_address().to_string();
    let install = ["redirect", "install", "--keep", "--tool=nft", "--to", &to, "--node-name", NODE];
    let keep = [&install[..], &["--startup-taint", KEY, "--kubeconfig", &kubeconfig]].concat();
    let has_taint = |api: &mut Client| taints(api, NODE).iter().any(|key| key == KEY);

    // With a proxy, so that only the rules are missing.
    let proxy = world.proxy(&[]);
    let mut without_rights = world.node.namespace.command("setpriv");
    without_rights.args(["--bounding-set=-net_admin", "--inh-caps=-net_admin", crate::process::BINARY]).args(&keep);
    let powerless = Process::spawn(&mut without_rights);
    powerless.line("Pods are OPEN");
    assert!(has_taint(&mut api), "the rules could not be installed");
    drop((powerless, proxy));

    let redirect = Process::start(&world.node.namespace, &keep);
    redirect.line("the startup taint stays until it is ready");
    assert!(has_taint(&mut api), "there is no proxy yet");
    let _proxy = world.proxy(&[]);
    redirect.line("removed the startup taint");
    let left = taints(&mut api, NODE);
    assert!(!left.iter().any(|key| key == KEY) && left.iter().any(|key| key == "example.com/gpu"), "{left:?}");
    assert!(taints(&mut api, OTHER_NODE).iter().any(|key| key == KEY), "the other node has a redirect of its own");

    drop(redirect);
    Process::start(&world.node.namespace, &keep).line("the node has no startup taint");
}

fn the_account_can_do_nothing_else_to_nodes() {
    let world = World::new();
    let (mut api, token) = new_nodes(&world);
    // Rights that somebody adds by mistake are limited, too.
    let group = "rbac.authorization.k8s.io";
    let role = |kind: &str| json!({"apiVersion": format!("{group}/v1"), "kind": kind, "metadata": {"name": "all"}});
    let mut all = role("ClusterRole");
    all["rules"] = json!([{"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["*"]}]);
    let mut bound = role("ClusterRoleBinding");
    bound["roleRef"] = json!({"apiGroup": group, "kind": "ClusterRole", "name": "all"});
    bound["subjects"] = json!([{"kind": "ServiceAccount", "namespace": "kube-system", "name": OWN_ACCOUNT}]);
    api.put(&all);
    api.put(&bound);
    let unbound = api.own_token_with(&json!({"expirationSeconds": 3600}));
    let mut proxy = world.server.own_account_itself(&token);

    let (ours, gpu) = (json!({"key": KEY, "value": "true", "effect": "NoSchedule"}), json!("example.com/gpu"));
    let now = api.patiently("GET", &format!("/api/v1/nodes/{NODE}"), None).body["spec"]["taints"].clone();
    let with = |more: Value| now.as_array().into_iter().flatten().cloned().chain([more]).collect::<Vec<_>>();
    let without = |key: &Value| {
        now.as_array().into_iter().flatten().filter(|taint| taint["key"] != *key).cloned().collect::<Vec<_>>()
    };
    let softer: Vec<Value> =
        without(&json!(KEY)).into_iter().chain([json!({"key": KEY, "effect": "PreferNoSchedule"})]).collect();
    let removed = json!({"spec": {"taints": without(&json!(KEY))}});
    let node = format!("/api/v1/nodes/{NODE}");
    // A policy takes effect a moment after it was created. Each patch changes something: one that does not is let through.
    let label = |number: u32| json!({"metadata": {"labels": {"early": number.to_string()}}});
    let refused = (0..10_000).find(|&number| proxy.patiently("PATCH", &node, Some(&label(number))).status == 422);
    assert!(refused.is_some(), "the policy has no effect");

    for (what, method, target, patch) in [
        (
            "add a taint",
            "PATCH",
            node.clone(),
            json!({"spec": {"taints": with(json!({"key": "a", "effect": "NoExecute"}))}}),
        ),
        ("remove another taint", "PATCH", node.clone(), json!({"spec": {"taints": without(&gpu)}})),
        ("remove all taints", "PATCH", node.clone(), json!({"spec": {"taints": null}})),
        ("change its own taint", "PATCH", node.clone(), json!({"spec": {"taints": softer}})),
        ("set a label", "PATCH", node.clone(), json!({"metadata": {"labels": {"pool": "other"}}})),
        ("set an annotation", "PATCH", node.clone(), json!({"metadata": {"annotations": {"a": "b"}}})),
        ("set a finalizer", "PATCH", node.clone(), json!({"metadata": {"finalizers": ["a/b"]}})),
        ("cordon it", "PATCH", node.clone(), json!({"spec": {"unschedulable": true}})),
        ("change its status", "PATCH", format!("{node}/status"), json!({"status": {"conditions": []}})),
        ("delete it", "DELETE", node.clone(), json!({})),
        ("create a node", "POST", "/api/v1/nodes".to_owned(), json!({"metadata": {"name": "node-3"}})),
        (
            "change another node",
            "PATCH",
            format!("/api/v1/nodes/{OTHER_NODE}"),
            json!({"metadata": {"labels": {"pool": "other"}}}),
        ),
        ("free another node", "PATCH", format!("/api/v1/nodes/{OTHER_NODE}"), removed.clone()),
    ] {
        let answer = proxy.patiently(method, &target, Some(&patch));
        let by = answer.body["message"].as_str().unwrap_or_default();
        assert_eq!(answer.status, 422, "it could {what}: {answer:?}");
        assert!(by.contains("gce-metadata-proxy-startup-taint"), "{what}: {by}");
    }
    let answer = world.server.own_account_itself(&unbound).patiently("PATCH", &node, Some(&removed));
    assert_eq!(answer.status, 422, "a token that names no node: {answer:?}");
    assert!(taints(&mut api, NODE).contains(&ours["key"].as_str().expect("text").to_owned()));
    assert_eq!(proxy.patiently("PATCH", &node, Some(&removed)).status, 200, "its own taint, from its own node");
}
