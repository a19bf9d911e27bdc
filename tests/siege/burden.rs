//! The kinds of load that a hostile pod can create. Any pod may send each of them.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use mock::{Fault, Handle};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::scene::is_emulated;
use crate::support::request;
use crate::visit::{Pod, connect, connect_narrow};

/// A value that never changes.
const STILL: &str = "/computeMetadata/v1/instance/attributes/cluster-name";

const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

/// A value of 256 KiB, below `/computeMetadata/v1/`.
const LARGE: &str = "instance/attributes/large-still";

/// A directory whose recursive read has the same size, and is redacted.
const LARGE_TREE: &str = "instance/network-interfaces/";

/// A value of the same size that changes now and then.
const LARGE_CHANGING: &str = "instance/attributes/large-changing";

/// Accounts whose tokens never arrive, arrive late, or fail.
const HANGING_ACCOUNT: &str = "hanging@mock-project.iam.gserviceaccount.com";
const SLOW_ACCOUNT: &str = "slow@mock-project.iam.gserviceaccount.com";
const FAILING_ACCOUNT: &str = "failing@mock-project.iam.gserviceaccount.com";

/// An account whose token is as long as a real one, so that its response holds a seat until it is written.
const LONG_ACCOUNT: &str = "long@mock-project.iam.gserviceaccount.com";

/// Length of that token, in bytes.
const LONG_TOKEN: usize = 1024;

/// The interval between pieces that are sent slowly, between checks whether a connection was closed, and at least
/// between connections. Longer on an emulated processor, where the upstream would not keep up with the requests of
/// floods.
static PAUSE: LazyLock<Duration> = LazyLock::new(|| Duration::from_millis(if is_emulated() { 2000 } else { 500 }));

/// A kind of load.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Burden {
    /// Watches, sends stray bytes and leaves.
    Ghost,
    /// Watches a value that never changes; all watch the same.
    Watcher,
    /// The same with 15 KB of headers.
    WatcherWithLargeHead,
    /// Watches a value that never changes; each with a query of its own.
    DistinctWatch,
    /// The same from many addresses.
    ScatteredWatch,
    /// Watches 256 KiB that do change, and does not read them.
    LargeChangeUnread,
    /// Waits for a token that never arrives; all for the same token.
    SlowToken,
    /// Requests a known token hundreds of times and reads nothing.
    Pipelining,
    /// The same with a small receive window.
    PipeliningNarrow,
    /// Requests it a few times with a small receive window, lets the proxy close the connection, reads nothing, and
    /// begins another one.
    ClosingNarrow,
    /// Pipelines requests for a known token and reads the responses.
    PipeliningAndReading,
    /// Pipelines 2 to 9 requests, reads the responses, and begins again.
    ShortPipelines,
    /// Requests a known token again and again, each time after the previous response.
    OneAfterAnother,
    /// Requests it on a new connection each time.
    NewConnections,
    /// Connects, sends a request and resets, again and again.
    Resets,
    /// Connects and closes without sending anything, again and again.
    Leaves,
    /// Sends TLS, one byte at a time.
    TlsHello,
    /// Sends half a request and closes its side.
    HalfClosed,
    /// Requests tokens of accounts that do not exist.
    InventedAccounts,
    /// Reads a large tree again and again.
    Trees,
    /// Sends nothing.
    Silent,
    /// Sends 15 KB of a head and stops.
    LargeHead,
    /// Sends a head that never ends.
    EndlessHead,
    /// Sends its head one byte at a time.
    ByteByByte,
    /// Requests a known token of usual length a few times with a small receive window and reads nothing.
    TokensUnreadNarrow,
    /// Requests 256 KiB three times and reads nothing.
    LargeUnread,
    /// The same with a small receive window.
    LargeUnreadNarrow,
    /// The same with a recursive read, which the proxy redacts.
    TreeUnread,
    /// Requests tokens with unknown scopes, 8 KB each.
    InventedScopes,
    /// The same with a slow upstream.
    InventedScopesSlow,
    /// The same with a failing upstream.
    InventedScopesFailing,
}

