//! [`DoorProbe`]: checks at the proxy's own door whether pods are served.
//!
//! A process can run and serve its metrics while pods wait: the CPU limit leaves no time for pods' connections, or nothing
//! listens on one of its addresses, or the node has lost it. So it sends each address a request as pods do, on a new
//! connection, and waits as long as a client library that probes for a metadata server. The kernel puts this connection into a
//! queue of its own, so the probe does not notice that a pod has filled the queue of its address.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use base::routes::is_local;
use operator::ask::from_here;
use redirect::{is_added, is_added_now};
use telemetry::labels;
use telemetry::registry::Counters;
use telemetry::{Registry, table};

/// Interval between probes of an address. Each costs about as much processor time as a request.
const INTERVAL: Duration = Duration::from_secs(15);

/// Maximum time for an answer to a probe.
const PATIENCE: Duration = Duration::from_secs(1);

/// Number of failures in a row of one address that are reported. A single failure may be a pause of the machine.
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
    /// The doors whose last probe failed.
    failing: Mutex<BTreeMap<SocketAddr, Streak>>,
}

/// The failures in a row of one door.
#[derive(Debug, Clone, Copy)]
struct Streak {
    failures: u32,
    /// The node no longer has the address.
    is_gone: bool,
}

/// A door at which pods are not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DoorTrouble {
    /// Several probes in a row were not answered.
    Silent {
        /// Its address.
        door: SocketAddr,
        /// Number of those probes.
        failures: u32,
    },
    /// The node had the address, and has it no longer.
    Gone(SocketAddr),
}

impl DoorTrouble {
    /// What operators can do.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Silent { .. } => "stop the client that sends most, or raise the CPU limit",
            Self::Gone(_) => {
                "let the redirect add the address again: see whether it runs, and its log; or find out what took the address away"
            }
        }
    }
}

impl fmt::Display for DoorTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent { door, failures } => write!(
                f,
                "the proxy's own door {door} did not answer {failures} probes in a row within {} s; pods may wait: see what is \
                 shed, the CPU limit and the busiest clients in /statusz",
                PATIENCE.as_secs()
            ),
            Self::Gone(door) => {
                write!(f, "this node no longer has the address {}, so pods do not reach the proxy", door.ip())
            }
        }
    }
}

impl DoorProbe {
    /// Registers its metric. Sends no probes yet.
    pub fn new(registry: &Registry) -> Self {
        Self { outcomes: registry.counters(&table::DOOR_PROBES), failing: Mutex::default() }
    }

    /// Probes each of these doors every 15 seconds, while polled. The redirect may add an address later, so one that the node never
    /// had is no failure. Nor is one for IPv6 that the redirect took away because the node has no IPv6 any more.
    pub async fn run(self: Arc<Self>, doors: Vec<SocketAddr>) {
        let mut doors: Vec<_> = doors.into_iter().map(|door| (from_here(door), false)).collect();
        loop {
            sleep(INTERVAL).await;
            for (door, was_here) in &mut doors {
                if is_here(*door) {
                    *was_here = true;
                    self.probe(*door).await;
                } else if *was_here && is_added(door.ip()) && !is_added_now(door.ip()) {
                    *was_here = false;
                    self.failing.lock().remove(door);
                } else if *was_here {
                    self.is_gone(*door);
                }
            }
        }
    }

    /// The door that has failed for longest, if several of its probes in a row failed.
    pub fn trouble(&self) -> Option<DoorTrouble> {
        let failing = self.failing.lock();
        let (door, streak) = failing.iter().max_by_key(|(_, streak)| streak.failures)?;
        let (door, failures) = (*door, streak.failures);
        let trouble = if streak.is_gone { DoorTrouble::Gone(door) } else { DoorTrouble::Silent { door, failures } };
        (failures >= REPORTED_FAILURES).then_some(trouble)
    }

    async fn probe(&self, door: SocketAddr) {
        if let Ok(Ok(true)) = timeout(PATIENCE, ask(door)).await {
            self.outcomes.of(Outcome::Answered).inc();
            let failed = self.failing.lock().remove(&door).map(|streak| streak.failures);
            if let Some(failures) = failed.filter(|failures| *failures >= REPORTED_FAILURES) {
                tracing::info!(%door, failures, "the proxy's own door answers probes again");
            }
        } else if let Some(failures) = self.failed(door, false) {
            tracing::warn!(%door, failures, "the proxy's own door did not answer a probe; pods may wait, too");
        }
    }

    fn is_gone(&self, door: SocketAddr) {
        if let Some(failures) = self.failed(door, true) {
            let gone = DoorTrouble::Gone(door);
            tracing::warn!(%door, failures, "{gone}; {}", gone.advice());
        }
    }

