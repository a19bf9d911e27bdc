//! [`Dial`]: connects by TCP to the first of a name's addresses that answers.
//!
//! The names of Google's APIs have up to twenty addresses. One that does not answer must not hold up the others, and one that is
//! slow must have time. So each is tried a moment after the one before, or at once when that one fails, and has all the time that is
//! left ("happy eyeballs", RFC 8305). hyper-util's connector tries them one after the other, and gives each its part of the
//! time: of 3 s and 16 addresses, less than 0.2 s, in which a server with a longer round trip never answers.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower::Service;

/// Maximum time to connect to any of the addresses, without finding them.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Time until the next address is tried as well. It is that of RFC 8305.
const HEAD_START: Duration = Duration::from_millis(250);

/// Maximum attempts at once: as many as can begin in [`TIMEOUT`] while all addresses are silent, so that none waits for one that
/// is.
const MAX_AT_ONCE: usize = 12;

/// Connects to the host of a URL by TCP, within 3 s for all of its addresses together. Finding these takes the resolver's time.
///
/// # Panics
///
/// Its future panics outside a runtime.
#[derive(Debug, Clone, Copy)]
pub struct Dial;

impl Service<Uri> for Dial {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        Box::pin(async move {
            let addresses: Vec<_> = lookup_host((host(&url), port(&url))).await?.collect();
            let stream = first(in_turn(&addresses), TcpStream::connect).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(stream))
        })
    }
}

/// The host in a URL, an address of IPv6 without its brackets.
pub(super) fn host(url: &Uri) -> &str {
    url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
}

/// The port in a URL, or that of its scheme.
pub(super) fn port(url: &Uri) -> u16 {
    url.port_u16().unwrap_or(if url.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 })
}

/// The resolver's order, but IPv6 and IPv4 in turn: one of them may lead nowhere.
fn in_turn(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_first = |address: &SocketAddr| addresses.first().is_some_and(|first| first.is_ipv6() == address.is_ipv6());
    let (one, other): (Vec<_>, Vec<_>) = addresses.iter().partition(|address| is_first(address));
    let most = one.len().max(other.len());
    (0..most).flat_map(|index| [one.get(index), other.get(index)]).flatten().copied().collect()
}

