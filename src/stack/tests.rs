//! The stack with other middleware between its layers, served to clients on real connections.

use std::io;
use std::marker::PhantomData;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;
use tower::buffer::Buffer;
use tower::limit::ConcurrencyLimit;
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceExt, service_fn};

use super::*;

use mock::{Handle, Mock};
use proxy::error::Error;
use proxy::server::{self, Arrival, Payload, Server};

/// Those of the places for HTTP that are inside `catch_panic`: before classify and before leave.
const HTTP_LEVELS_CAUGHT: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Middleware {
    /// tower's, for so many requests at once over all connections.
    ConcurrencyLimit(usize),
    /// tower's, of this size.
    Buffer(usize),
    /// Panics at the first request.
    PanicInCall,
    /// The future of the first request panics.
    PanicInFuture,
}

/// Puts middleware at one of the places between the layers, for requests of this type. Places are numbered from the inside
/// out.
pub(super) struct Between<R> {
    middleware: Option<(usize, Middleware)>,
    /// The next place.
    level: AtomicUsize,
    /// How many places there are, over all stacks.
    levels: Arc<AtomicUsize>,
    /// Requests to middleware that panics, over all stacks.
    requests: Arc<AtomicUsize>,
    /// What a concurrency limit has, over all stacks.
    permits: Arc<Semaphore>,
    request: PhantomData<fn(R)>,
}

impl<R> Between<R> {
    fn at(level: usize, middleware: Middleware) -> Self {
        let permits = if let Middleware::ConcurrencyLimit(limit) = middleware { limit } else { 0 };
        let permits = Arc::new(Semaphore::new(permits));
        Self { middleware: Some((level, middleware)), permits, ..Self::default() }
    }
}

impl<R> Default for Between<R> {
    fn default() -> Self {
        let permits = Arc::new(Semaphore::new(0));
        let (level, levels, requests) = (AtomicUsize::new(0), Arc::default(), Arc::default());
        Self { middleware: None, level, levels, requests, permits, request: PhantomData }
    }
}

/// For the next stack.
impl<R> Clone for Between<R> {
    fn clone(&self) -> Self {
        let (levels, requests) = (Arc::clone(&self.levels), Arc::clone(&self.requests));
        Self { middleware: self.middleware, levels, requests, permits: Arc::clone(&self.permits), ..Self::default() }
    }
}

impl<R, T, E, S> Layer<S> for Between<R>
where
    R: Send + 'static,
    T: Send + 'static,
    E: std::error::Error + Send + Sync + 'static,
    S: Service<R, Response = T, Error = E, Future: Send + 'static> + Clone + Send + Sync + 'static,
{
    type Service = BoxCloneSyncService<R, T, E>;

    fn layer(&self, inner: S) -> Self::Service {
        let level = self.level.fetch_add(1, Relaxed);
        self.levels.fetch_max(level + 1, Relaxed);
        let requests = Arc::clone(&self.requests);
        match self.middleware.filter(|(at, _)| *at == level) {
            None => BoxCloneSyncService::new(inner),
            Some((_, Middleware::ConcurrencyLimit(_))) => {
                BoxCloneSyncService::new(ConcurrencyLimit::with_semaphore(inner, Arc::clone(&self.permits)))
            }
            Some((_, Middleware::Buffer(size))) => {
                let unboxed = |error: tower::BoxError| *error.downcast::<E>().expect("the worker lives");
                BoxCloneSyncService::new(Buffer::new(inner, size).map_err(unboxed))
            }
            Some((_, Middleware::PanicInCall)) => BoxCloneSyncService::new(panicking(inner, requests, false)),
            Some((_, Middleware::PanicInFuture)) => BoxCloneSyncService::new(panicking(inner, requests, true)),
        }
    }
}

/// Panics at the first request.
fn panicking<R, S>(
    inner: S,
    requests: Arc<AtomicUsize>,
    in_future: bool,
) -> impl Service<R, Response = S::Response, Error = S::Error, Future: Send + 'static> + Clone + Send + Sync + 'static
where
    R: Send + 'static,
    S: Service<R, Future: Send + 'static> + Clone + Send + Sync + 'static,
{
    service_fn(move |request| {
        let panics = requests.fetch_add(1, Relaxed) == 0;
        assert!(!panics || in_future, "on purpose");
        let inner = inner.clone();
        async move {
            assert!(!panics, "on purpose");
            inner.oneshot(request).await
        }
    })
}

