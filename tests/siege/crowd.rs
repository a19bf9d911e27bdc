//! Many honest clients of one pod at once, as `ab` is: every request has a connection of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::visit::visit;

const REQUEST: &str = "GET /computeMetadata/v1/instance/service-accounts/default/token HTTP/1.0\r\n\
    Host: metadata\r\nMetadata-Flavor: Google\r\n\r\n";

/// Sends so many requests from 127.0.0.1, as many at once as there are clients. Returns what failed.
pub(crate) async fn gather(addr: SocketAddr, clients: usize, requests: usize) -> Vec<String> {
    let left = Arc::new(AtomicUsize::new(requests));
    let crowd: JoinSet<_> = (0..clients).map(|_| client(addr, Arc::clone(&left))).collect();
    crowd.join_all().await.into_iter().flatten().collect()
}

async fn client(addr: SocketAddr, left: Arc<AtomicUsize>) -> Vec<String> {
    let mut failed = Vec::new();
    while left.try_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
        // Not bound to an address first: so the kernel can use a port again at once, and there are enough of them.
        failed.extend(visit(TcpStream::connect(addr), REQUEST).await.err());
    }
    failed
}
