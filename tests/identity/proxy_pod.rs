//! [`ProxyPod`]: a pod of the proxy's own `DaemonSet`.

use serde_json::json;

use crate::cgroups::PodGroup;
use crate::google::Cloud;
use crate::kube::{Client, NODE};
use crate::process::Process;
use crate::world::{Proxy, World};

pub const ACCOUNT: &str = "gce-metadata-proxy";
pub const DAEMONSET: &str = "5d3f6c0e-0000-4000-8000-000000000001";
pub const OTHER_DAEMONSET: &str = "5d3f6c0e-0000-4000-8000-000000000002";

/// The log line of a hand-over. A cold start's says "took over no tokens".
pub const TAKEN: &str = "took over tokens";

/// A pod of the proxy: its object and its control group.
pub struct ProxyPod {
    uid: String,
    pub group: PodGroup,
}

impl ProxyPod {
    pub fn new(world: &World, api: &mut Client, name: &str, controller: &str) -> Self {
        Self::of(world, api, "kube-system", ACCOUNT, name, controller)
    }

    /// In another namespace, or of another account.
    pub fn of(world: &World, api: &mut Client, namespace: &str, account: &str, name: &str, controller: &str) -> Self {
        api.create_account(namespace, account);
        let owner =
            json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "p", "uid": controller, "controller": true});
        let object = json!({
            "metadata": {"name": name, "ownerReferences": [owner]},
            "spec": {
                "nodeName": NODE,
                "hostNetwork": true,
                "serviceAccountName": account,
                "automountServiceAccountToken": false,
                "containers": [{"name": "proxy", "image": "example.com/proxy"}],
            },
        });
        let created = api.patiently("POST", &format!("/api/v1/namespaces/{namespace}/pods"), Some(&object));
        let uid = created.body["metadata"]["uid"].as_str().unwrap_or_else(|| panic!("{created:?}")).to_owned();
        let group = world.node.group(&uid);
        Self { uid, group }
    }

    pub fn flags(&self, google: &Cloud) -> Vec<String> {
        let own = ["--reuse-port".to_owned(), format!("--handover={}", self.uid)];
        google.flags().into_iter().chain(own).collect()
    }

    /// The proxy, ready, as a process of this pod.
    pub fn start(&self, world: &World, google: &Cloud) -> Proxy {
        world.proxy_of_pod(&self.group, &strs(&self.flags(google)))
    }

    /// Another one, as a process of this pod, beside that of its predecessor.
    pub fn start_beside(&self, world: &World, google: &Cloud) -> Process {
        world.beside_of_pod(&self.group, &strs(&self.flags(google)))
    }

    /// The same, after it has taken over tokens.
    pub fn take_over(&self, world: &World, google: &Cloud) -> Process {
        let next = self.start_beside(world, google);
        next.line(TAKEN);
        next.line("serving pods");
        next
    }
}

pub fn strs(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}
