use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::net::{UnixSocket, UnixStream};
use tokio::time::{Instant, timeout};
use zeroize::Zeroizing;

use super::TIMEOUT;
use super::format::{self, Broken, MAX_RECORD, Nonce, Record, VERSION};
use super::give::put;
use super::take::{NotTaken, connect, read_all};
use base::clock::BootTime;
use protocol::metadata::{Endpoint, MetadataPath, Principal, Query, Request};
use proxy::failure::UPSTREAM_TIMEOUT;
use proxy::layers::token_cache::{DEFAULT_LIMIT_BYTES, Store, TokenRecord, Tokens};
use proxy::shares::Client;
use proxy::tokens::{Fetched, NoToken, TokenKey, TokenSource, Urgency};
use telemetry::Registry;

const NONCE: Nonce = [7; 16];
const SETTINGS: &str = "the same";

fn begin(settings: &str, now: BootTime) -> Record {
    Record::Begin { settings: settings.to_owned(), now: now.as_nanos() }
}

fn token() -> Record {
    let text = r#"{"target":"/computeMetadata/v1/instance/service-accounts/default/token","token":{},"since":1,"expires":2,
                   "good_until":2,"used":1,"holder":null}"#;
    let record: TokenRecord = serde_json::from_str(text).expect("a record");
    Record::Token { workload: None, record }
}

#[tokio::test(start_paused = true)]
async fn a_process_waits_while_the_queue_of_its_predecessor_is_full() {
    let name = format!("\0gce-metadata-proxy/handover/full-{}", std::process::id());
    let socket = UnixSocket::new_stream().expect("a socket");
    socket.bind(&name).expect("a free name");
    let listener = socket.listen(0).expect("a listener");
    let mut others = Vec::new();
    while let Ok(other) = UnixStream::connect(&name).await {
        others.push(other);
    }
    let short = connect(&name, Instant::now() + Duration::from_millis(500)).await;
    assert!(matches!(short, Err(NotTaken::Full)), "{short:?}");
    let ours = tokio::spawn({
        let name = name.clone();
        async move { connect(&name, Instant::now() + TIMEOUT).await }
    });
    timeout(Duration::from_secs(1), std::future::pending::<()>()).await.expect_err("time passes");
    assert!(!ours.is_finished(), "the queue is full");
    listener.accept().await.expect("one of the others");
    ours.await.expect("no panic").expect("a place");
    for _ in &others {
        listener.accept().await.expect("one of them");
    }
    let late = connect(&name, Instant::now()).await;
    assert!(!matches!(late, Err(NotTaken::Full)), "{late:?}: its queue is empty");
}

/// What a process makes of what one before it sends after its hello with this nonce.
async fn received(nonce: Nonce, records: Vec<Record>) -> Result<usize, NotTaken> {
    let (mut ours, mut theirs) = duplex(1 << 20);
    format::send_hello(&mut theirs, &nonce).await.expect("room");
    for record in records {
        format::send(&mut theirs, &record).await.expect("room");
    }
    read(&mut ours, theirs).await
}

/// The same after the other end has sent all.
async fn read(ours: &mut DuplexStream, mut theirs: DuplexStream) -> Result<usize, NotTaken> {
    theirs.shutdown().await.expect("open");
    let taken = read_all(ours, &NONCE, SETTINGS).await;
    let mut hello = [0; 24];
    theirs.read_exact(&mut hello).await.expect("it says hello");
    taken.map(|records| records.len())
}

fn now() -> BootTime {
    BootTime::now()
}

#[tokio::test]
async fn a_whole_hand_over_is_believed() {
    let records = vec![begin(SETTINGS, now()), token(), token(), Record::End { records: 2 }];
    assert_eq!(received(NONCE, records).await.expect("whole"), 2);
}

