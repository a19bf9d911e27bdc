//! A rolling update of a node with as many pods as it may have, while all of them ask.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::{ENDPOINTS, ask_until_given, joins, name, tokens_of};
use crate::google::Cloud;
use crate::kube::pause;
use crate::load::Load;
use crate::namespace::Kept;
use crate::pod::Pod;
use crate::proxy_pod::{DAEMONSET, ProxyPod, strs};
use crate::tokens::linked_accounts;
use crate::world::World;

/// Accounts and pods of a full node.
const FULL: u8 = 110;

/// Number of requests to Google, by endpoint.
fn counts(google: &Cloud) -> [u64; 3] {
    ENDPOINTS.map(|endpoint| google.count(endpoint))
}

/// Maximum memory that a hand-over may add to either process, in KiB.
const MOST: u64 = 512;

/// Maximum times that memory is measured. The kernel counts the memory of a group in batches of 256 KiB for each processor,
/// so two peaks may differ by that much although nothing else does.
const MAX_PLAYS: usize = 3;

pub(super) fn an_update_of_a_full_node_under_load_costs_nothing() {
    for plays in 1.. {
        let Err(why) = update() else { return };
        assert!(plays < MAX_PLAYS, "{why}");
        println!("again: {why}");
    }
}

/// An error if one of the processes took more memory for it.
fn update() -> Result<(), String> {
    let world = World::new();
    // The recommended setting: without it, a connection that is being opened is reset when its listener closes.
    world.node.namespace.sh("echo 1 > /proc/sys/net/ipv4/tcp_migrate_req");
    let mut api = world.server.admin();
    let google = Cloud::start(&world, &mut api);
    linked_accounts(&mut api, &google, FULL);
    let proxies = ["one", "two", "three", "four"].map(|name| ProxyPod::new(&world, &mut api, name, DAEMONSET));
    let mut first = proxies[0].start(&world, &google);
    let pods = world.pods(&mut api, FULL);
    let before: Vec<_> = pods.iter().map(|pod| (tokens_of(pod), Instant::now())).collect();
    let before_update = counts(&google);
    assert!(before_update.iter().sum::<u64>() >= u64::from(FULL));

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
    let load = Load::begin(pods.iter().zip(&before).map(|(pod, (tokens, asked))| {
        let (token, asked) = (tokens[0].clone(), *asked);
        (pod, move |pod: &Pod, compared: &mut Compared| compared.ask(pod, &token, asked))
    }));
    pause(Duration::from_secs(2));
    let second = proxies[1].take_over(&world, &google);
    pause(Duration::from_secs(1));
    assert!(first.end().success());
    pause(Duration::from_secs(2));
    let asked = load.end();
    let answered: usize = asked.iter().map(|pod| pod.answered).sum();
    let failed: Vec<&String> = asked.iter().flat_map(|pod| &pod.failed).collect();
    println!("{answered} requests of {FULL} pods during an update, {} failed", failed.len());
    assert!(failed.is_empty(), "{:?}", &failed[..failed.len().min(5)]);
    assert!(answered > 5 * usize::from(FULL), "{answered}");

    // Again while nobody asks, and then one that begins with nothing. Its pods then have the same tokens.
    let (own, peaks) = (second.anonymous_kib(), [1, 2, 3].map(|number| &proxies[number].group));
    peaks[0].reset_peak();
    let gives_from = peaks[0].peak_kib();
    let third = proxies[2].take_over(&world, &google);
    pause(Duration::from_secs(2));
    let (gave, gave_peak) = (second.anonymous_kib(), peaks[0].peak_kib());
    assert!(second.terminate().success());
    for pod in &pods {
        tokens_of(pod);
    }
    let now = counts(&google);
    assert_eq!(now, before_update, "exchanges after two updates");
    pause(Duration::from_secs(2));
    let (took, took_peak) = (third.anonymous_kib(), peaks[1].peak_kib());

    let mut cold = proxies[3].flags(&google);
    cold.retain(|flag| !flag.starts_with("--handover"));
    let fourth = world.beside_of_pod(&proxies[3].group, &strs(&cold));
    fourth.line("serving pods");
    assert!(third.terminate().success());
    // All of them are fetched at once, on a machine that may be busy.
    pods.iter().for_each(ask_until_given);
    pause(Duration::from_secs(2));
    let (fetched, fetched_peak) = (fourth.anonymous_kib(), peaks[2].peak_kib());
    println!("before: {own} KiB, peak {gives_from:?}; after it gave: {gave} KiB, peak {gave_peak:?}");
    println!("took over: {took} KiB, peak {took_peak:?}; fetched them: {fetched} KiB, peak {fetched_peak:?}");
    let now = counts(&google);
    assert!(now[0] >= before_update[0] + u64::from(FULL), "without a hand-over, each account costs one: {now:?}");
    for (what, with, without) in [
        ("the giver", Some(gave), Some(own)),
        ("the giver's peak", gave_peak, gives_from),
        ("the taker", Some(took), Some(fetched)),
        ("the taker's peak", took_peak, fetched_peak),
    ] {
        if let (Some(with), Some(without)) = (with, without)
            && with > without + MOST
        {
            return Err(format!("{what}: {with} KiB, {without} KiB without it"));
        }
    }
    Ok(())
}

/// The answers to a pod.
#[derive(Default)]
struct Compared {
    answered: usize,
    failed: Vec<String>,
    kept: Option<Kept>,
}

impl Compared {
    /// Asks for a token, and compares the answer with the one that the pod got at `asked`.
    fn ask(&mut self, pod: &Pod, (token, left): &(String, u64), asked: Instant) {
        pause(Duration::from_millis(fastrand::u64(50..150)));
        let is_fresh = self.kept.is_none();
        let Some(mut connection) = self.kept.take().or_else(|| pod.connect()) else {
            self.failed.push("refused".to_owned());
            return;
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
                    self.failed.push(format!(
                        "{least} to {most} s are left; the same token: {is_same}; {}",
                        answer.replace(token, "TOKEN")
                    ));
                }
                self.answered += 1;
                // Some of them on a new connection.
                self.kept = (fastrand::u8(..4) > 0).then_some(connection);
            }
            // The predecessor has closed an idle connection, as its clients know.
            Err(_) if !is_fresh => {}
            Err(error) => self.failed.push(error.to_string()),
        }
    }
}
