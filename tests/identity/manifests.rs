//! The manifests in `deploy/`, checked by a real API server: the result of `kubectl apply --dry-run=server` for each
//! folder that can be applied, and for the pods that result from it. `deploy/tests` compares the Helm chart with these
//! folders, object by object.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::kube::{ApiServer, Client, NODE, PodObject, kubectl, pause};
use crate::rights::eventually;
use crate::support::needs::{Test, tests};

/// Requirements of these tests. They have no node.
pub const NEEDS: [&str; 3] = ["openssl", "kube-apiserver", "kubectl"];

pub const TESTS: &[Test] = tests![
    the_api_server_accepts_everything_that_can_be_applied,
    only_the_proxy_has_a_token_and_only_with_an_account_of_its_own,
    what_is_installed_allows_tokens_for_the_audience_of_the_overlay_alone,
];

/// The folders that install Workload Identity, and whether the proxy has a token of its account.
const IDENTITY: [(&str, bool); 4] = [
    ("overlays/identity", true),
    ("tests/identity-own-node", true),
    ("tests/identity-kubelet", false),
    ("tests/identity-fenced", true),
];

/// Objects defined by the Prometheus operator and by Cilium: the group with its version, kind, plural and scope.
const FOREIGN: [(&str, &str, &str, &str, &str); 5] = [
    ("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors", "Namespaced"),
    ("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules", "Namespaced"),
    ("cilium.io", "v2", "CiliumLocalRedirectPolicy", "ciliumlocalredirectpolicies", "Namespaced"),
    ("cilium.io", "v2", "CiliumNetworkPolicy", "ciliumnetworkpolicies", "Namespaced"),
    ("cilium.io", "v2", "CiliumClusterwideNetworkPolicy", "ciliumclusterwidenetworkpolicies", "Cluster"),
];

/// Maximum time until the API server serves a new definition. It takes about a second.
const DEFINED_TIMEOUT: Duration = Duration::from_secs(60);

fn the_api_server_accepts_everything_that_can_be_applied() {
    let server = server();
    let folders = folders();
    for (folder, _) in IDENTITY {
        assert!(folders.iter().any(|found| found == folder), "{folder} is not among {folders:?}");
    }
    // All errors, not only the first.
    let refused: Vec<String> = folders.iter().filter_map(|folder| dry_run(&server, folder).err()).collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    let applied = server.admin().patiently("GET", "/apis/apps/v1/daemonsets", None).body;
    assert_eq!(applied["items"], json!([]), "it was to be a dry run");
}

fn only_the_proxy_has_a_token_and_only_with_an_account_of_its_own() {
    let server = server();
    let without = ["base", "overlays/self-managed"].map(|folder| (folder, false));
    let templates: Vec<(&str, bool, Value)> = IDENTITY
        .into_iter()
        .chain(without)
        .map(|(folder, has_token)| {
            let objects = dry_run(&server, folder).unwrap_or_else(|refused| panic!("{refused}"));
            let daemonset = objects.iter().find(|object| object["kind"] == "DaemonSet").expect("each has one");
            (folder, has_token, daemonset["spec"]["template"].clone())
        })
        .collect();
    let mut admin = server.admin();
    // A dry run creates no account.
    admin.create_account("kube-system", "gce-metadata-proxy");
    for (folder, has_token, template) in templates {
        let pod = admitted(&mut admin, &template);
        // The number of the class system-node-critical.
        assert_eq!(pod["spec"]["priority"], 2_000_001_000, "{folder}");
        let containers = pod["spec"]["containers"].as_array().expect("a list");
        let with_token: Vec<&Value> =
            containers.iter().filter(|one| has_token_of(&pod, one)).map(|container| &container["name"]).collect();
        let expected: &[&str] = if has_token { &["proxy"] } else { &[] };
        assert_eq!(with_token, expected, "{folder}");
    }
}

fn what_is_installed_allows_tokens_for_the_audience_of_the_overlay_alone() {
    let server = server();
    let mut admin = server.admin();
    admin.create_account("shop", "app");
    let pod = admin.create_pod("shop", "app", "app", NODE);
    let token = admin.own_token(NODE);
    let ways = [
        ("tests/identity-own-node", server.own_account(&token, NODE)),
        ("tests/identity-kubelet", server.node()),
        ("tests/identity-fenced", server.own_account_itself(&token)),
    ];
    for (folder, mut client) in ways {
        let objects = rendered(folder).unwrap_or_else(|wrong| panic!("{folder}: {wrong}"));
        let is_of_cluster = |object: &&Value| object["metadata"]["namespace"].is_null();
        objects.iter().filter(is_of_cluster).for_each(|object| admin.put(object));
        let audience = audience(&objects);
        eventually(|| match mint(&mut client, &pod, &audience) {
            201 => Ok(()),
            status => Err((folder, status)),
        });
        // A policy takes effect about a second after it was created.
        eventually(|| match mint(&mut client, &pod, "https://other.example") {
            403 | 422 => Ok(()),
            status => Err((folder, status)),
        });
    }
}

/// An API server with the objects that a cluster has before anything is installed.
fn server() -> ApiServer {
    let server = ApiServer::start(None);
    let mut admin = server.admin();
    for foreign in FOREIGN {
        define(&mut admin, foreign);
    }
    // A controller makes this one in each namespace.
    admin.create_account("default", "default");
    server
}

