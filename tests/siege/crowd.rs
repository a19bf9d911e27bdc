//! Many honest clients of one pod at once, as `ab` is: every request has a connection of its own.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::scene::is_emulated;
use crate::visit::visit;

const REQUEST: &str = "GET /computeMetadata/v1/instance/service-accounts/default/token HTTP/1.0\r\n\
    Host: metadata\r\nMetadata-Flavor: Google\r\n\r\n";

/// How long a client waits for its turn. Thousands of them take their time on an emulated processor.
const PATIENCE: Duration = Duration::from_secs(120);

/// So many clients at once send so many requests each from 127.0.0.1, on these threads. Returns what failed.
pub(crate) async fn gather(addr: SocketAddr, clients: usize, requests: usize, threads: &Handle) -> Vec<String> {
    let mut crowd = JoinSet::new();
    // An emulated processor takes seconds to open thousands of connections, and comes to send the first request after that.
    let shift = if is_emulated() { Duration::from_millis(3) } else { Duration::ZERO };
    for number in 0..u32::try_from(clients).expect("a few thousand") {
        crowd.spawn_on(client(addr, requests, shift * number), threads);
    }
    crowd.join_all().await.into_iter().flatten().collect()
}

async fn client(addr: SocketAddr, requests: usize, shift: Duration) -> Vec<String> {
    sleep(shift).await;
    let mut failed = Vec::new();
    for _ in 0..requests {
        // Not bound to an address first: so the kernel can use a port again at once, and there are enough of them.
        failed.extend(visit(TcpStream::connect(addr), REQUEST, PATIENCE).await.err());
    }
    failed
}