/// Number of addresses of a pod that uses unassigned addresses, as it can on a bridge with raw packets.
const SCATTERED: usize = 500;

fn scattered(number: usize) -> Pod {
    Pod::scattered(u16::try_from(number % SCATTERED + 1).expect("small"))
}

/// Prepares the upstream for all kinds of load.
pub(crate) fn prepare(mock: &Handle) {
    let large = "0123456789abcdef".repeat(16 * 1024 - 1);
    mock.set(LARGE_CHANGING, &large);
    // As fixed bodies: on an emulated processor, an unoptimised mock takes longer to render a value than the proxy
    // waits, and longer to render a tree than hostile pods take to request another.
    mock.fault_at(&format!("/computeMetadata/v1/{LARGE_TREE}"), Fault::Body(format!("{{\"large\":\"{large}\"}}")));
    mock.fault_at(&format!("/computeMetadata/v1/{LARGE}"), Fault::Body(large));
    let access_token = "x".repeat(LONG_TOKEN);
    let token = format!(r#"{{"access_token":"{access_token}","expires_in":3599,"token_type":"Bearer"}}"#);
    let faults = [
        (LONG_ACCOUNT, Fault::Body(token)),
        (HANGING_ACCOUNT, Fault::Hang),
        (SLOW_ACCOUNT, Fault::Delay(Duration::from_secs(3))),
        (FAILING_ACCOUNT, Fault::Status(500, "no".to_owned())),
    ];
    for (account, fault) in faults {
        mock.add_account(account);
        mock.fault_at(&token_of(account), fault);
    }
}

/// Changes the value that [`Burden::LargeChangeUnread`] watches, for as long as this is polled.
pub(crate) async fn change(mock: &Handle) {
    for byte in ["x", "y"].iter().cycle() {
        sleep(*PAUSE).await;
        mock.set(LARGE_CHANGING, &byte.repeat(256 * 1024 - 16));
    }
}

fn token_of(account: &str) -> String {
    format!("/computeMetadata/v1/instance/service-accounts/{account}/token")
}

impl Burden {
    /// Creates this load with one connection at a time, for as long as this is polled. A connection that ends is
    /// followed by another. The first connection adds a permit to `begun`.
    pub(crate) async fn last(self, addr: SocketAddr, number: usize, begun: Arc<Semaphore>) {
        let shift = Duration::from_millis(number as u64 % 1000);
        sleep(shift / 2).await;
        for round in 0.. {
            let stream = self.connect(addr, number).await;
            if round == 0 {
                begun.add_permits(1);
            }
            if let Ok(stream) = stream {
                // Whatever ends the connection, the next one begins.
                let _ = Box::pin(self.once(stream, addr, number, round)).await;
            }
            sleep(*PAUSE + shift).await;
        }
    }

    async fn connect(self, addr: SocketAddr, number: usize) -> io::Result<TcpStream> {
        match self {
            Self::LargeChangeUnread | Self::PipeliningNarrow | Self::ClosingNarrow | Self::LargeUnreadNarrow => {
                connect_narrow(Pod::HOSTILE, addr).await
            }
            Self::TokensUnreadNarrow => connect_narrow(scattered(number % 4), addr).await,
            Self::ScatteredWatch => connect(scattered(number), addr).await,
            _ => connect(Pod::HOSTILE, addr).await,
        }
    }

    async fn once(self, stream: TcpStream, addr: SocketAddr, number: usize, round: u64) -> io::Result<()> {
        match self {
            Self::Ghost => ghost(stream, number).await,
            Self::Watcher => wait(stream, &request(&watch(STILL))).await,
            Self::WatcherWithLargeHead => wait(stream, &with_padding(&watch(STILL))).await,
            Self::DistinctWatch | Self::ScatteredWatch => {
                let target = format!("{}&timeout_sec={}", watch(STILL), 4_000_000_000 - number);
                wait(stream, &request(&target)).await
            }
            Self::LargeChangeUnread => {
                let target = watch(&format!("/computeMetadata/v1/{LARGE_CHANGING}"));
                leave_unread(stream, &request(&target)).await
            }
            Self::SlowToken => wait(stream, &request(&token_of(HANGING_ACCOUNT))).await,
            Self::Pipelining | Self::PipeliningNarrow => pipeline(stream).await,
            Self::ClosingNarrow => {
                let last = request(TOKEN).replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
                let few = request(TOKEN).repeat(3) + &last;
                let mut unread = vec![stream];
                while let Some(stream) = unread.last_mut() {
                    // The proxy may have cut it.
                    let _ = stream.write_all(few.as_bytes()).await;
                    sleep(*PAUSE).await;
                    unread.push(self.connect(addr, number).await?);
                }
                Ok(())
            }
            Self::PipeliningAndReading => Box::pin(pipeline_and_read(stream)).await,
            Self::ShortPipelines => ask_again(stream, &request(TOKEN).repeat(2 + number % 8)).await,
            Self::OneAfterAnother => ask_again(stream, &request(TOKEN)).await,
            Self::Trees => {
                ask_again(stream, &request(&format!("/computeMetadata/v1/{LARGE_TREE}?recursive=true"))).await
            }
            Self::InventedAccounts => {
                let account =
                    |nth: u64| format!("invented-{number}-{round}-{nth}@mock-project.iam.gserviceaccount.com");
                let sent: String = (0..20).map(|nth| request(&token_of(&account(nth)))).collect();
                ask_again(stream, &sent).await
            }
            Self::NewConnections => {
                drop(stream);
                loop {
                    let stream = connect(Pod::HOSTILE, addr).await?;
                    let _ = timeout(*PAUSE, ask(stream)).await;
                }
            }
            Self::Resets => {
                reset(stream).await;
                loop {
                    reset(connect(Pod::HOSTILE, addr).await?).await;
                }
            }
            Self::Leaves => {
                drop(stream);
                loop {
                    drop(connect(Pod::HOSTILE, addr).await?);
                }
            }
            Self::TlsHello => {
                let mut stream = stream;
                for byte in [22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3].into_iter().chain([7; 500]) {
                    stream.write_all(&[byte]).await?;
                    sleep(*PAUSE / 50).await;
                }
                Ok(())
            }
            Self::HalfClosed => {
                let mut stream = stream;
                stream.write_all(&request(TOKEN).as_bytes()[..40]).await?;
                stream.shutdown().await?;
                while stream.read(&mut [0; 1024]).await? > 0 {}
                Ok(())
            }
            Self::Silent => wait(stream, "").await,
            Self::LargeHead => wait(stream, with_padding("/").trim_end()).await,
            Self::EndlessHead => endless(stream).await,
            Self::ByteByByte => byte_by_byte(stream).await,
            Self::TokensUnreadNarrow => leave_unread(stream, &request(&token_of(LONG_ACCOUNT)).repeat(20)).await,
            Self::LargeUnread | Self::LargeUnreadNarrow => leave_unread(stream, &thrice(LARGE)).await,
            Self::TreeUnread => leave_unread(stream, &thrice(&format!("{LARGE_TREE}?recursive=true"))).await,
            Self::InventedScopes => invent(stream, TOKEN, number, round).await,
            Self::InventedScopesSlow => invent(stream, &token_of(SLOW_ACCOUNT), number, round).await,
            Self::InventedScopesFailing => invent(stream, &token_of(FAILING_ACCOUNT), number, round).await,
        }
    }
}

async fn pipeline_and_read(stream: TcpStream) -> io::Result<()> {
    let (mut reader, mut writer) = stream.into_split();
    let hundred = request(TOKEN).repeat(100);
    let write = async {
        loop {
            writer.write_all(hundred.as_bytes()).await?;
        }
    };
    let read = async {
        while reader.read(&mut [0; 4 * 1024]).await? > 0 {}
        Ok::<_, io::Error>(())
    };
    tokio::select! {
        ended = write => ended,
        ended = read => ended,
    }
}

/// Sends the same request again after each response.
async fn ask_again(mut stream: TcpStream, sent: &str) -> io::Result<()> {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        stream.write_all(sent.as_bytes()).await?;
        if stream.read(&mut bytes).await? == 0 {
            return Ok(());
        }
    }
}

