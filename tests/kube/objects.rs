//! What tests do with objects: namespaces, accounts and pods.

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

    /// Creates a pod that is scheduled already. As by default, it has a volume with a token for the API server.
    pub fn create_pod(&mut self, namespace: &str, name: &str, account: &str, node: &str) -> PodObject {
        self.create_pod_with(namespace, name, account, node, true)
    }

    /// Creates a pod, with a volume for that token or without.
    pub fn create_pod_with(
        &mut self,
        namespace: &str,
        name: &str,
        account: &str,
        node: &str,
        mounts_token: bool,
    ) -> PodObject {
        let collection = format!("/api/v1/namespaces/{namespace}/pods");
        let object = json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": node,
                "serviceAccountName": account,
                "automountServiceAccountToken": mounts_token,
                "containers": [{"name": "app", "image": "example.com/app"}],
            },
        });
        let created = self.patiently("POST", &collection, Some(&object));
        // The server may have ended between the creation and its answer, or in the middle of that.
        let is_there = created.status == 409 || created.status == 201 && created.body.is_null();
        let there = if is_there { self.patiently("GET", &format!("{collection}/{name}"), None) } else { created };
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
}