/// A proxy in front of a mock.
struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    _mock: Handle,
}

impl Proxy {
    async fn start(http: Between<http::Request<Payload>>, metadata: Between<Box<Request>>) -> Self {
        let mock = Mock::start().await;
        let shared = shared(&mock).await;
        let stacks = Arc::new(with_between(Arc::clone(&shared), http, metadata));
        let listener = server::bind((Ipv4Addr::LOCALHOST, 0).into(), false).expect("a port");
        let addr = listener.local_addr().expect("bound");
        let (connections, drain) = (Arc::clone(&shared.limits.connections), shared.drain.clone());
        let server = Server { stacks, connections, drain, reads_interfaces: false, bodies: None };
        tokio::spawn(Arc::new(server).run(0, listener));
        Self { addr, shared, _mock: mock }
    }
}

async fn shared(mock: &Handle) -> Arc<Shared> {
    Shared::of_flags(&["--upstream", &format!("http://{}", mock.addr())], None).await
}

/// How many places there are for middleware that sees HTTP, and for middleware that sees parsed requests.
async fn levels() -> (usize, usize) {
    let mock = Mock::start().await;
    let (http, metadata) = (Between::default(), Between::default());
    let (of_http, of_metadata) = (Arc::clone(&http.levels), Arc::clone(&metadata.levels));
    let (stacks, arrival) =
        (with_between(shared(&mock).await, http, metadata), Arrival::now(([127, 0, 0, 1], 1).into()));
    drop(stacks.new_stack(arrival, &stacks.remember(arrival)));
    (of_http.load(Relaxed), of_metadata.load(Relaxed))
}

/// A client's connection.
struct Connection(BufReader<TcpStream>);

impl Connection {
    async fn to(proxy: &Proxy) -> Self {
        Self(BufReader::new(TcpStream::connect(proxy.addr).await.expect("it listens")))
    }

    /// The answer to a request: its status and all of it.
    async fn get(&mut self, path: &str) -> (u16, String) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: metadata\r\nMetadata-Flavor: Google\r\n\r\n");
        self.0.write_all(request.as_bytes()).await.expect("the proxy reads");
        let (mut text, mut length) = (String::new(), 0);
        while !text.ends_with("\r\n\r\n") {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).await.expect("text") > 0, "closed behind {text:?}");
            if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                length = bytes.trim().parse().expect("a number");
            }
            text += &line;
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.expect("a whole body");
        let status = text[9..12].parse().expect("a status");
        (status, text + &String::from_utf8(body).expect("text"))
    }
}

const CLUSTER_UID: &str = "/computeMetadata/v1/instance/attributes/cluster-uid";

/// Requests that end in different layers, with their status.
const REQUESTS: [(&str, u16); 8] = [
    ("/", 200),
    (CLUSTER_UID, 200),
    ("/computeMetadata/v1/instance/service-accounts/default/token", 200),
    ("/computeMetadata/v1/instance/attributes/kube-env", 403),
    ("/computeMetadata/v1/instance/zone", 200),
    ("/computeMetadata/v1/instance/", 200),
    ("/computeMetadata/v1/instance/zone?wait_for_change=true&last_etag=0&timeout_sec=1", 200),
    ("/computeMetadata/v1/instance%2Fid", 403),
];

/// A thousand requests on ten connections, all of which stay open until the last is answered. Under a concurrency limit, those
/// that wait get a turn when others are parked, a second after their last answer.
async fn ask_a_thousand(proxy: &Proxy) {
    let mut clients = JoinSet::new();
    for first in 0..10 {
        let mut connection = Connection::to(proxy).await;
        clients.spawn(async move {
            for number in first..first + 100 {
                let (path, wanted) = REQUESTS[number % REQUESTS.len()];
                let (status, answer) = connection.get(path).await;
                assert_eq!(status, wanted, "{path}: {answer}");
            }
            connection
        });
    }
    clients.join_all().await;
}

