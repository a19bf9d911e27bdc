//! A rolling update: the new proxy takes over tokens from the one before it, and nobody else gets any or is believed.

mod full_node;

use std::io::Read as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::Arc;
use std::time::Duration;

use mock::google::{Endpoint, Workload};
use serde_json::Value;
use tokio::time::Instant;

use crate::cgroups::PodGroup;
use crate::google::{Cloud, world_with_google};
use crate::kube::{Client, NODE};
use crate::pod::{Asked, Pod};
use crate::proxy_pod::{ACCOUNT, DAEMONSET, OTHER_DAEMONSET, ProxyPod, TAKEN, strs};
use crate::support::needs::{Test, tests};
use crate::tokens::linked_accounts;
use crate::world::World;
use full_node::an_update_of_a_full_node_under_load_costs_nothing;

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    a_rolling_update_costs_no_exchange,
    containers_take_over,
    nobody_else_gets_tokens,
    who_takes_the_name_is_not_believed,
    a_pod_of_another_controller_starts_cold,
    a_predecessor_that_leaves_before_pods_are_listed_is_not_waited_for,
];

/// With a full node.
pub const ALONE: &[Test] = tests![an_update_of_a_full_node_under_load_costs_nothing];

/// Pods of team-0: three with a linked account, and one without.
fn pods(world: &World, api: &mut Client, google: &Cloud) -> Vec<Arc<Pod>> {
    linked_accounts(api, google, 3);
    api.create_account("team-0", "plain");
    world.pods_of(api, &["app-0", "app-1", "app-2", "plain"])
}

/// The tokens that a pod gets, and in how many seconds they end.
pub fn tokens_of(pod: &Arc<Pod>) -> Vec<(String, u64)> {
    let token = |path: &str| {
        let asked = asked(pod, path);
        assert_eq!(asked.status, 200, "{path}: {}", asked.body);
        let token: Value = serde_json::from_str(&asked.body).expect("JSON");
        let text = token["access_token"].as_str().expect("a token").to_owned();
        (text, token["expires_in"].as_u64().expect("a number"))
    };
    TOKENS.into_iter().map(token).collect()
}

/// The tokens that a pod asks for.
const TOKENS: [&str; 2] = ["token", "token?scopes=https://www.googleapis.com/auth/devstorage.read_only"];

fn asked(pod: &Arc<Pod>, path: &str) -> Asked {
    pod.get(&format!("/computeMetadata/v1/instance/service-accounts/default/{path}"))
}

/// Asks for the tokens of a pod until it gets them.
pub fn ask_until_given(pod: &Arc<Pod>) {
    for path in TOKENS {
        crate::rights::eventually(|| match asked(pod, path) {
            Asked { status: 200, .. } => Ok(()),
            other => Err(other),
        });
    }
}

/// Google's endpoints.
const ENDPOINTS: [Endpoint; 3] = [Endpoint::Sts, Endpoint::AccessToken, Endpoint::IdToken];

/// Number of requests to Google for the accounts of these pods, by endpoint.
fn exchanges(google: &Cloud) -> Vec<u64> {
    let count = |account: &str| {
        let workload = Workload::new("team-0", account);
        ENDPOINTS.map(|endpoint| google.count_of(endpoint, &workload))
    };
    ["app-0", "app-1", "app-2", "plain"].iter().flat_map(|account| count(account)).collect()
}