    /// Counts a failure. Returns the number of failures in a row if it is to be logged: when the address goes or comes back, and after
    /// 1, 2, 4, 8 and so on, so that a door that fails for a day takes a dozen lines.
    fn failed(&self, door: SocketAddr, is_gone: bool) -> Option<u32> {
        self.outcomes.of(Outcome::Failed).inc();
        let mut failing = self.failing.lock();
        let streak = failing.entry(door).or_insert(Streak { failures: 0, is_gone });
        let is_other_trouble = streak.is_gone != is_gone;
        *streak = Streak { failures: streak.failures.saturating_add(1), is_gone };
        Some(streak.failures).filter(|failures| is_other_trouble || failures.is_power_of_two())
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
    // If the kernel cannot be asked: a socket can be bound to an address of the node, and with `ip_nonlocal_bind` to any.
    is_local(door.ip()).unwrap_or_else(|_| UdpSocket::bind((door.ip(), 0)).is_ok())
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
        tokio::time::resume();
        let serving = tokio::spawn(serve(silent));
        probe.probe(addr).await;
        assert_eq!(probe.trouble(), None);
        serving.abort();
    }

    #[test]
    fn a_door_that_fails_for_long_is_logged_at_ever_longer_intervals() {
        let probe = DoorProbe::default();
        let door = ([127, 0, 0, 9], 80).into();
        let logged: Vec<u32> = (0..100).filter_map(|_| probe.failed(door, false)).collect();
        assert_eq!(logged, [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!([true, true, false].map(|is_gone| probe.failed(door, is_gone)), [Some(101), None, Some(103)]);
    }

    #[tokio::test]
    async fn a_reset_and_an_error_are_failures() {
        let probe = DoorProbe::default();
        let (door, addr) = door().await;
        let refuses = async {
            let (mut client, _) = door.accept().await.expect("a client");
            client.write_all(b"HTTP/1.1 503 Unavailable\r\n\r\n").await.expect("it is there");
        };
        tokio::join!(probe.probe(addr), refuses);
        drop(door);
        probe.probe(addr).await;
        assert_eq!(probe.trouble(), Some(DoorTrouble::Silent { door: addr, failures: 2 }));
    }

    /// Answers each client at this door.
    async fn serve(door: TcpListener) {
        while let Ok((mut client, _)) = door.accept().await {
            // A close with unread bytes would be a reset.
            let _ = client.read_exact(&mut [0; REQUEST.len()]).await;
            let _ = client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        }
    }

    #[tokio::test]
    async fn one_door_of_two_that_does_not_answer_is_reported() {
        let probe = DoorProbe::default();
        let ((serving, open), (closed, dead)) = (door().await, door().await);
        let serving = tokio::spawn(serve(serving));
        drop(closed);
        for _ in 0..2 {
            probe.probe(dead).await;
            probe.probe(open).await;
        }
        assert_eq!(probe.trouble(), Some(DoorTrouble::Silent { door: dead, failures: 2 }));
        serving.abort();
    }

    #[tokio::test]
    async fn an_address_that_the_node_has_lost_is_reported_until_it_is_back() {
        let probe = DoorProbe::default();
        let (serving, addr) = door().await;
        let serving = tokio::spawn(serve(serving));
        probe.is_gone(addr);
        assert_eq!(probe.trouble(), None, "it may be back at once");
        probe.is_gone(addr);
        assert_eq!(probe.trouble(), Some(DoorTrouble::Gone(addr)));
        probe.probe(addr).await;
        assert_eq!(probe.trouble(), None);
        serving.abort();
    }

    /// 192.0.2.0/24 is for documentation: no machine has it.
    #[tokio::test(start_paused = true)]
    async fn an_address_that_the_node_never_had_is_no_failure() {
        let probe = Arc::new(DoorProbe::default());
        let probing = probe.clone().run(vec![([192, 0, 2, 1], 80).into()]);
        assert!(timeout(INTERVAL * 10, probing).await.is_err());
        assert_eq!((probe.trouble(), probe.failing.lock().len()), (None, 0));
    }

    #[test]
    fn a_door_to_all_addresses_is_reached_by_loopback() {
        assert_eq!(from_here(([0, 0, 0, 0], 80).into()), ([127, 0, 0, 1], 80).into());
        assert_eq!(from_here("[::]:80".parse().expect("an address")), "[::1]:80".parse().expect("an address"));
        assert_eq!(from_here(([127, 0, 0, 9], 80).into()), ([127, 0, 0, 9], 80).into());
    }
}
