//! Many honest clients of one pod at once, as `ab` is: every request has a connection of its own.

use std::net::SocketAddr;

use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::visit::visit;

const REQUEST: &str = "GET /computeMetadata/v1/instance/service-accounts/default/token HTTP/1.0\r\n\
    Host: metadata\r\nMetadata-Flavor: Google\r\n\r\n";

/// So many clients at once send so many requests each from 127.0.0.1. Returns what failed.
pub(crate) async fn gather(addr: SocketAddr, clients: usize, requests: usize) -> Vec<String> {
    let crowd: JoinSet<_> = (0..clients).map(|_| client(addr, requests)).collect();
    crowd.join_all().await.into_iter().flatten().collect()
}

async fn client(addr: SocketAddr, requests: usize) -> Vec<String> {
    let mut failed = Vec::new();
    for _ in 0..requests {
        // Not bound to an address first: so the kernel can use a port again at once, and there are enough of them.
        failed.extend(visit(TcpStream::connect(addr), REQUEST).await.err());
    }
    failed
}