async fn ask(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(request(TOKEN).as_bytes()).await?;
    stream.read(&mut [0; 4096]).await.map(drop)
}

async fn reset(mut stream: TcpStream) {
    let _ = stream.write_all(request(TOKEN).as_bytes()).await;
    let _ = stream.set_zero_linger();
}

fn watch(path: &str) -> String {
    format!("{path}?wait_for_change=true")
}

fn with_padding(target: &str) -> String {
    let padding = format!("X-Padding: {}\r\n\r\n", "x".repeat(15_000));
    request(target).trim_end().to_owned() + "\r\n" + &padding
}

fn thrice(target: &str) -> String {
    request(&format!("/computeMetadata/v1/{target}")).repeat(3)
}

/// Bytes that clients may send after a request, intentionally or not.
const STRAY: [&str; 5] = ["\r\n", "\n", " ", "\r\n\r\n", "GET / HTTP/1.1\r\nHost: metadata\r\n\r\n"];

async fn ghost(mut stream: TcpStream, number: usize) -> io::Result<()> {
    let sent = request(&watch(STILL)) + STRAY[number % STRAY.len()];
    stream.write_all(sent.as_bytes()).await?;
    // Long enough for the proxy to have read the bytes.
    sleep(*PAUSE).await;
    Ok(())
}