#[tokio::test]
async fn half_of_one_is_not() {
    let whole = || vec![begin(SETTINGS, now()), token(), token(), Record::End { records: 2 }];
    for records in 0..whole().len() {
        let taken = received(NONCE, whole().into_iter().take(records).collect()).await;
        assert!(matches!(taken, Err(NotTaken::Broken(Broken::Io(_)))), "{records}: {taken:?}");
    }
    for records in [vec![begin(SETTINGS, now()), token(), Record::End { records: 2 }], vec![Record::End { records: 0 }]]
    {
        let taken = received(NONCE, records).await;
        assert!(matches!(taken, Err(NotTaken::Broken(Broken::Invalid))), "{taken:?}");
    }
    // In the middle of a record.
    let (mut ours, mut theirs) = duplex(1 << 20);
    format::send_hello(&mut theirs, &NONCE).await.expect("room");
    theirs.write_all(&[0, 0, 1, 0, b'{']).await.expect("room");
    let taken = read(&mut ours, theirs).await;
    assert!(matches!(taken, Err(NotTaken::Broken(Broken::Io(_)))), "{taken:?}");
}

#[tokio::test]
async fn an_old_one_is_not() {
    let records = || vec![begin(SETTINGS, now()), Record::End { records: 0 }];
    let taken = received([8; 16], records()).await;
    assert!(matches!(taken, Err(NotTaken::Replayed)), "{taken:?}");
    for other in [now() + std::time::Duration::from_secs(6), now() - std::time::Duration::from_secs(6)] {
        let taken = received(NONCE, vec![begin(SETTINGS, other), Record::End { records: 0 }]).await;
        assert!(matches!(taken, Err(NotTaken::Clock)), "{taken:?}");
    }
    let taken = received(NONCE, vec![begin("another pool", now()), Record::End { records: 0 }]).await;
    assert!(matches!(taken, Err(NotTaken::Settings)), "{taken:?}");
}

#[tokio::test]
async fn another_version_and_anything_else_is_not() {
    for (hello, expected) in [
        (&b"gmp-ho:\x00"[..], Some(0)),
        (b"gmp-ho:\x01", Some(1)),
        (b"gmp-ho:\x03", Some(3)),
        (b"gmp-ho:\xff", Some(255)),
        (b"HTTP/1.1", None),
    ] {
        let (mut ours, mut theirs) = duplex(1 << 20);
        theirs.write_all(hello).await.expect("room");
        match read(&mut ours, theirs).await {
            Err(NotTaken::Broken(Broken::Version(version))) => assert_eq!(Some(version), expected),
            Err(NotTaken::Broken(Broken::Magic)) => assert_eq!(None, expected),
            other => panic!("{hello:?}: {other:?}"),
        }
    }
    assert_eq!(VERSION, 2);
}

#[tokio::test]
async fn what_is_too_large_is_not_read() {
    let (mut ours, mut theirs) = duplex(1 << 20);
    format::send_hello(&mut theirs, &NONCE).await.expect("room");
    let length = u32::try_from(MAX_RECORD + 1).expect("small");
    theirs.write_all(&length.to_be_bytes()).await.expect("room");
    let taken = read(&mut ours, theirs).await;
    assert!(matches!(taken, Err(NotTaken::Broken(Broken::TooLarge))), "{taken:?}");

    // Small ones without end.
    let (mut ours, mut theirs) = duplex(1 << 16);
    let sending = tokio::spawn(async move {
        format::send_hello(&mut theirs, &NONCE).await?;
        format::send(&mut theirs, &begin(SETTINGS, now())).await?;
        for _ in 0..100_000 {
            format::send(&mut theirs, &token()).await?;
        }
        Ok::<_, Broken>(())
    });
    let taken = read_all(&mut ours, &NONCE, SETTINGS).await;
    assert!(matches!(taken, Err(NotTaken::Broken(Broken::TooLarge))), "{:?}", taken.map(|records| records.len()));
    drop(ours);
    assert!(sending.await.expect("no panic").is_err());
}

/// Gives identity tokens as a server does that ends its answers with a line feed.
struct EndsLines;

impl TokenSource for EndsLines {
    fn deadline(&self) -> Duration {
        UPSTREAM_TIMEOUT
    }

    async fn fetch(&self, _: &TokenKey, _: Client, _: Urgency) -> Result<Fetched, NoToken> {
        Ok(Fetched::Identity(Bytes::from_static(b"a.b.c\n"), 3600))
    }
}