async fn all_are_answered_with(middleware: Middleware) {
    let (http_levels, metadata_levels) = levels().await;
    for level in 0..http_levels + metadata_levels {
        let proxy = match level.checked_sub(http_levels) {
            None => Proxy::start(Between::at(level, middleware), Between::default()).await,
            Some(level) => Proxy::start(Between::default(), Between::at(level, middleware)).await,
        };
        let asked = timeout(Duration::from_secs(30), ask_a_thousand(&proxy)).await;
        assert!(asked.is_ok(), "{middleware:?} at level {level}: some requests are not answered");
    }
}

#[tokio::test]
async fn a_concurrency_limit_can_stand_at_every_level() {
    all_are_answered_with(Middleware::ConcurrencyLimit(2)).await;
}

#[tokio::test]
async fn a_buffer_can_stand_at_every_level() {
    all_are_answered_with(Middleware::Buffer(2)).await;
}

/// Requests come through every level that is counted, and there is no other.
#[tokio::test]
async fn the_levels_are_all_there_are() {
    let (http_levels, metadata_levels) = levels().await;
    assert!(metadata_levels >= Filter::ALL.len() - 1, "each filter but classify has a level: {metadata_levels}");
    let panics = Middleware::PanicInCall;
    for (http, metadata, is_there) in [
        (http_levels - 1, metadata_levels, true),
        (http_levels, metadata_levels - 1, true),
        (http_levels, metadata_levels, false),
    ] {
        let proxy = Proxy::start(Between::at(http, panics), Between::at(metadata, panics)).await;
        let mut client = TcpStream::connect(proxy.addr).await.expect("it listens");
        let request = format!(
            "GET {CLUSTER_UID} HTTP/1.1\r\nHost: metadata\r\nMetadata-Flavor: Google\r\nConnection: close\r\n\r\n"
        );
        client.write_all(request.as_bytes()).await.expect("the proxy reads");
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer).await;
        assert_eq!(!answer.starts_with(b"HTTP/1.1 200"), is_there, "{http}, {metadata}");
    }
}

async fn the_first_request_alone_fails(proxy: &Proxy) {
    let (mut bystander, mut client) = (Connection::to(proxy).await, Connection::to(proxy).await);
    let (status, answer) = client.get(CLUSTER_UID).await;
    assert_eq!(status, 500, "{answer}");
    assert!(answer.contains("Metadata-Flavor: Google\r\n"), "{answer}");
    assert!(answer.ends_with(&format!("{}\n", Error::Panicked)), "{answer}");
    assert_eq!(client.get(CLUSTER_UID).await.0, 200, "the same connection");
    assert_eq!(bystander.get(CLUSTER_UID).await.0, 200, "another connection");
    assert_eq!(proxy.shared.measures.requests.panics(), 1);
    let given_back = async {
        while proxy.shared.limits.seats.taken() > 0 {
            yield_now().await;
        }
    };
    assert!(timeout(Duration::from_secs(5), given_back).await.is_ok(), "the request that panicked keeps its seat");
}

/// Log lines.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8(bytes.clone()).expect("text")
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_panic_ends_its_request_and_nothing_else() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().json().flatten_event(true).with_writer(move || writer.clone()).finish();
    // With one subscriber alone, tracing lets a thread that has none turn off the log lines that it comes to first.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let _logging = tracing::subscriber::set_default(subscriber);
    let mut panics = 0;
    for middleware in [Middleware::PanicInCall, Middleware::PanicInFuture] {
        let levels = HTTP_LEVELS_CAUGHT + levels().await.1;
        for level in 0..levels {
            let proxy = match level.checked_sub(HTTP_LEVELS_CAUGHT) {
                None => Proxy::start(Between::at(level, middleware), Between::default()).await,
                Some(level) => Proxy::start(Between::default(), Between::at(level, middleware)).await,
            };
            panics += 1;
            the_first_request_alone_fails(&proxy).await;
        }
    }
    let text = lines.text();
    let logged: Vec<&str> = text.lines().filter(|line| line.contains("a request panicked")).collect();
    assert_eq!(logged.len(), panics);
    for line in logged {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        assert_eq!((&line["level"], &line["panic"]), (&"ERROR".into(), &"on purpose".into()));
    }
}
