//! A gate in front of the proxy, which opens some time after the first client has connected.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// Opens a gate.
type Opener = oneshot::Sender<()>;

/// Starts a gate in front of a proxy, until the end of the runtime. Returns its address, and its opener once the first
/// client has connected.
pub(crate) async fn gate(proxy: SocketAddr) -> (SocketAddr, oneshot::Receiver<Opener>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port on loopback");
    let addr = listener.local_addr().expect("bound");
    let (came, arrival) = oneshot::channel();
    tokio::spawn(async move {
        let (opener, open) = oneshot::channel();
        let mut first = Some((came, opener, open));
        while let Ok((client, _)) = listener.accept().await {
            if let Some((came, opener, open)) = first.take() {
                let _ = came.send(opener);
                let _ = open.await;
            }
            tokio::spawn(async move {
                if let Ok(proxy) = TcpStream::connect(proxy).await {
                    relay(client, proxy).await;
                }
            });
        }
    });
    (addr, arrival)
}

/// Passes everything on until either side ends. The client sees the proxy's resets as resets.
async fn relay(client: TcpStream, proxy: TcpStream) {
    let (mut requests, mut to_client) = client.into_split();
    let (mut answers, mut to_proxy) = proxy.into_split();
    let is_reset = tokio::select! {
        _ = pass(&mut requests, &mut to_proxy) => false,
        ended = pass(&mut answers, &mut to_client) => ended.is_err(),
    };
    if is_reset {
        let client = requests.reunite(to_client).expect("of one connection");
        let _ = client.set_zero_linger();
    }
}

/// Passes bytes on until the end. An error is the sender's.
async fn pass(from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf) -> std::io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            return Ok(());
        }
    }
}