/// Defines a kind of which only the name is known: `deploy/tests` checks the fields.
fn define(admin: &mut Client, (group, version, kind, plural, scope): (&str, &str, &str, &str, &str)) {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"kind": kind, "plural": plural},
            "versions": [{"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    admin.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition);
    let began = Instant::now();
    let target = format!("/apis/{group}/{version}/{plural}");
    while admin.patiently("GET", &target, None).status != 200 {
        assert!(began.elapsed() < DEFINED_TIMEOUT, "{kind} is not served");
        pause(Duration::from_millis(100));
    }
}

/// The result of `kubectl apply --dry-run=server` for a folder: the objects, or the API server's errors.
fn dry_run(server: &ApiServer, folder: &str) -> Result<Vec<Value>, String> {
    let config = server.admin_kubeconfig();
    let cache = server.dir().join("kubectl");
    let rendered = kustomized(folder)?;
    let mut apply = kubectl();
    apply.arg("--kubeconfig").arg(config).arg("--cache-dir").arg(cache);
    apply.args(["apply", "--dry-run=server", "--validate=strict", "--output=json", "--filename=-"]);
    let applied = said(&mut apply, &rendered).map_err(|said| format!("{folder}: {said}"))?;
    let applied: Value = serde_json::from_slice(&applied).map_err(|error| format!("{folder}: {error}"))?;
    // A single object is not in a list.
    let objects = applied["items"].as_array().cloned();
    Ok(objects.unwrap_or_else(|| vec![applied]))
}

/// The objects of a folder.
fn rendered(folder: &str) -> Result<Vec<Value>, String> {
    let text = String::from_utf8(kustomized(folder)?).map_err(|error| error.to_string())?;
    serde_saphyr::from_multiple(&text).map_err(|error| error.to_string())
}

fn kustomized(folder: &str) -> Result<Vec<u8>, String> {
    said(kubectl().arg("kustomize").arg(deploy().join(folder)), b"")
}

/// The audience that the proxy requests, from those objects.
fn audience(objects: &[Value]) -> String {
    let daemonset = objects.iter().find(|object| object["kind"] == "DaemonSet").expect("each has one");
    let proxy = &daemonset["spec"]["template"]["spec"]["containers"][0];
    let variables = proxy["env"].as_array().expect("it has variables");
    let variable = variables.iter().find(|variable| variable["name"] == "METADATA_PROXY_TOKEN_AUDIENCE");
    variable.and_then(|variable| variable["value"].as_str()).expect("it is set").to_owned()
}

/// The status of a request for a token of a pod's account.
fn mint(client: &mut Client, pod: &PodObject, audience: &str) -> u16 {
    let reference = json!({"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid});
    let spec = json!({"audiences": [audience], "expirationSeconds": 3600, "boundObjectRef": reference});
    let target = format!("/api/v1/namespaces/{}/serviceaccounts/{}/token", pod.namespace, pod.account);
    client.patiently("POST", &target, Some(&json!({"spec": spec}))).status
}

/// The output of a command. A warning counts as a failure, because a user would see it.
fn said(command: &mut Command, input: &[u8]) -> Result<Vec<u8>, String> {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().map_err(|error| error.to_string())?;
    let mut stdin = child.stdin.take().expect("it was piped");
    // kubectl reads all of it before it writes.
    stdin.write_all(input).map_err(|error| error.to_string())?;
    drop(stdin);
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    if output.status.success() && complaint.is_empty() { Ok(output.stdout) } else { Err(complaint.into_owned()) }
}

/// The folders that can be applied, below `deploy/`. Components are parts of them.
fn folders() -> Vec<String> {
    let mut folders = Vec::new();
    let mut open = vec![deploy()];
    while let Some(dir) = open.pop() {
        let entries = fs::read_dir(&dir).expect("a directory of the repository");
        open.extend(entries.map(|entry| entry.expect("readable").path()).filter(|path| path.is_dir()));
        let kustomization = fs::read_to_string(dir.join("kustomization.yaml")).unwrap_or_default();
        if kustomization.lines().any(|line| line == "kind: Kustomization") {
            let below = dir.strip_prefix(deploy()).expect("it is below");
            folders.push(below.to_str().expect("text").to_owned());
        }
    }
    folders.sort();
    folders
}

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

/// A pod of this template, as the API server would keep it.
fn admitted(admin: &mut Client, template: &Value) -> Value {
    let mut metadata = template["metadata"].clone();
    metadata["generateName"] = json!("gce-metadata-proxy-");
    let pod = json!({"metadata": metadata, "spec": template["spec"]});
    let answer = admin.patiently("POST", "/api/v1/namespaces/kube-system/pods?dryRun=All", Some(&pod));
    assert_eq!(answer.status, 201, "{}", answer.body["message"]);
    answer.body
}

/// Whether a container has a volume with a token of the pod's account.
fn has_token_of(pod: &Value, container: &Value) -> bool {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let is_token = |volume: &Value| {
        list(&volume["projected"]["sources"]).iter().any(|it| it["serviceAccountToken"] != json!(null))
    };
    let volumes = list(&pod["spec"]["volumes"]);
    let tokens: Vec<&Value> = volumes.iter().filter(|volume| is_token(volume)).map(|volume| &volume["name"]).collect();
    list(&container["volumeMounts"]).iter().any(|mount| tokens.contains(&&mount["name"]))
}
