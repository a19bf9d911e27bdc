//! The ways in which a pod can be a burden. Each is something that any pod may send.

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

/// Changes never.
const STILL: &str = "/computeMetadata/v1/instance/attributes/cluster-name";

const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

/// Is 256 KiB large, below `/computeMetadata/v1/`.
const LARGE: &str = "instance/attributes/large-still";

/// A directory whose recursive read is as large, and redacted.
const LARGE_TREE: &str = "instance/network-interfaces/";

/// Changes now and then, and is as large.
const LARGE_CHANGING: &str = "instance/attributes/large-changing";

/// Accounts whose tokens come never, late, or not at all.
const HANGING_ACCOUNT: &str = "hanging@mock-project.iam.gserviceaccount.com";
const SLOW_ACCOUNT: &str = "slow@mock-project.iam.gserviceaccount.com";
const FAILING_ACCOUNT: &str = "failing@mock-project.iam.gserviceaccount.com";

/// The time between two pieces of what is sent slowly, between two looks whether a connection was closed, and at least between a
/// connection and the next. Longer on an emulated processor: there the upstream would not keep up with what floods ask for.
static PAUSE: LazyLock<Duration> = LazyLock::new(|| Duration::from_millis(if is_emulated() { 2000 } else { 500 }));

/// A way to be a burden.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Burden {
    /// Watches, sends stray bytes and leaves.
    Ghost,
    /// Watches what never changes; all watch the same.
    Watcher,
    /// The same with 15 KB of headers.
    WatcherWithLargeHead,
    /// Watches what never changes; each with a query of its own.
    DistinctWatch,
    /// The same from many addresses.
    ScatteredWatch,
    /// Watches 256 KiB that do change, and does not read them.
    LargeChangeUnread,
    /// Waits for a token that does not come; all for the same.
    SlowToken,
    /// Asks for a known token hundreds of times and reads nothing.
    Pipelining,
    /// The same with a small receive window.
    PipeliningNarrow,
    /// Pipelines requests for a known token and reads the answers.
    PipeliningAndReading,
    /// Pipelines 2 to 9 requests, reads the answers, and begins again.
    ShortPipelines,
    /// Asks for a known token again and again, each time it has the answer.
    OneAfterAnother,
    /// Does so with a new connection each time.
    NewConnections,
    /// Connects, asks and resets, again and again.
    Resets,
    /// Connects and leaves without a word, again and again.
    Leaves,
    /// Speaks TLS, a byte at a time.
    TlsHello,
    /// Sends half a request and closes its side.
    HalfClosed,
    /// Asks for tokens of accounts that do not exist.
    InventedAccounts,
    /// Reads a large tree again and again.
    Trees,
    /// Says nothing.
    Silent,
    /// Sends 15 KB of a head and stops.
    LargeHead,
    /// Sends a head that does not end.
    EndlessHead,
    /// Sends its head a byte at a time.
    ByteByByte,
    /// Asks for 256 KiB three times and reads nothing.
    LargeUnread,
    /// The same with a small receive window.
    LargeUnreadNarrow,
    /// The same with a recursive read, which the proxy redacts.
    TreeUnread,
    /// Asks for tokens of scopes that nobody has heard of, 8 KB each.
    InventedScopes,
    /// The same where the upstream takes its time.
    InventedScopesSlow,
    /// The same where the upstream fails.
    InventedScopesFailing,
}

/// Addresses of a pod that answers for addresses which are nobody's, as it can on a bridge with raw packets.
const SCATTERED: usize = 500;

fn scattered(number: usize) -> Pod {
    Pod::scattered(u16::try_from(number % SCATTERED + 1).expect("small"))
}

/// Prepares the upstream for all of them.
pub(crate) fn prepare(mock: &Handle) {
    let large = "0123456789abcdef".repeat(16 * 1024 - 1);
    mock.set(LARGE_CHANGING, &large);
    // As they stand: an unoptimised mock takes longer to render a value than the proxy waits on an emulated processor, and longer to
    // render a tree than it takes hostile pods to ask for another.
    mock.fault_at(&format!("/computeMetadata/v1/{LARGE_TREE}"), Fault::Body(format!("{{\"large\":\"{large}\"}}")));
    mock.fault_at(&format!("/computeMetadata/v1/{LARGE}"), Fault::Body(large));
    let faults = [
        (HANGING_ACCOUNT, Fault::Hang),
        (SLOW_ACCOUNT, Fault::Delay(Duration::from_secs(3))),
        (FAILING_ACCOUNT, Fault::Status(500, "no".to_owned())),
    ];
    for (account, fault) in faults {
        mock.add_account(account);
        mock.fault_at(&token_of(account), fault);
    }
}

/// Changes what [`Burden::LargeChangeUnread`] watches, for as long as it is polled.
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
    /// Is a burden with one connection at a time, for as long as it is polled. A connection that ends is followed by another.
    /// The first adds a permit to `begun`.
    pub(crate) async fn last(self, addr: SocketAddr, number: usize, begun: Arc<Semaphore>) {
        let shift = Duration::from_millis(number as u64 % 1000);
        sleep(shift / 2).await;
        for round in 0.. {
            let stream = self.connect(addr, number).await;
            if round == 0 {
                begun.add_permits(1);
            }
            if let Ok(stream) = stream {
                // Whatever ends it, the next begins.
                let _ = Box::pin(self.once(stream, addr, number, round)).await;
            }
            sleep(*PAUSE + shift).await;
        }
    }

    async fn connect(self, addr: SocketAddr, number: usize) -> io::Result<TcpStream> {
        match self {
            Self::LargeChangeUnread | Self::PipeliningNarrow | Self::LargeUnreadNarrow => {
                connect_narrow(Pod::HOSTILE, addr).await
            }
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

/// Sends this again whenever something was answered.
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

/// What clients may send after a request, by accident or not.
const STRAY: [&str; 5] = ["\r\n", "\n", " ", "\r\n\r\n", "GET / HTTP/1.1\r\nHost: metadata\r\n\r\n"];

async fn ghost(mut stream: TcpStream, number: usize) -> io::Result<()> {
    let sent = request(&watch(STILL)) + STRAY[number % STRAY.len()];
    stream.write_all(sent.as_bytes()).await?;
    // Long enough for the proxy to have read it.
    sleep(*PAUSE).await;
    Ok(())
}

/// Sends something and waits for the connection's end.
async fn wait(mut stream: TcpStream, sent: &str) -> io::Result<()> {
    stream.write_all(sent.as_bytes()).await?;
    while stream.read(&mut [0; 1024]).await? > 0 {}
    Ok(())
}

/// Sends something, reads nothing and notices when the connection is reset.
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

/// Sends a piece, and reads during the pause that follows: an end there is the connection's.
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
