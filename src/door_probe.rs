//! [`DoorProbe`]: checks at the proxy's own door whether pods are served.
//!
//! A process can run and serve its metrics while pods wait: the listener's queue is full, or the CPU limit leaves no
//! time for pods' connections. So it sends itself a request as pods do, on a new connection, and waits as long as a
//! client library that probes for a metadata server.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use operator::ask::from_here;
use telemetry::labels;
use telemetry::registry::Counters;
use telemetry::{Registry, table};

/// Interval between probes. Each costs about as much processor time as a request.
const INTERVAL: Duration = Duration::from_secs(15);

/// Maximum time for an answer to a probe.
const PATIENCE: Duration = Duration::from_secs(1);

/// Number of failures in a row that are reported. A single failure may be a pause of the machine.
const REPORTED_FAILURES: u32 = 2;

/// The first request of client libraries. The proxy answers it from memory.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: metadata.google.internal\r\nConnection: close\r\n\r\n";

/// The beginning of the answer.
const ANSWER: &[u8] = b"HTTP/1.1 200 ";

labels! {
    /// Result of a probe.
    Outcome {
        /// The door answered in time.
        Answered = "answered",
        /// No valid answer in time.
        Failed = "failed",
    }
}

/// Probes the doors of this process.
#[derive(Debug)]
pub struct DoorProbe {
    outcomes: Counters<Outcome>,
    failures_in_a_row: AtomicU32,
}

impl DoorProbe {
    /// Registers its metric. Sends no probes yet.
    pub fn new(registry: &Registry) -> Self {
        Self { outcomes: registry.counters(&table::DOOR_PROBES), failures_in_a_row: AtomicU32::new(0) }
    }

    /// Probes these doors in turn, one every 15 seconds, while polled.
    pub async fn run(self: Arc<Self>, doors: Vec<SocketAddr>) {
        for door in doors.into_iter().map(from_here).cycle() {
            sleep(INTERVAL).await;
            if is_here(door) {
                self.probe(door).await;
            }
        }
    }

    /// A description of the problem, if several probes in a row were not answered.
    pub fn trouble(&self) -> Option<String> {
        let failures = self.failures_in_a_row.load(Relaxed);
        (failures >= REPORTED_FAILURES).then(|| {
            format!(
                "the proxy's own door did not answer {failures} probes in a row within {} s; pods may wait: see what is \
                 shed, the CPU limit and the busiest clients in /statusz",
                PATIENCE.as_secs()
            )
        })
    }

    async fn probe(&self, door: SocketAddr) {
        let outcome = match timeout(PATIENCE, ask(door)).await {
            Ok(Ok(true)) => Outcome::Answered,
            _ => Outcome::Failed,
        };
        self.outcomes.of(outcome).inc();
        match outcome {
            Outcome::Answered => self.failures_in_a_row.store(0, Relaxed),
            Outcome::Failed => {
                let failures = self.failures_in_a_row.fetch_add(1, Relaxed) + 1;
                tracing::warn!(%door, failures, "the proxy's own door did not answer a probe; pods may wait, too");
            }
        }
    }
}

/// Not registered anywhere.
impl Default for DoorProbe {
    fn default() -> Self {
        Self::new(&Registry::default())
    }
}

/// Whether this machine has the address. Until the redirect adds an address, probes of it would leave the machine.
fn is_here(door: SocketAddr) -> bool {
    UdpSocket::bind((door.ip(), 0)).is_ok()
}

/// Whether the door answers.
async fn ask(door: SocketAddr) -> io::Result<bool> {
    let mut stream = TcpStream::connect(door).await?;
    stream.write_all(REQUEST).await?;
    let mut begin = [0; ANSWER.len()];
    stream.read_exact(&mut begin).await?;
    let is_answer = begin == ANSWER;
    // Reads to the end: the proxy closes the connection, and no reset is counted.
    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
    Ok(is_answer)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn door() -> (TcpListener, SocketAddr) {
        let door = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = door.local_addr().expect("bound");
        (door, addr)
    }

    #[tokio::test]
    async fn a_door_without_an_answer_is_reported_until_it_answers() {
        let probe = DoorProbe::default();
        let (silent, addr) = door().await;
        tokio::time::pause();
        probe.probe(addr).await;
        assert_eq!(probe.trouble(), None, "once may be a pause of the machine");
        probe.probe(addr).await;
        assert!(probe.trouble().is_some());
        drop(silent);
        tokio::time::resume();

        let (door, addr) = door().await;
        let answers = async {
            let (mut client, _) = door.accept().await.expect("a client");
            client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.expect("it is there");
        };
        tokio::join!(probe.probe(addr), answers);
        assert_eq!(probe.trouble(), None);
    }

    #[tokio::test]
    async fn a_reset_and_an_error_are_failures() {
        let probe = DoorProbe::default();
        let (closed, addr) = door().await;
        drop(closed);
        probe.probe(addr).await;
        let (door, addr) = door().await;
        let refuses = async {
            let (mut client, _) = door.accept().await.expect("a client");
            client.write_all(b"HTTP/1.1 503 Unavailable\r\n\r\n").await.expect("it is there");
        };
        tokio::join!(probe.probe(addr), refuses);
        assert!(probe.trouble().is_some());
    }

    #[test]
    fn a_door_to_all_addresses_is_reached_by_loopback() {
        assert_eq!(from_here(([0, 0, 0, 0], 80).into()), ([127, 0, 0, 1], 80).into());
        assert_eq!(from_here("[::]:80".parse().expect("an address")), "[::1]:80".parse().expect("an address"));
        assert_eq!(from_here(([127, 0, 0, 9], 80).into()), ([127, 0, 0, 9], 80).into());
    }
}
