//! A real kube-proxy beside the redirect, in each of its modes and in both orders of start, with what a tenant can tell it.
//!
//! It gets its Services from a real API server, which refuses some of the attacks: what it refuses is tried too, so that a release
//! that no longer does is noticed. `attacks/rules.rs` has the rules that would follow.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::attacks::{Read, Stranger, TOOLS, count, proxy, read, read_briefly, seen};
use crate::kube::{ApiServer, Client, NODE, kube_proxy as kube_command};
use crate::process::Process;
use crate::support::needs::{Test, tests};
use crate::world::{self, SERVER, WAYS_ROUND, World, eventually, redirect, succeeds};

/// What each of these tests needs besides.
pub const NEEDS: [&str; 3] = ["openssl", "kube-apiserver", "kube-proxy"];

/// The tests of this module.
pub const TESTS: &[Test] = tests![iptables_mode_holds_against_attacks, nftables_mode_holds_against_attacks];

/// The same where the kernel has IPVS.
pub const WITH_IPVS: &[Test] = tests![ipvs_mode_holds_against_attacks];

const SERVICES: &str = "/api/v1/namespaces/default/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// Requests of each pod in each arrangement.
const REQUESTS: usize = 10;

/// The address of the Service that is honest, and of the one whose endpoint is the server.
const HONEST: &str = "10.96.0.80";
const ENDPOINT: &str = "fd00:96::254";

/// Who is there before the other.
#[derive(Debug, Clone, Copy)]
enum First {
    KubeProxy,
    Redirect,
}

fn a_mode_holds_against_attacks(mode: &str) {
    let world = World::new();
    let _stranger = Stranger::new(&world.pods[1], 80);
    let server = ApiServer::start(Some(Arc::clone(&world.node)));
    let mut api = server.admin();
    create_node(&mut api);
    service(&mut api, "honest", &json!({"clusterIP": HONEST}));
    slice(&mut api, "honest", "IPv4", "10.8.2.2", 201);
    for tool in TOOLS {
        for first in [First::KubeProxy, First::Redirect] {
            let what = format!("{mode} mode, {tool}, first {first:?}");
            let install = || succeeds(&redirect(&world.node, &format!("install --tool {tool}")));
            let (kube_proxy, proxy) = match first {
                First::KubeProxy => {
                    let kube_proxy = start(&world, &server, mode);
                    install();
                    (kube_proxy, proxy(&world))
                }
                First::Redirect => {
                    install();
                    let proxy = proxy(&world);
                    (start(&world, &server, mode), proxy)
                }
            };
            let check = redirect(&world.node, &format!("check --tool {tool}"));
            if mode == tool && comes_first(mode, tool, first) {
                // Its rules do not accept what the redirect blocks. Nobody can know that of rules of others.
                assert!(check.code == Some(1) && check.stdout.contains("rules of others come before"), "{check:?}");
            } else if mode == "ipvs" && tool == "iptables" {
                // While it starts it puts its chains first. What it does with packets is not in them.
                let is_preceded = check.stdout.contains("rules of others come before");
                assert!(check.code == Some(0) || is_preceded, "{check:?}");
                println!("{what}: its rules come first: {is_preceded}");
                install();
            } else {
                succeeds(&check);
            }
            count(&world);
            let mut answered = is_held(&world, &what);
            attack(&mut api, &world);
            let under_attack = format!("{what}, under attack");
            if comes_first(mode, tool, first) {
                for pod in &world.pods {
                    let read = read_briefly(pod, SERVER);
                    assert!(matches!(read, Read::Proxy | Read::Nothing), "{under_attack}: {read:?}");
                }
                // Whose rules are first changes with each change of the redirect's.
                install();
            }
            if !(mode == "nftables" && tool == "iptables") {
                answered += is_held(&world, &under_attack);
            }
            assert_eq!(read(&world.pods[0], &format!("http://{HONEST}")), Read::Stranger, "{what}: it serves Services");
            let endpoint = read_briefly(&world.pods[0], &format!("http://[{ENDPOINT}]"));
            assert_eq!(endpoint, Read::Nothing, "{what}: a Service whose endpoint is the server");
            let node = read_briefly(&world.node, SERVER);
            assert!(matches!(node, Read::Server | Read::Nothing), "{what}: {node:?} answers the node itself");
            let seen = seen(&world);
            assert_eq!(seen, 0, "{what}: packets of pods reached the server");
            if mode == "ipvs" {
                // Although the addresses that others claim are the node's now.
                succeeds(&redirect(&world.node, &format!("check --tool {tool}")));
            }
            end_attack(&mut api);
            kube_proxy.kill();
            if mode == "ipvs" {
                // What it leaves would answer the next proxy in the server's name.
                // It fails at chains that are in use, which are flushed below.
                let _ = kube_command(&world.node).arg("--cleanup").status().expect("it was built");
                world.node.sh("! ip link show kube-ipvs0 2>/dev/null");
            }
            println!(
                "held: {what}: {answered} requests of pods, all answered by the proxy; {seen} packets of pods at the server"
            );
            proxy.kill();
            succeeds(&redirect(&world.node, "remove"));
            world.node.sh("nft flush ruleset");
        }
    }
}

/// Whether kube-proxy rewrites what is for a Service before the redirect does. IPVS comes after both tools. Of rules in one chain, and of chains with one
/// priority, the youngest come first.
fn comes_first(mode: &str, tool: &str, first: First) -> bool {
    tool == "iptables" && (mode == "nftables" || mode == "iptables" && matches!(first, First::Redirect))
}

fn iptables_mode_holds_against_attacks() {
    a_mode_holds_against_attacks("iptables");
}

fn nftables_mode_holds_against_attacks() {
    a_mode_holds_against_attacks("nftables");
}

