//! What tests do with objects: namespaces, accounts, pods, and the rights of the proxy's own account.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::client::{ApiAnswer, Client};

/// A pod's object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodObject {
    pub namespace: String,
    pub name: String,
    pub account: String,
    pub uid: String,
}

impl PodObject {
    fn target(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.name)
    }
}

impl Client {
    /// Creates an object, unless it is there.
    pub fn create(&mut self, collection: &str, object: &Value) {
        let answer = self.patiently("POST", collection, Some(object));
        assert!(matches!(answer.status, 201 | 409), "{collection}: {answer:?}");
    }

    /// Creates a namespace and a service account in it.
    pub fn create_account(&mut self, namespace: &str, account: &str) {
        self.create("/api/v1/namespaces", &json!({"metadata": {"name": namespace}}));
        self.create(
            &format!("/api/v1/namespaces/{namespace}/serviceaccounts"),
            &json!({"metadata": {"name": account}}),
        );
    }

    /// Creates a pod that is scheduled already.
    pub fn create_pod(&mut self, namespace: &str, name: &str, account: &str, node: &str) -> PodObject {
        let collection = format!("/api/v1/namespaces/{namespace}/pods");
        let object = json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": node,
                "serviceAccountName": account,
                "containers": [{"name": "app", "image": "example.com/app"}],
            },
        });
        let created = self.patiently("POST", &collection, Some(&object));
        // The server may have ended between the creation and its answer.
        let there = match created.status {
            409 => self.patiently("GET", &format!("{collection}/{name}"), None),
            _ => created,
        };
        let uid = there.body["metadata"]["uid"].as_str().unwrap_or_else(|| panic!("no pod {name}: {there:?}"));
        let [namespace, name, account] = [namespace, name, account].map(str::to_owned);
        PodObject { namespace, name, account, uid: uid.to_owned() }
    }

    /// Says which addresses a pod has, as its kubelet does. A pod that is gone stays so.
    pub fn set_addresses(&mut self, pod: &PodObject, addresses: &[IpAddr]) {
        let list: Vec<Value> = addresses.iter().map(|address| json!({"ip": address})).collect();
        self.patch_status(pod, &json!({"phase": "Running", "podIP": addresses.first(), "podIPs": list}));
    }

    /// Says that a pod has ended (`Succeeded` or `Failed`). Its addresses stay in its status.
    pub fn set_phase(&mut self, pod: &PodObject, phase: &str) {
        self.patch_status(pod, &json!({"phase": phase}));
    }

    fn patch_status(&mut self, pod: &PodObject, status: &Value) {
        let patch = json!({"metadata": {"uid": pod.uid}, "status": status});
        let answer = self.patiently("PATCH", &format!("{}/status", pod.target()), Some(&patch));
        assert!(matches!(answer.status, 200 | 404), "{answer:?}");
    }

    /// Asks for the deletion of a pod. With a grace period in seconds it is terminating until it is deleted with 0, which is the
    /// kubelet's word that it has ended.
    pub fn delete_pod(&mut self, pod: &PodObject, grace_period: u32) {
        let options = json!({"gracePeriodSeconds": grace_period, "preconditions": {"uid": pod.uid}});
        let answer = self.patiently("DELETE", &pod.target(), Some(&options));
        assert!(matches!(answer.status, 200 | 202 | 404), "{answer:?}");
    }

    /// The pods of a node.
    pub fn pods_of(&mut self, node: &str) -> ApiAnswer {
        self.patiently("GET", &format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}"), None)
    }

    /// Sets an annotation of a service account.
    pub fn annotate_account(&mut self, namespace: &str, account: &str, name: &str, value: &str) {
        let patch = json!({"metadata": {"annotations": {name: value}}});
        let target = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}");
        let answer = self.patiently("PATCH", &target, Some(&patch));
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    /// Lets nodes ask for tokens for this audience, which since Kubernetes 1.33 they may not if no volume of a pod names it.
    pub fn allow_audience(&mut self, audience: &str) {
        let kind = "rbac.authorization.k8s.io";
        let name = json!({"name": "metadata-proxy-audience"});
        let rule =
            json!({"apiGroups": [""], "resources": [audience], "verbs": ["request-serviceaccounts-token-audience"]});
        self.create(&format!("/apis/{kind}/v1/clusterroles"), &json!({"metadata": name, "rules": [rule]}));
        let binding = json!({
            "metadata": name,
            "roleRef": {"apiGroup": kind, "kind": "ClusterRole", "name": name["name"]},
            "subjects": [{"apiGroup": kind, "kind": "Group", "name": "system:nodes"}],
        });
        self.create(&format!("/apis/{kind}/v1/clusterrolebindings"), &binding);
    }

    /// Gives the account `kube-system/proxy` the right to act as the node that it runs on, for what the proxy does, and returns
    /// a token of this account that is bound to a pod of that node.
    pub fn allow_own_account(&mut self, node: &str) -> String {
        self.create_account("kube-system", "proxy");
        let kind = "rbac.authorization.k8s.io";
        let rule = |group: &str, resource: &str, verbs: &[&str]| json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
        let rules = [
            rule("authentication.k8s.io", "nodes", &["impersonate:associated-node"]),
            rule("", "serviceaccounts/token", &["impersonate-on:associated-node:create"]),
            rule("", "pods", &["impersonate-on:associated-node:list", "impersonate-on:associated-node:watch"]),
            rule("", "serviceaccounts", &["impersonate-on:associated-node:get"]),
        ];
        let name = json!({"name": "metadata-proxy-as-its-node"});
        self.create(&format!("/apis/{kind}/v1/clusterroles"), &json!({"metadata": name, "rules": rules}));
        self.bind("metadata-proxy-as-its-node", "kube-system", "proxy");
        // The token names the node only if there is one.
        self.create("/api/v1/nodes", &json!({"metadata": {"name": node}}));
        let pod = self.create_pod("kube-system", "proxy", "proxy", node);
        self.token_of(&pod)
    }

    /// A token of a pod's account that is bound to the pod, as the kubelet gets one.
    pub fn token_of(&mut self, pod: &PodObject) -> String {
        let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.uid});
        let request = json!({"spec": {"boundObjectRef": bound, "expirationSeconds": 3600}});
        self.request_token(&pod.namespace, &pod.account, &request)
    }

    /// A token of an account that is bound to no pod, as `kubectl create token` gets one.
    pub fn token_without_pod(&mut self, namespace: &str, account: &str) -> String {
        self.request_token(namespace, account, &json!({"spec": {"expirationSeconds": 3600}}))
    }

    fn request_token(&mut self, namespace: &str, account: &str, request: &Value) -> String {
        let target = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let answer = self.patiently("POST", &target, Some(request));
        answer.body["status"]["token"].as_str().unwrap_or_else(|| panic!("no token: {answer:?}")).to_owned()
    }

    /// Gives an account the rights of a cluster role.
    pub fn bind(&mut self, role: &str, namespace: &str, account: &str) {
        let kind = "rbac.authorization.k8s.io";
        let binding = json!({
            "metadata": {"name": role},
            "roleRef": {"apiGroup": kind, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": account}],
        });
        self.create(&format!("/apis/{kind}/v1/clusterrolebindings"), &binding);
    }
}
