//! A rolling update: the new proxy takes over tokens from the one before it, and nobody else gets any or is believed.

use std::io::Read as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::Arc;
use std::time::Duration;

use mock::google::{Endpoint, Workload};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cgroups::PodGroup;
use crate::google::Cloud;
use crate::kube::{Client, NODE};
use crate::pod::Pod;
use crate::support::needs::{Test, tests};
use crate::tokens::linked_accounts;
use crate::world::World;

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    a_rolling_update_costs_no_exchange,
    nobody_else_gets_tokens,
    who_takes_the_name_is_not_believed,
    a_pod_of_another_controller_starts_cold,
];

const ACCOUNT: &str = "gce-metadata-proxy";
const DAEMONSET: &str = "5d3f6c0e-0000-4000-8000-000000000001";
const OTHER_DAEMONSET: &str = "5d3f6c0e-0000-4000-8000-000000000002";

const TAKEN: &str = "tokens were taken over";
const COLD: &str = "no tokens were taken over";

/// A pod of the proxy: its object and its control group.
struct ProxyPod {
    uid: String,
    group: PodGroup,
}

impl ProxyPod {
    fn new(world: &World, api: &mut Client, name: &str, controller: &str) -> Self {
        api.create_account("kube-system", ACCOUNT);
        let owner =
            json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "p", "uid": controller, "controller": true});
        let object = json!({
            "metadata": {"name": name, "ownerReferences": [owner]},
            "spec": {
                "nodeName": NODE,
                "hostNetwork": true,
                "serviceAccountName": ACCOUNT,
                "automountServiceAccountToken": false,
                "containers": [{"name": "proxy", "image": "example.com/proxy"}],
            },
        });
        let created = api.patiently("POST", "/api/v1/namespaces/kube-system/pods", Some(&object));
        let uid = created.body["metadata"]["uid"].as_str().unwrap_or_else(|| panic!("{created:?}")).to_owned();
        let group = world.node.group(&uid);
        Self { uid, group }
    }

    fn flags(&self, google: &Cloud) -> Vec<String> {
        let own = ["--reuse-port".to_owned(), format!("--handover={}", self.uid)];
        google.flags().into_iter().chain(own).collect()
    }
}