fn ipvs_mode_holds_against_attacks() {
    a_mode_holds_against_attacks("ipvs");
}

/// kube-proxy, which serves the honest Service.
fn start(world: &World, server: &ApiServer, mode: &str) -> Process {
    let mut command = kube_command(&world.node);
    command.arg(format!("--kubeconfig={}", server.admin_kubeconfig().display()));
    command.args([
        &format!("--proxy-mode={mode}"),
        &format!("--hostname-override={NODE}"),
        "--cluster-cidr=10.8.0.0/16,fd00:b::/32",
        "--healthz-bind-address=127.0.0.1:10256",
        // These are the machine's, not the namespace's.
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0s",
        "--conntrack-tcp-timeout-close-wait=0s",
    ]);
    let process = Process::spawn(&mut command);
    eventually("kube-proxy serves", || read_briefly(&world.pods[0], &format!("http://{HONEST}")) == Read::Stranger);
    process
}

/// Every request of every pod is answered by the proxy, and other ways are closed. Returns the number of requests.
fn is_held(world: &World, what: &str) -> usize {
    for pod in &world.pods {
        for _ in 0..REQUESTS {
            assert_eq!(read(pod, SERVER), Read::Proxy, "{what}");
        }
        for way in WAYS_ROUND {
            let read = read_briefly(pod, way);
            assert!(matches!(read, Read::Proxy | Read::Nothing), "{what}: {way} leads to {read:?}");
        }
    }
    world.pods.len() * REQUESTS
}

/// What a tenant of the cluster can do with Services and their endpoints.
fn attack(api: &mut Client, world: &World) {
    // CVE-2020-8554. By IPv4 the API server refuses the field, and takes the status.
    let external = |addr| json!({"externalIPs": [addr]});
    refused(api, SERVICES, &service_object("external", &external("169.254.169.254")));
    service(api, "external", &with(&external("fd20:ce::254"), &json!({"ipFamilies": ["IPv6"]})));
    slice(api, "external", "IPv6", "fd00:b:2::2", 201);
    service(api, "balancer", &json!({"type": "LoadBalancer"}));
    slice(api, "balancer", "IPv4", "10.8.2.2", 201);
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "169.254.169.254", "ipMode": "VIP"}]}}});
    let patched = api.patiently("PATCH", &format!("{SERVICES}/balancer/status"), Some(&status));
    assert_eq!(patched.status, 200, "{patched:?}");
    // CVE-2021-25737, and the same by the address that nobody checks. CVE-2026-42965: by a name, which kube-proxy ignores.
    service(api, "endpoint", &json!({"clusterIP": ENDPOINT, "ipFamilies": ["IPv6"]}));
    slice(api, "endpoint", "IPv4", "169.254.169.254", 422);
    slice(api, "endpoint", "IPv6", "fd20:ce::254", 201);
    slice(api, "endpoint", "FQDN", "metadata.google.internal", 201);
    eventually("kube-proxy knows", || {
        // In IPVS mode the addresses of Services are those of an interface.
        let rules = world.node.sh("nft list ruleset; ip address show kube-ipvs0 2>/dev/null || true");
        ["169.254.169.254", "fd20:ce::254", ENDPOINT].iter().all(|addr| {
            let lines = rules.lines().filter(|line| line.contains(addr));
            // Those of the redirect bear its mark.
            lines
                .filter(|line| !line.contains("gce") && !line.contains("GCE") && !line.contains(" comment \"n"))
                .count()
                > 0
        })
    });
}

fn end_attack(api: &mut Client) {
    for name in ["external", "balancer", "endpoint"] {
        api.patiently("DELETE", &format!("{SERVICES}/{name}"), None);
    }
    for name in ["external-ipv6", "balancer-ipv4", "endpoint-ipv6", "endpoint-fqdn"] {
        api.patiently("DELETE", &format!("{SLICES}/{name}"), None);
    }
}

fn create_node(api: &mut Client) {
    let cidrs = ["10.8.0.0/16", "fd00:b::/64"];
    let node = json!({"metadata": {"name": NODE}, "spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs}});
    api.create("/api/v1/nodes", &node);
    let address = |addr| json!({"type": "InternalIP", "address": addr});
    let status = json!({"status": {"addresses": [address(world::NODE), address("fd00:a::2")]}});
    let patched = api.patiently("PATCH", &format!("/api/v1/nodes/{NODE}/status"), Some(&status));
    assert_eq!(patched.status, 200, "{patched:?}");
}

fn service_object(name: &str, spec: &Value) -> Value {
    json!({"metadata": {"name": name}, "spec": with(&json!({"ports": [{"port": 80, "name": "http"}]}), spec)})
}

fn service(api: &mut Client, name: &str, spec: &Value) {
    api.create(SERVICES, &service_object(name, spec));
}

/// An object with the fields of both.
fn with(one: &Value, other: &Value) -> Value {
    let fields = [one, other].into_iter().flat_map(|object| object.as_object().expect("an object").clone());
    Value::Object(fields.collect())
}

fn slice(api: &mut Client, service: &str, kind: &str, addr: &str, expected: u16) {
    let name = format!("{service}-{}", kind.to_lowercase());
    let labels = json!({"kubernetes.io/service-name": service});
    let slice = json!({
        "metadata": {"name": name, "labels": labels},
        "addressType": kind,
        "endpoints": [{"addresses": [addr], "conditions": {"ready": true}}],
        "ports": [{"name": "http", "port": 80}],
    });
    let answer = api.patiently("POST", SLICES, Some(&slice));
    assert_eq!(answer.status, expected, "{name}: {answer:?}");
}

fn refused(api: &mut Client, collection: &str, object: &Value) {
    let answer = api.patiently("POST", collection, Some(object));
    assert_eq!(answer.status, 422, "{answer:?}");
}
