//! The churn test would notice: a stand-in for the proxy that knows pods by their addresses alone, as others do, takes
//! some for others.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::churn::{Plan, run};
use crate::kube::{Client, NODE, pause};
use crate::pod::PORT;
use crate::support::needs::{Test, tests};
use crate::world::World;

pub const TESTS: &[Test] = tests![who_trusts_addresses_alone_is_found_out];

/// The pod at each address, as an answer.
type Table = Mutex<HashMap<IpAddr, Value>>;

fn who_trusts_addresses_alone_is_found_out() {
    let mut world = World::new();
    let table = Arc::new(Table::default());
    let mut api = world.server.node();
    let is_over = Arc::new(AtomicBool::new(false));
    let refreshing = {
        let (table, is_over) = (Arc::clone(&table), Arc::clone(&is_over));
        thread::spawn(move || {
            while !is_over.load(Relaxed) {
                refresh(&table, &mut api);
                pause(Duration::from_millis(200));
            }
        })
    };
    for ip in world.node.network.node().both() {
        let table = Arc::clone(&table);
        world.node.namespace.spawn(move || {
            let listener = TcpListener::bind(SocketAddr::from((ip, PORT))).expect("the node's address");
            // These threads end with the process: a client that lost its network does not close its connection.
            for stream in listener.incoming().flatten() {
                let table = Arc::clone(&table);
                thread::spawn(move || serve(&stream, &table));
            }
        });
    }
    let plan = Plan {
        pods: 40,
        requests: 8_000,
        gap: Duration::from_millis(50),
        has_tokens: false,
        life: Duration::from_secs(4),
        disturbed: None,
    };
    let tally = run(&mut world, plan);
    println!("{tally}");
    is_over.store(true, Relaxed);
    refreshing.join().expect("no panic");
    let wrong = tally.wrong();
    assert!(wrong.len() > 10, "the churn does not notice who trusts addresses alone: {tally}");
    println!("for example: {}", wrong[0]);
}

fn refresh(table: &Table, api: &mut Client) {
    let list = api.pods_of(NODE).body;
    let pods = list["items"].as_array().into_iter().flatten();
    let entries = pods.flat_map(|pod| {
        let ips = pod["status"]["podIPs"].as_array().into_iter().flatten();
        ips.filter_map(|ip| Some((ip["ip"].as_str()?.parse().ok()?, answer(pod))))
    });
    *table.lock().unwrap_or_else(PoisonError::into_inner) = entries.collect();
}

fn answer(pod: &Value) -> Value {
    let metadata = &pod["metadata"];
    json!({
        "namespace": metadata["namespace"],
        "serviceAccount": pod["spec"]["serviceAccountName"],
        "pod": metadata["name"],
        "uid": metadata["uid"],
        "evidence": "api",
    })
}

fn serve(stream: &TcpStream, table: &Table) {
    let Ok(peer) = stream.peer_addr() else { return };
    let mut lines = BufReader::new(stream).lines();
    // A request ends with an empty line, and has no body.
    while lines.by_ref().map_while(Result::ok).any(|line| line.is_empty()) {
        let known = table.lock().unwrap_or_else(PoisonError::into_inner).get(&peer.ip()).map(Value::to_string);
        let (status, body) = known.map_or(("503 Service Unavailable", String::new()), |known| ("200 OK", known));
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if (&mut &*stream).write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