/// The first connection to one of these addresses, or the first error.
async fn first<T, F>(addresses: Vec<SocketAddr>, connect: impl Fn(SocketAddr) -> F) -> io::Result<T>
where
    T: Send + 'static,
    F: Future<Output = io::Result<T>> + Send + 'static,
{
    let mut addresses = addresses.into_iter();
    let (mut attempts, mut refusal) = (JoinSet::new(), None);
    let connecting = async {
        loop {
            attempts.extend(addresses.next().map(&connect));
            let may_go_on = attempts.len() < MAX_AT_ONCE && addresses.len() > 0;
            match timeout(if may_go_on { HEAD_START } else { TIMEOUT }, attempts.join_next()).await {
                Ok(Some(Ok(Ok(stream)))) => return Ok(stream),
                Ok(Some(Ok(Err(error)))) => refusal = refusal.or(Some(error)),
                Ok(Some(Err(error))) => refusal = refusal.or(Some(error.into())),
                Ok(None) => return Err(refusal.unwrap_or_else(|| io::Error::from(io::ErrorKind::NotFound))),
                Err(_) => {}
            }
        }
    };
    let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", TIMEOUT.as_secs()));
    timeout(TIMEOUT, connecting).await.unwrap_or_else(|_| Err(late()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use tokio::net::TcpListener;
    use tokio::time::{Instant, sleep};

    use super::*;

    /// What an address does, and after how many milliseconds.
    #[derive(Debug, Clone, Copy)]
    enum Does {
        Accept(u64),
        Refuse(u64),
        Nothing,
    }
    use Does::{Accept, Nothing, Refuse};

    /// Dials servers that do this. Returns the index of the one that accepts, or the error, how many milliseconds it took, and the
    /// most attempts at once.
    async fn dial(servers: &[Does]) -> (Result<usize, io::ErrorKind>, u128, usize) {
        struct Open(Arc<AtomicUsize>);
        impl Drop for Open {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Relaxed);
            }
        }
        let (open, most, began) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Instant::now());
        let addresses = (0..servers.len()).map(|index| format!("10.0.0.1:{index}").parse().expect("an address"));
        let connect = |address: SocketAddr| {
            let (index, open, most) = (usize::from(address.port()), Arc::clone(&open), Arc::clone(&most));
            let does = servers[index];
            async move {
                most.fetch_max(open.fetch_add(1, Relaxed) + 1, Relaxed);
                let _open = Open(open);
                match does {
                    Accept(after) => {
                        sleep(Duration::from_millis(after)).await;
                        Ok(index)
                    }
                    Refuse(after) => {
                        sleep(Duration::from_millis(after)).await;
                        Err(io::ErrorKind::ConnectionRefused.into())
                    }
                    Nothing => std::future::pending().await,
                }
            }
        };
        let connected = first(addresses.collect(), connect).await.map_err(|error| error.kind());
        let took = began.elapsed().as_millis();
        sleep(Duration::from_millis(1)).await;
        assert_eq!(open.load(Relaxed), 0, "nothing is left");
        (connected, took, most.load(Relaxed))
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_does_not_answer_holds_nobody_up() {
        assert_eq!(dial(&[Accept(20), Accept(0)]).await, (Ok(0), 20, 1));
        assert_eq!(dial(&[Nothing, Accept(20)]).await, (Ok(1), 270, 2));
        assert_eq!(dial(&[Refuse(5), Refuse(5), Accept(20)]).await, (Ok(2), 30, 1));
        let (connected, took, _) = dial(&[Nothing, Nothing, Nothing, Accept(20), Accept(0)]).await;
        assert_eq!((connected, took), (Ok(3), 770));
        let (connected, took, _) = dial(&[&[Nothing; 11][..], &[Accept(20)]].concat()).await;
        assert_eq!((connected, took), (Ok(11), 2_770));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_server_has_all_the_time_however_many_addresses_it_has() {
        assert_eq!(dial(&[Accept(1_200); 16]).await, (Ok(0), 1_200, 5));
        assert_eq!(dial(&[Accept(2_900)]).await, (Ok(0), 2_900, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_is_for_all_addresses_together() {
        assert_eq!(dial(&[Nothing; 20]).await, (Err(io::ErrorKind::TimedOut), 3_000, MAX_AT_ONCE));
        assert_eq!(dial(&[Refuse(10), Refuse(10)]).await, (Err(io::ErrorKind::ConnectionRefused), 20, 1));
        let (connected, took, most) = dial(&[&[Nothing; 3][..], &[Refuse(10); 9], &[Accept(10)]].concat()).await;
        assert_eq!((connected, took, most), (Ok(12), 850, 4), "those that fail make room");
        assert_eq!(dial(&[]).await, (Err(io::ErrorKind::NotFound), 0, 0));
    }

    #[test]
    fn ipv6_and_ipv4_take_turns() {
        let order = |hosts: &[&str]| {
            let addresses = hosts.iter().map(|host| SocketAddr::new(host.parse().expect("an address"), 1));
            in_turn(&addresses.collect::<Vec<_>>()).iter().map(|address| address.ip().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(order(&["::1", "::2", "::3", "1.1.1.1", "1.1.1.2"]), ["::1", "1.1.1.1", "::2", "1.1.1.2", "::3"]);
        assert_eq!(order(&["1.1.1.1", "::1"]), ["1.1.1.1", "::1"]);
        assert_eq!(order(&["1.1.1.1", "1.1.1.2"]), ["1.1.1.1", "1.1.1.2"]);
        assert!(order(&[]).is_empty());
    }

    #[tokio::test]
    async fn the_host_is_a_name_or_an_address() {
        for (bound, host) in [("127.0.0.1:0", "127.0.0.1"), ("127.0.0.1:0", "localhost"), ("[::1]:0", "[::1]")] {
            let Ok(listener) = TcpListener::bind(bound).await else { continue };
            let port = listener.local_addr().expect("bound").port();
            let stream = Dial.call(format!("https://{host}:{port}/").parse().expect("a URL")).await.expect(host);
            assert!(stream.inner().nodelay().expect("an option"));
        }
        assert_eq!(
            ["http://a", "https://a", "https://a:8"].map(|url| port(&url.parse().expect("a URL"))),
            [80, 443, 8]
        );
    }
}
