//! The log output that a pod can cause.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mock::{Fault, Handle};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use crate::support::{Binary, request, upstream};

/// Maximum log output per minute that an attacking pod may cause. Each kind of line is logged once a minute, so a flood
/// of a few seconds is enough to show it.
const MAX_BYTES: usize = 10 * 1024;

const FLOOD: Duration = Duration::from_secs(5);

/// Requests that are sent repeatedly, one kind per connection. `NUMBER` differs from one request to the next.
fn attacks() -> Vec<String> {
    let long = "x".repeat(7000);
    let v1 = "/computeMetadata/v1";
    let token = format!("{v1}/instance/service-accounts/default/token");
    let head = "Host: metadata\r\nMetadata-Flavor: Google\r\n";
    let raw = |line: &str, headers: &str| format!("{line} HTTP/1.1\r\n{headers}\r\n");
    vec![
        request(&format!("{v1}/instance/attributes/kube-env")),
        request(&format!("{v1}/instance/attributes/kube-env/{long}NUMBER")),
        request(&format!("{v1}/instance/attributes/%2F{long}NUMBER")),
        request(&format!("{v1}/instance/%7Ea{long}NUMBER")),
        request(&format!("{v1}/instance/?recursive=NUMBER{long}")),
        request(&format!("{v1}/{long}{long}NUMBER")),
        raw(&format!("GET {v1}/instance/id"), &format!("Host: {long}NUMBER\r\nMetadata-Flavor: Google\r\n")),
        raw(&format!("GET {v1}/instance/id"), "Host: metadata\r\n"),
        raw(&format!("GET {v1}/instance/id"), &format!("{head}X-Forwarded-For: NUMBER\r\n")),
        raw(&format!("GET {v1}/instance/id"), &format!("{head}Content-Length: 5\r\n")),
        raw(&format!("{} {v1}/instance/id", "M".repeat(2000)), head),
        raw("GET", ""),
        "\u{0}\u{1}NUMBER\r\n\r\n".to_owned(),
        request(&format!("{token}?scopes=NUMBER")),
        request(&format!("{v1}/instance/service-accounts/default/identity?audience=NUMBER")),
        request(&format!("{v1}/instance/cpu-platform?wait_for_change=true&timeout_sec=NUMBER")),
        request(&format!("{v1}/instance/disks/NUMBER")),
    ]
}

/// Sends requests on separate connections, and reads little or nothing of the responses.
async fn flood(addr: SocketAddr, attack: String, end: Instant) {
    for number in 1.. {
        let attempt = async {
            let mut stream = TcpStream::connect(addr).await?;
            for pipelined in 0..10 {
                let number = (number * 10 + pipelined).to_string();
                stream.write_all(attack.replace("NUMBER", &number).as_bytes()).await?;
            }
            sleep(Duration::from_millis(20 * (number % 10))).await;
            std::io::Result::Ok(())
        };
        // The end of the connection is one of the possible responses.
        if timeout_at(end, attempt).await.is_err() {
            return;
        }
    }
}

/// Opens connections and sends nothing.
async fn crowd(addr: SocketAddr, end: Instant) {
    while Instant::now() < end {
        let mut held = Vec::new();
        for _ in 0..40 {
            held.extend(TcpStream::connect(addr).await);
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// A metadata server whose failures change constantly. A pod can cause this by its requests.
async fn fail(mock: Arc<Handle>, end: Instant) {
    let faults = [Fault::Html, Fault::Reset, Fault::NoFlavor, Fault::Garbage, Fault::Delay(Duration::from_millis(50))];
    for fault in faults.into_iter().cycle() {
        mock.fault(fault);
        sleep(Duration::from_millis(50)).await;
        mock.heal();
        sleep(Duration::from_millis(50)).await;
        if Instant::now() > end {
            return;
        }
    }
}

/// A line without the parts that differ between lines of the same kind.
fn kind(line: &str) -> String {
    let (_, said) = line.split_once("gce_metadata_proxy").unwrap_or(("", line));
    let message = said.split([';', '"']).next().unwrap_or_default();
    let field = |name| said.split_once(name).and_then(|(_, rest)| rest.split(' ').next()).unwrap_or_default();
    let is_number = |letter: char| letter.is_ascii_digit();
    format!("{} {} {}", message.replace(is_number, ""), field(" reason="), field(" rule="))
}

#[tokio::test]
async fn a_pod_that_floods_in_every_way_causes_ten_kibibytes_of_log_a_minute_at_most() {
    let mock = Arc::new(upstream().await);
    let limits = ["--max-in-flight=4", "--max-hanging=2", "--max-connections=24"];
    let (mut binary, addr, _) = Binary::ready(None, mock.addr(), &limits).await;
    let process = Pid::from_raw(binary.id().try_into().expect("a process")).expect("not 0");
    let end = Instant::now() + FLOOD;
    let mut floods = JoinSet::new();
    for attack in attacks().into_iter().cycle().take(40) {
        floods.spawn(flood(addr, attack, end));
    }
    floods.spawn(crowd(addr, end));
    floods.spawn(fail(Arc::clone(&mock), end));
    let ends = async {
        floods.join_all().await;
        kill_process(process, Signal::TERM).expect("it runs");
    };
    let (log, ()) = tokio::join!(binary.stderr_to_end(), ends);
    let lines: Vec<&str> = log.lines().filter(|line| !line.contains("draining")).collect();
    println!("{} bytes in {} lines:\n{log}", log.len(), lines.len());
    for reason in ["concealed", "path", "host", "method", "forwarded", "flavor"] {
        assert!(log.contains(&format!("reason=\"{reason}\"")), "nothing is said of {reason}");
    }
    assert!(log.contains("overloaded: "), "nothing is said of overload");
    let kinds: BTreeSet<String> = lines.iter().map(|line| kind(line)).collect();
    assert!(log.len() <= MAX_BYTES, "{} bytes in {} lines of {} kinds", log.len(), lines.len(), kinds.len());
    assert_eq!(kinds.len(), lines.len(), "some kinds came twice: {kinds:?}");
}
