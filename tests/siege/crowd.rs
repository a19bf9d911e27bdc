//! Many honest clients of one pod at once, like `ab`: every request has a connection of its own.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::scene::is_emulated;
use crate::visit::visit;

const REQUEST: &str = "GET /computeMetadata/v1/instance/service-accounts/default/token HTTP/1.0\r\n\
    Host: metadata\r\nMetadata-Flavor: Google\r\n\r\n";

/// Maximum time that a client waits for its turn. Thousands of clients take long on an emulated processor.
const PATIENCE: Duration = Duration::from_secs(120);

/// Time after which the proxy may close a connection that has sent nothing, if the next connection of the same pod
/// needs its place.
const PROTECTED: Duration = Duration::from_secs(1);

/// Results of a crowd's requests.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) failed: Vec<String>,
    /// Number of requests that were repeated, because a busy computer kept their clients from running for
    /// [`PROTECTED`].
    pub(crate) late: usize,
}

/// Runs this many clients at once, each of which sends this many requests from 127.0.0.1, on these threads.
pub(crate) async fn gather(addr: SocketAddr, clients: usize, requests: usize, threads: &Handle) -> Outcome {
    let mut crowd = JoinSet::new();
    // An emulated processor takes seconds to open thousands of connections, and sends the first request only after
    // that.
    let shift = if is_emulated() { Duration::from_millis(3) } else { Duration::ZERO };
    for number in 0..u32::try_from(clients).expect("a few thousand") {
        crowd.spawn_on(client(addr, requests, shift * number), threads);
    }
    crowd.join_all().await.into_iter().fold(Outcome::default(), |mut all, one| {
        all.failed.extend(one.failed);
        all.late += one.late;
        all
    })
}

async fn client(addr: SocketAddr, requests: usize, shift: Duration) -> Outcome {
    sleep(shift).await;
    let mut outcome = Outcome::default();
    for _ in 0..requests {
        let began = Instant::now();
        while let Err((fault, connected_after)) = request(addr).await {
            if connected_after < PROTECTED || began.elapsed() > PATIENCE {
                outcome.failed.push(fault);
                break;
            }
            outcome.late += 1;
        }
    }
    outcome
}

/// Sends one request. An error is a description, and the time after which the client ran again and noticed that it was
/// connected.
async fn request(addr: SocketAddr) -> Result<(), (String, Duration)> {
    let began = Instant::now();
    let mut connected_after = Duration::ZERO;
    let connecting = async {
        // Not bound to an address first, so that the kernel can reuse a port at once, and there are enough ports.
        let stream = TcpStream::connect(addr).await;
        connected_after = began.elapsed();
        stream
    };
    match visit(connecting, REQUEST, PATIENCE).await {
        Ok(_) => Ok(()),
        Err(fault) => Err((fault, connected_after)),
    }
}