fn strs(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

/// Pods of team-0: three with a linked account, and one without.
fn pods(world: &World, api: &mut Client, google: &Cloud) -> Vec<Arc<Pod>> {
    linked_accounts(api, google, 3);
    api.create_account("team-0", "plain");
    let accounts = ["app-0", "app-1", "app-2", "plain"];
    let start = |(number, account): (u8, &&str)| {
        let object = api.create_pod("team-0", &format!("pod-{number}"), account, NODE);
        Pod::start(&world.node, object, world.address(number))
    };
    (0..).zip(&accounts).map(start).collect()
}

/// The tokens that a pod gets, and in how many seconds they end.
fn tokens_of(pod: &Arc<Pod>) -> Vec<(String, u64)> {
    let paths = ["token", "token?scopes=https://www.googleapis.com/auth/devstorage.read_only"];
    let token = |path: &&str| {
        let asked = pod.get(&format!("/computeMetadata/v1/instance/service-accounts/default/{path}"));
        assert_eq!(asked.status, 200, "{path}: {}", asked.body);
        let token: Value = serde_json::from_str(&asked.body).expect("JSON");
        let text = token["access_token"].as_str().expect("a token").to_owned();
        (text, token["expires_in"].as_u64().expect("a number"))
    };
    paths.iter().map(token).collect()
}

/// How often Google was asked for the accounts of these pods.
fn exchanges(google: &Cloud) -> Vec<u64> {
    let count = |account: &str| {
        let workload = Workload::new("team-0", account);
        [Endpoint::Sts, Endpoint::AccessToken, Endpoint::IdToken].map(|endpoint| google.count_of(endpoint, &workload))
    };
    ["app-0", "app-1", "app-2", "plain"].iter().flat_map(|account| count(account)).collect()
}

fn a_rolling_update_costs_no_exchange() {
    let world = World::new();
    let mut api = world.server.admin();
    let google = Cloud::start(&world, &mut api);
    let proxies = ["one", "two", "three"].map(|name| ProxyPod::new(&world, &mut api, name, DAEMONSET));
    let mut first = world.proxy_of_pod(&proxies[0].group, &strs(&proxies[0].flags(&google)));
    let pods = pods(&world, &mut api, &google);
    let (before, asked) = (pods.iter().map(tokens_of).collect::<Vec<_>>(), Instant::now());
    let counts = exchanges(&google);
    assert!(counts.iter().sum::<u64>() > 0);

    let mut running = None;
    for (number, proxy) in (1..).zip(&proxies[1..]) {
        let next = world.beside_of_pod(&proxy.group, &strs(&proxy.flags(&google)));
        let line = next.line(TAKEN);
        assert!(!line.iter().any(|line| line.contains(COLD)), "{line:?}");
        next.line("serving pods");
        match running.replace(next) {
            None => assert!(first.end().success()),
            Some(before) => assert!(before.terminate().success()),
        }
        for (pod, before) in pods.iter().zip(&before) {
            let (now, elapsed) = (tokens_of(pod), asked.elapsed().as_secs());
            for ((token, left), (token_before, left_before)) in now.iter().zip(before) {
                assert_eq!(token, token_before, "update {number}");
                let (least, most) = (left_before.saturating_sub(elapsed + 2), left_before);
                assert!((least..=*most).contains(left), "{left} s left, {left_before} s before {elapsed} s");
            }
        }
        assert_eq!(exchanges(&google), counts, "update {number}");
    }
}

/// The name of the socket.
fn name(world: &World) -> String {
    format!("gce-metadata-proxy/handover/{}", world.proxy_address())
}

fn nobody_else_gets_tokens() {
    let world = World::new();
    let mut api = world.server.admin();
    let google = Cloud::start(&world, &mut api);
    let own = ProxyPod::new(&world, &mut api, "one", DAEMONSET);
    api.create_account("team-0", "default");
    let other = api.create_pod("team-0", "other", "default", NODE);
    let other = world.node.group(&other.uid);
    let proxy = world.proxy_of_pod(&own.group, &strs(&own.flags(&google)));
    let curl = format!("curl -s -m 5 --http0.9 --abstract-unix-socket {} http://x/ | wc -c", name(&world));
    let doors: Vec<String> = other.doors().map(|door| format!("echo $$ > {}; ", door.display())).collect();
    let doors = doors.concat();
    for (who, shell) in [
        ("a process outside pods", curl.clone()),
        ("another user", format!("setpriv --reuid=61999 --clear-groups sh -c '{curl}'")),
        ("a pod on the node's network", format!("{doors}{curl}")),
    ] {
        // The name is the proxy's by now, and not this test's to wait for.
        crate::rights::eventually(|| {
            let names = world.node.namespace.sh("cat /proc/net/unix");
            if names.contains(&name(&world)) { Ok(()) } else { Err("no socket".to_owned()) }
        });
        // The connection ends without a byte.
        let mut command = world.node.namespace.command_with_groups("sh");
        let output = command.args(["-c", &shell]).output().expect("sh");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0", "{who}: {output:?}");
    }
    proxy.line("nothing was handed over to a process that asked: it is a process outside pods");
}

fn who_takes_the_name_is_not_believed() {
    let world = World::new();
    let mut api = world.server.admin();
    let google = Cloud::start(&world, &mut api);
    let proxies = ["one", "two"].map(|name| ProxyPod::new(&world, &mut api, name, DAEMONSET));
    let name = name(&world);
    let squatter = world.node.namespace.spawn(move || {
        let listener = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name).expect("short")).expect("free");
        let (mut stream, _) = listener.accept().expect("the successor");
        let mut said = Vec::new();
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("not zero");
        let _ = stream.read_to_end(&mut said);
        said
    });
    std::thread::yield_now();
    let _first = world.proxy_of_pod(&proxies[0].group, &strs(&proxies[0].flags(&google)));
    let next = world.beside_of_pod(&proxies[1].group, &strs(&proxies[1].flags(&google)));
    next.line("no tokens were taken over from the process before: who offers them is not believed: it is a process outside pods");
    next.line("serving pods");
    assert_eq!(squatter.join().expect("no panic"), b"", "it is told nothing");
}

fn a_pod_of_another_controller_starts_cold() {
    let world = World::new();
    let mut api = world.server.admin();
    let google = Cloud::start(&world, &mut api);
    let own = ProxyPod::new(&world, &mut api, "one", DAEMONSET);
    let other = ProxyPod::new(&world, &mut api, "two", OTHER_DAEMONSET);
    let first = world.proxy_of_pod(&own.group, &strs(&own.flags(&google)));
    let next = world.beside_of_pod(&other.group, &strs(&other.flags(&google)));
    next.line("who offers them is not believed: it is pod kube-system/one, which has another namespace, service account or controller");
    next.line("serving pods");
    first.line("nothing was handed over to a process that asked: it is pod kube-system/two");
}
