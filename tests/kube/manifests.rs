//! Applies the very files of `deploy/components`.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::client::Client;

/// What the files have in place of an audience.
const PLACEHOLDER: &str = "PROJECT.svc.id.goog";

/// The account of `deploy/base/service-account.yaml`.
pub const OWN_ACCOUNT: &str = "gce-metadata-proxy";

/// The files that give the account the right to act as its node, the kubelet's credential the right to the audience, and the
/// account rights of its own, which a policy fences.
pub const OWN_NODE: &[&str] = &["identity-own-node/rbac.yaml"];
pub const KUBELET: &[&str] = &["identity-kubelet/rbac.yaml"];
/// The file by which a node may read accounts before Kubernetes 1.34. It has no audience.
pub const BEFORE_1_34: &[&str] = &["identity-kubelet/before-1.34.yaml"];
pub const FENCED: &[&str] = &["identity-fenced/admission.yaml", "identity-fenced/rbac.yaml"];

/// The files that bound how long the tokens of nodes last.
pub const SHORT_TOKENS: &[&str] = &["identity-short-tokens/admission.yaml"];

/// The files that let the account remove the startup taint of its node. They have no audience.
pub const STARTUP_TAINT: &[&str] = &["startup-taint/admission.yaml", "startup-taint/rbac.yaml"];

/// The objects of a file below `deploy/components`, for this audience.
pub fn objects(file: &str, audience: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/components").join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
    let has_none = file == FENCED[1] || STARTUP_TAINT.contains(&file) || BEFORE_1_34.contains(&file);
    assert!(text.contains(PLACEHOLDER) || has_none, "{file} has no audience");
    serde_saphyr::from_multiple(&text.replace(PLACEHOLDER, audience)).expect("YAML")
}

impl Client {
    /// Creates what these files have.
    pub fn apply(&mut self, files: &[&str], audience: &str) {
        for object in files.iter().flat_map(|file| objects(file, audience)) {
            self.put(&object);
        }
    }

    /// Creates an object of the cluster, or replaces the one of its name.
    pub fn put(&mut self, object: &Value) {
        let target = target(object);
        let (collection, _) = target.rsplit_once('/').expect("a path");
        let created = self.patiently("POST", collection, Some(object));
        if created.status == 409 {
            let patched = self.patiently("PATCH", &target, Some(object));
            assert_eq!(patched.status, 200, "{target}: {patched:?}");
        } else {
            assert_eq!(created.status, 201, "{target}: {created:?}");
        }
    }

    /// Deletes what these files have.
    pub fn unapply(&mut self, files: &[&str]) {
        for object in files.iter().flat_map(|file| objects(file, "any")) {
            self.remove(&object);
        }
    }

    /// Deletes an object of the cluster.
    pub fn remove(&mut self, object: &Value) {
        let answer = self.patiently("DELETE", &target(object), None);
        assert!(matches!(answer.status, 200 | 404), "{answer:?}");
    }

    /// Creates the proxy's own account, this node and a pod of the account on it, and returns a token of the account that is
    /// bound to that pod, as Kubernetes mounts it. Without rights.
    pub fn own_token(&mut self, node: &str) -> String {
        self.create_account("kube-system", OWN_ACCOUNT);
        // The token names the node only if there is one.
        self.create("/api/v1/nodes", &json!({"metadata": {"name": node}}));
        let pod = self.create_pod("kube-system", &format!("proxy-{node}"), OWN_ACCOUNT, node);
        let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.uid});
        self.own_token_with(&json!({"boundObjectRef": bound, "expirationSeconds": 3600}))
    }

    /// A token of the proxy's own account, which is there, with this `spec`.
    pub fn own_token_with(&mut self, spec: &Value) -> String {
        let target = format!("/api/v1/namespaces/kube-system/serviceaccounts/{OWN_ACCOUNT}/token");
        let answer = self.patiently("POST", &target, Some(&json!({"spec": spec})));
        answer.body["status"]["token"].as_str().unwrap_or_else(|| panic!("no token: {answer:?}")).to_owned()
    }
}

/// The path of an object that belongs to no namespace.
fn target(object: &Value) -> String {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let kind = text(&object["kind"]).to_lowercase();
    let plural = kind.strip_suffix('y').map_or(format!("{kind}s"), |stem| format!("{stem}ies"));
    format!("/apis/{}/{plural}/{}", text(&object["apiVersion"]), text(&object["metadata"]["name"]))
}