/// Sends bytes and waits for the end of the connection.
async fn wait(mut stream: TcpStream, sent: &str) -> io::Result<()> {
    stream.write_all(sent.as_bytes()).await?;
    while stream.read(&mut [0; 1024]).await? > 0 {}
    Ok(())
}

/// Sends bytes, reads nothing and notices when the connection is reset.
async fn leave_unread(mut stream: TcpStream, sent: &str) -> io::Result<()> {
    stream.write_all(sent.as_bytes()).await?;
    loop {
        sleep(*PAUSE).await;
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
    }
}

async fn pipeline(mut stream: TcpStream) -> io::Result<()> {
    let hundred = request(TOKEN).repeat(100);
    loop {
        stream.write_all(hundred.as_bytes()).await?;
    }
}

async fn endless(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: metadata\r\n").await?;
    let header = format!("X-Padding: {}\r\n", "x".repeat(900));
    loop {
        send_unless_closed(&mut stream, header.as_bytes()).await?;
    }
}

async fn byte_by_byte(mut stream: TcpStream) -> io::Result<()> {
    for byte in request(STILL).bytes().cycle() {
        send_unless_closed(&mut stream, &[byte]).await?;
    }
    Ok(())
}

/// Sends a piece, and reads during the following pause, to notice the end of the connection.
async fn send_unless_closed(stream: &mut TcpStream, piece: &[u8]) -> io::Result<()> {
    stream.write_all(piece).await?;
    match timeout(*PAUSE, stream.read_u8()).await {
        Err(_) => Ok(()),
        Ok(Ok(_)) => Err(io::ErrorKind::ConnectionAborted.into()),
        Ok(Err(error)) => Err(error),
    }
}

async fn invent(mut stream: TcpStream, token: &str, number: usize, round: u64) -> io::Result<()> {
    for ask in 0.. {
        let target = format!("{token}?scopes=invented-{number}-{round}-{ask}-{}", "x".repeat(8_000));
        stream.write_all(request(&target).as_bytes()).await?;
        if stream.read(&mut [0; 4096]).await? == 0 {
            break;
        }
        sleep(*PAUSE / 5).await;
    }
    Ok(())
}
