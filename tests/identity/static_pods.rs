//! Static pods have no identity, because the API server lets none of their mirror pods have a service account. This is what the
//! proxy relies on.

use serde_json::{Value, json};

use crate::kube::{ApiServer, Client, NODE};
use crate::support::needs::{Test, tests};

/// Requirements of these tests. They have no node.
pub const NEEDS: [&str; 2] = ["openssl", "kube-apiserver"];

pub const TESTS: &[Test] = tests![a_mirror_pod_has_no_account_whoever_creates_it, no_pod_becomes_a_mirror_pod_later];

/// The annotation that makes a pod a mirror pod. Its value is the UID of the static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";
const STATIC_UID: &str = "0123456789abcdef0123456789abcdef";

const PODS: &str = "/api/v1/namespaces/shop/pods";

/// A server with an account, an administrator and a node.
fn server() -> (ApiServer, Client, Client) {
    let server = ApiServer::start(None);
    let (mut admin, node) = (server.admin(), server.node());
    admin.create_account("shop", "app");
    admin.create_account("shop", "default");
    admin.create("/api/v1/nodes", &json!({"metadata": {"name": NODE}}));
    (server, admin, node)
}

/// The mirror pod that a kubelet creates for a static pod, with this name and this account, if any.
fn mirror_pod(admin: &mut Client, name: &str, account: Option<&str>) -> Value {
    let node = admin.patiently("GET", &format!("/api/v1/nodes/{NODE}"), None).body;
    let owner = json!({
        "apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["metadata"]["uid"], "controller": true,
    });
    json!({
        "metadata": {"name": name, "annotations": {MIRROR: STATIC_UID}, "ownerReferences": [owner]},
        "spec": {
            "nodeName": NODE,
            "serviceAccountName": account,
            "containers": [{"name": "app", "image": "example.com/app"}],
        },
    })
}

fn a_mirror_pod_has_no_account_whoever_creates_it() {
    let (server, mut admin, mut node) = server();
    let mut other_admin = server.admin();
    for (creator, who) in [(&mut node, "node"), (&mut other_admin, "admin")] {
        let name = format!("of-{who}");
        for account in ["app", "default"] {
            let refused = creator.patiently("POST", PODS, Some(&mirror_pod(&mut admin, &name, Some(account))));
            let message = refused.body["message"].as_str().unwrap_or_default();
            assert_eq!(refused.status, 403, "{who}, {account}: {refused:?}");
            assert!(message.contains("a mirror pod may not reference service accounts"), "{who}: {message}");
        }
        let created = creator.patiently("POST", PODS, Some(&mirror_pod(&mut admin, &name, None)));
        assert_eq!(created.status, 201, "{who}: {created:?}");
        assert_eq!(created.body["spec"]["serviceAccountName"], Value::Null, "{who}");
    }
}

fn no_pod_becomes_a_mirror_pod_later() {
    let (_server, mut admin, _) = server();
    let pod = admin.create_pod("shop", "pod", "app", NODE);
    let patch = json!({"metadata": {"uid": pod.uid, "annotations": {MIRROR: STATIC_UID}}});
    let refused = admin.patiently("PATCH", &format!("{PODS}/pod"), Some(&patch));
    assert_eq!(refused.status, 422, "{refused:?}");
}