#[tokio::test]
async fn what_cannot_be_written_is_left_out_and_the_rest_is_sent() {
    let target = "/computeMetadata/v1/instance/service-accounts/default/identity?audience=a".parse().expect("a target");
    let path = MetadataPath::parse(&target).expect("a path");
    let query = Query::parse(target.query()).expect("a query");
    let request = Request::own(Endpoint::from_path(&path), path.as_str(), query, Principal::Node);
    let (key, _) = TokenKey::from_request(&request).expect("a token");
    let store = Store::new(DEFAULT_LIMIT_BYTES, &Registry::default());
    let tokens = Tokens::new(store, EndsLines);
    tokens.warm(key).await.expect("a token");
    let exported = tokens.store().exported(now());
    let unwritable = Record::Token { workload: None, record: exported[0].record() };

    let (mut ours, mut theirs) = duplex(1 << 20);
    format::send_hello(&mut theirs, &NONCE).await.expect("room");
    format::send(&mut theirs, &begin(SETTINGS, now())).await.expect("room");
    let (mut records, mut bytes) = (0, 0);
    for (record, is_sent) in [(unwritable, false), (token(), true)] {
        assert_eq!(put(&mut theirs, &record, &mut records, &mut bytes).await.expect("room"), is_sent);
    }
    format::send(&mut theirs, &Record::End { records }).await.expect("room");
    assert_eq!(read(&mut ours, theirs).await.expect("whole"), 1);
}

#[tokio::test(start_paused = true)]
async fn who_says_nothing_is_not_waited_for() {
    let (mut ours, _theirs) = duplex(1 << 10);
    let began = tokio::time::Instant::now();
    assert!(timeout(super::TIMEOUT, read_all(&mut ours, &NONCE, SETTINGS)).await.is_err());
    assert_eq!(began.elapsed(), super::TIMEOUT);
}

/// How often a text is in this process's memory. It is given with each bit turned over, so that it is not there itself.
fn copies(turned: &[u8]) -> usize {
    let (maps, memory) = (fs::read_to_string("/proc/self/maps"), File::open("/proc/self/mem"));
    let (maps, memory) = (maps.expect("Linux"), memory.expect("Linux"));
    let mut count = 0;
    for line in maps.lines().filter(|line| line.contains(" rw-p ")) {
        let (from, rest) = line.split_once('-').expect("a range");
        let (to, _) = rest.split_once(' ').expect("a range");
        let [mut at, to] = [from, to].map(|text| u64::from_str_radix(text, 16).expect("an address"));
        while at < to {
            let mut part = vec![0; usize::try_from(to - at).expect("64 bits").min(1 << 16)];
            // It may be gone by now.
            let Ok(read @ 1..) = memory.read_at(&mut part, at) else { break };
            let is_there = |window: &&[u8]| window.iter().zip(turned).all(|(byte, turned)| *byte == !turned);
            count += part[..read].windows(turned.len()).filter(is_there).count();
            at += read as u64;
        }
    }
    count
}

#[tokio::test]
async fn no_copy_of_a_token_stays_behind() {
    let turned: Vec<u8> = (0..64).map(|_| !fastrand::u8(b'a'..=b'z')).collect();
    let mut text = Zeroizing::new(String::with_capacity(1 << 10));
    text.push_str(
        r#"{"target":"/computeMetadata/v1/instance/service-accounts/default/token","since":1,"expires":2,"good_until":2,
        "used":1,"holder":null,"token":{"access_token":""#,
    );
    for byte in &turned {
        text.push(char::from(!byte));
    }
    text.push_str(r#"","expires_in":1,"token_type":"Bearer"}}"#);
    let record: TokenRecord = serde_json::from_str(&text).expect("a record");
    let (mut theirs, mut ours) = UnixStream::pair().expect("a pair");
    format::send(&mut theirs, &Record::Token { workload: None, record }).await.expect("room");
    let (read, _) = format::read(&mut ours).await.expect("a record");
    assert!(copies(&turned) >= 2, "the text and what was read");
    drop((read, text));
    assert_eq!(copies(&turned), 0);
}
