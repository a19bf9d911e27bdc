//! A rolling update: the new proxy takes over tokens from the one before it, and nobody else gets any or is believed.

use std::io::Read as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use mock::google::{Endpoint, Workload};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cgroups::PodGroup;
use crate::google::Cloud;
use crate::kube::{Client, NODE, pause};
use crate::memory::in_pod;
use crate::pod::{Asked, Pod};
use crate::support::needs::{Test, tests};
use crate::tokens::linked_accounts;
use crate::world::World;

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    a_rolling_update_costs_no_exchange,
    an_update_of_a_full_node_under_load_costs_nothing,
    containers_take_over,
    nobody_else_gets_tokens,
    who_takes_the_name_is_not_believed,
    a_pod_of_another_controller_starts_cold,
];

const ACCOUNT: &str = "gce-metadata-proxy";
pub const DAEMONSET: &str = "5d3f6c0e-0000-4000-8000-000000000001";
const OTHER_DAEMONSET: &str = "5d3f6c0e-0000-4000-8000-000000000002";

/// Not that of a cold start, which has a word before it.
pub const TAKEN: &str = ": tokens were taken over";
const COLD: &str = "no tokens were taken over";

/// A pod of the proxy: its object and its control group.
pub struct ProxyPod {
    uid: String,
    pub group: PodGroup,
}

impl ProxyPod {
    pub fn new(world: &World, api: &mut Client, name: &str, controller: &str) -> Self {
        Self::of(world, api, "kube-system", ACCOUNT, name, controller)
    }