fn a_rolling_update_costs_no_exchange() {
    let (world, mut api, google) = world_with_google();
    let proxies = ["one", "two", "three"].map(|name| ProxyPod::new(&world, &mut api, name, DAEMONSET));
    let mut first = proxies[0].start(&world, &google);
    let pods = pods(&world, &mut api, &google);
    let (before, asked) = (pods.iter().map(tokens_of).collect::<Vec<_>>(), Instant::now());
    let counts = exchanges(&google);
    assert!(counts.iter().sum::<u64>() > 0);

    let mut running = None;
    for (number, proxy) in (1..).zip(&proxies[1..]) {
        wait_for_offer(&world);
        let next = proxy.start_beside(&world, &google);
        next.line("dropped=0");
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

/// Both proxies run in containers.
fn containers_take_over() {
    let (world, mut api, google) = world_with_google();
    let _mock = world.mock();
    let proxies = ["one", "two"].map(|name| ProxyPod::new(&world, &mut api, name, DAEMONSET));
    let first = world.contained_beside(&proxies[0].group, &strs(&proxies[0].flags(&google)));
    first.line("cache warmed up");
    let pods = pods(&world, &mut api, &google);
    let (before, counts) = (pods.iter().map(tokens_of).collect::<Vec<_>>(), exchanges(&google));
    let next = world.contained_beside(&proxies[1].group, &strs(&proxies[1].flags(&google)));
    next.line(TAKEN);
    next.line("serving pods");
    first.kill();
    for (pod, before) in pods.iter().zip(&before) {
        let texts = |tokens: &[(String, u64)]| tokens.iter().map(|(text, _)| text.clone()).collect::<Vec<_>>();
        assert_eq!(texts(&tokens_of(pod)), texts(before));
    }
    assert_eq!(exchanges(&google), counts);
}

/// Waits until a proxy offers its tokens: once it serves pods and its predecessor has ended.
fn wait_for_offer(world: &World) {
    let name = name(world);
    crate::rights::eventually(|| {
        let names = world.node.namespace.sh("cat /proc/net/unix");
        if names.contains(&name) { Ok(()) } else { Err("no socket".to_owned()) }
    });
}

/// Connects to the socket with these shell commands before it and as this user. Returns the number of bytes received.
fn got(world: &World, doors: &str, user: &str) -> usize {
    wait_for_offer(world);
    let name = name(world);
    let curl = format!("curl -s -m 5 --http0.9 --abstract-unix-socket {name} http://x/ | wc -c");
    let mut command = world.node.namespace.command_with_groups("sh");
    let output = command.args(["-c", &format!("{doors} {user} sh -c '{curl}'")]).output().expect("sh");
    String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or_else(|_| panic!("{output:?}"))
}

/// A shell's commands to join the groups of a pod.
fn joins(group: &PodGroup) -> String {
    let joins = group.doors().map(|door| format!("echo $$ > {} || exit 1; ", door.display()));
    joins.collect::<Vec<_>>().concat()
}

/// Each differs in one thing from the next pod of the proxy, which gets an answer.
fn nobody_else_gets_tokens() {
    let (world, mut api, google) = world_with_google();
    let [own, next] = ["one", "two"].map(|name| ProxyPod::new(&world, &mut api, name, DAEMONSET));
    let foreign = ProxyPod::of(&world, &mut api, "team-0", ACCOUNT, "foreign", DAEMONSET);
    let account = ProxyPod::of(&world, &mut api, "kube-system", "other", "account", DAEMONSET);
    let controller = ProxyPod::new(&world, &mut api, "controller", OTHER_DAEMONSET);
    api.create_account("team-0", "default");
    let other = api.create_pod("team-0", "other", "default", NODE);
    let other = world.node.group(&other.uid);
    let proxy = own.start(&world, &google);
    let another = "setpriv --reuid=61999 --clear-groups";
    for (who, doors, user) in [
        ("a process outside pods", String::new(), ""),
        ("another user", String::new(), another),
        ("another user in the next pod", joins(&next.group), another),
        ("a pod on the node's network", joins(&other), ""),
        ("one in another namespace", joins(&foreign.group), ""),
        ("one of another account", joins(&account.group), ""),
        ("one of another controller", joins(&controller.group), ""),
        // It is no proxy either, but it is told the version.
        ("the next pod of the proxy", joins(&next.group), ""),
    ] {
        let bytes = got(&world, &doors, user);
        println!("{who}: {bytes} bytes");
        assert_eq!(bytes, if who.starts_with("the next") { 24 } else { 0 }, "{who}");
    }
    // The first of a minute.
    proxy.line("nothing was handed over to a process that asked: it is a process outside pods");
}

fn who_takes_the_name_is_not_believed() {
    let (world, mut api, google) = world_with_google();
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
    let _first = proxies[0].start(&world, &google);
    let next = proxies[1].start_beside(&world, &google);
    next.line("took over no tokens from the predecessor: the process that offers tokens is not trusted: it is a process outside pods");
    next.line("serving pods");
    assert_eq!(squatter.join().expect("no panic"), b"", "it is told nothing");
}

fn a_pod_of_another_controller_starts_cold() {
    let (world, mut api, google) = world_with_google();
    let own = ProxyPod::new(&world, &mut api, "one", DAEMONSET);
    let other = ProxyPod::new(&world, &mut api, "two", OTHER_DAEMONSET);
    let first = own.start(&world, &google);
    let next = other.start_beside(&world, &google);
    next.line("the process that offers tokens is not trusted: it is pod kube-system/one, which has another namespace, service account or controller");
    next.line("serving pods");
    first.line("nothing was handed over to a process that asked: it is pod kube-system/two");
}

fn a_predecessor_that_leaves_before_pods_are_listed_is_not_waited_for() {
    let (mut world, mut api, google) = world_with_google();
    let proxies = ["one", "two"].map(|name| ProxyPod::new(&world, &mut api, name, DAEMONSET));
    let mut first = proxies[0].start(&world, &google);
    let pods = pods(&world, &mut api, &google);
    world.server.kill();
    let next = proxies[1].start_beside(&world, &google);
    next.line("another process serves pods");
    assert!(first.end().success());
    // After the 8 s in which it could have been listed pods.
    next.line("serving pods");
    world.server.restart();
    pods.iter().for_each(ask_until_given);
}