    fn of(world: &World, api: &mut Client, namespace: &str, account: &str, name: &str, controller: &str) -> Self {
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
}

pub fn strs(flags: &[String]) -> Vec<&str> {
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

/// As a container runtime starts both.
fn containers_take_over() {
    let world = World::new();
    let mut api = world.server.admin();
    let google = Cloud::start(&world, &mut api);
    let _mock = world.mock();
    let proxies = ["one", "two"].map(|name| ProxyPod::new(&world, &mut api, name, DAEMONSET));
    let first = world.contained_beside(&proxies[0].group, &strs(&proxies[0].flags(&google)));
    first.line("cache warmed up");
    let pods = pods(&world, &mut api, &google);
    let (before, counts) = (pods.iter().map(tokens_of).collect::<Vec<_>>(), exchanges(&google));
    let next = world.contained_beside(&proxies[1].group, &strs(&proxies[1].flags(&google)));
    let line = next.line(TAKEN);
    assert!(!line.iter().any(|line| line.contains(COLD)), "{line:?}");
    next.line("serving pods");
    first.kill();
    for (pod, before) in pods.iter().zip(&before) {
        let texts = |tokens: &[(String, u64)]| tokens.iter().map(|(text, _)| text.clone()).collect::<Vec<_>>();
        assert_eq!(texts(&tokens_of(pod)), texts(before));
    }
    assert_eq!(exchanges(&google), counts);
}

/// Who connects to the socket: the doors of its groups and a user, and how many bytes it gets at most.
fn got(world: &World, doors: &str, user: &str) -> usize {
    let name = name(world);
    // The name is the proxy's by now, and not this test's to wait for.
    crate::rights::eventually(|| {
        let names = world.node.namespace.sh("cat /proc/net/unix");
        if names.contains(&name) { Ok(()) } else { Err("no socket".to_owned()) }
    });
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
    let world = World::new();
    let mut api = world.server.admin();
    let google = Cloud::start(&world, &mut api);
    let [own, next] = ["one", "two"].map(|name| ProxyPod::new(&world, &mut api, name, DAEMONSET));
    let foreign = ProxyPod::of(&world, &mut api, "team-0", ACCOUNT, "foreign", DAEMONSET);
    let account = ProxyPod::of(&world, &mut api, "kube-system", "other", "account", DAEMONSET);
    let controller = ProxyPod::new(&world, &mut api, "controller", OTHER_DAEMONSET);
    api.create_account("team-0", "default");
    let other = api.create_pod("team-0", "other", "default", NODE);
    let other = world.node.group(&other.uid);
    let proxy = world.proxy_of_pod(&own.group, &strs(&own.flags(&google)));
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

/// Accounts and pods of a full node.
const FULL: u8 = 110;

/// Maximum memory that a hand-over may add to either process, in KiB.
const MOST: u64 = 512;

fn an_update_of_a_full_node_under_load_costs_nothing() {
    let world = World::new();
    // As nodes are to have it: else a connection that is being opened is reset when its listener ends.
    world.node.namespace.sh("echo 1 > /proc/sys/net/ipv4/tcp_migrate_req");
    let mut api = world.server.admin();
    let google = Cloud::start(&world, &mut api);
    linked_accounts(&mut api, &google, FULL);
    let proxies = ["one", "two", "three", "four"].map(|name| ProxyPod::new(&world, &mut api, name, DAEMONSET));
    let flags = proxies.each_ref().map(|proxy| proxy.flags(&google));
    let mut first = world.proxy_of_pod(&proxies[0].group, &strs(&flags[0]));
    let start = |number| {
        let object = api.create_pod("team-0", &format!("pod-{number}"), &format!("app-{number}"), NODE);
        Pod::start(&world.node, object, world.address(number))
    };
    let pods: Vec<Arc<Pod>> = (0..FULL).map(start).collect();
    let before: Vec<_> = pods.iter().map(|pod| (tokens_of(pod), Instant::now())).collect();
    let counts = [Endpoint::Sts, Endpoint::AccessToken, Endpoint::IdToken].map(|endpoint| google.count(endpoint));
    assert!(counts.iter().sum::<u64>() >= u64::from(FULL));

    // One of this DaemonSet's pods that dies half-way, and one that reads nothing more.
    let hello = r"gmp-ho:\002AAAAAAAAAAAAAAAA";
    let ask =
        format!(r#"curl -s -m 5 --http0.9 --abstract-unix-socket {} -X "$(printf '{hello}')" http://x/"#, name(&world));
    for (reader, most) in [("head -c 100", 100), ("(head -c 30; sleep 3)", 30)] {
        let mut command = world.node.namespace.command_with_groups("sh");
        let shell = format!("{}{ask} | {reader} | wc -c", joins(&proxies[1].group));
        let output = command.args(["-c", &shell]).output().expect("sh");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), most.to_string(), "{output:?}");
    }

    // The update, while all ask.
    let is_over = Arc::new(AtomicBool::new(false));
    let asking: Vec<_> = pods
        .iter()
        .zip(&before)
        .map(|(pod, (tokens, asked))| {
            let (token, asked, is_over) = (tokens[0].clone(), *asked, Arc::clone(&is_over));
            in_pod(pod, move |pod| keep_comparing(pod, &token, asked, &is_over))
        })
        .collect();
    pause(Duration::from_secs(2));
    let second = world.beside_of_pod(&proxies[1].group, &strs(&flags[1]));
    second.line(TAKEN);
    second.line("serving pods");
    pause(Duration::from_secs(1));
    assert!(first.end().success());
    pause(Duration::from_secs(2));
    is_over.store(true, Relaxed);
    let asked: Vec<Compared> = asking.into_iter().map(|thread| thread.join().expect("no panic")).collect();
    let answered: usize = asked.iter().map(|pod| pod.answered).sum();
    let failed: Vec<&String> = asked.iter().flat_map(|pod| &pod.failed).collect();
    println!("{answered} requests of {FULL} pods during an update, {} failed", failed.len());
    assert!(failed.is_empty(), "{:?}", &failed[..failed.len().min(5)]);
    assert!(answered > 5 * usize::from(FULL), "{answered}");

    // Again while nobody asks, and then one that begins with nothing. Its pods then have the same tokens.
    let (own, peaks) = (second.anonymous_kib(), [1, 2, 3].map(|number| &proxies[number].group));
    peaks[0].reset_peak();
    let gives_from = peaks[0].peak_kib();
    let third = world.beside_of_pod(&proxies[2].group, &strs(&flags[2]));
    third.line(TAKEN);
    third.line("serving pods");
    pause(Duration::from_secs(2));
    let (gave, gave_peak) = (second.anonymous_kib(), peaks[0].peak_kib());
    assert!(second.terminate().success());
    for pod in &pods {
        tokens_of(pod);
    }
    let now = [Endpoint::Sts, Endpoint::AccessToken, Endpoint::IdToken].map(|endpoint| google.count(endpoint));
    assert_eq!(now, counts, "exchanges after two updates");
    pause(Duration::from_secs(2));
    let (took, took_peak) = (third.anonymous_kib(), peaks[1].peak_kib());

    let cold: Vec<&str> = flags[3].iter().map(String::as_str).filter(|flag| !flag.starts_with("--handover")).collect();
    let fourth = world.beside_of_pod(&proxies[3].group, &cold);
    fourth.line("serving pods");
    assert!(third.terminate().success());
    // All of them are fetched at once, on a machine that may be busy.
    pods.iter().for_each(ask_until_given);
    pause(Duration::from_secs(2));
    let (fetched, fetched_peak) = (fourth.anonymous_kib(), peaks[2].peak_kib());
    println!("before: {own} KiB, peak {gives_from:?}; after it gave: {gave} KiB, peak {gave_peak:?}");
    println!("took over: {took} KiB, peak {took_peak:?}; fetched them: {fetched} KiB, peak {fetched_peak:?}");
    let now = [Endpoint::Sts, Endpoint::AccessToken, Endpoint::IdToken].map(|endpoint| google.count(endpoint));
    assert!(now[0] >= counts[0] + u64::from(FULL), "without a hand-over, each account costs one: {now:?}");
    for (what, with, without) in [
        ("the giver", Some(gave), Some(own)),
        ("the giver's peak", gave_peak, gives_from),
        ("the taker", Some(took), Some(fetched)),
        ("the taker's peak", took_peak, fetched_peak),
    ] {
        if let (Some(with), Some(without)) = (with, without) {
            assert!(with <= without + MOST, "{what}: {with} KiB, {without} KiB without it");
        }
    }
}

/// The answers to a pod.
#[derive(Default)]
struct Compared {
    answered: usize,
    failed: Vec<String>,
}

/// Asks for a token until it is over, and compares each answer with the one that the pod got at `asked`.
fn keep_comparing(pod: &Pod, (token, left): &(String, u64), asked: Instant, is_over: &AtomicBool) -> Compared {
    let mut compared = Compared::default();
    let mut kept = None;
    while !is_over.load(Relaxed) {
        let is_fresh = kept.is_none();
        let Some(mut connection) = kept.take().or_else(|| pod.connect()) else {
            compared.failed.push("refused".to_owned());
            continue;
        };
        let most = left.saturating_sub(asked.elapsed().as_secs().saturating_sub(2));
        let answer = connection.ask("/computeMetadata/v1/instance/service-accounts/default/token");
        let least = left.saturating_sub(asked.elapsed().as_secs() + 2);
        match answer {
            Ok(answer) => {
                let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
                let told: Value = serde_json::from_str(body).unwrap_or_default();
                let is_same = told["access_token"].as_str() == Some(token);
                let is_true = told["expires_in"].as_u64().is_some_and(|left| (least..=most).contains(&left));
                if !answer.starts_with("HTTP/1.1 200") || !is_same || !is_true {
                    compared.failed.push(format!(
                        "{least} to {most} s are left; the same token: {is_same}; {}",
                        answer.replace(token, "TOKEN")
                    ));
                }
                compared.answered += 1;
                // Some of them on a new connection.
                kept = (fastrand::u8(..4) > 0).then_some(connection);
            }
            // The predecessor has closed an idle connection, as its clients know.
            Err(_) if !is_fresh => {}
            Err(error) => compared.failed.push(error.to_string()),
        }
        pause(Duration::from_millis(fastrand::u64(50..150)));
    }
    compared
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
    next.line("took over no tokens from the predecessor: the process that offers tokens is not trusted: it is a process outside pods");
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
