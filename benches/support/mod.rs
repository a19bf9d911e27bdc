//! Shared by the benches: requests as the server passes them on, and the whole stack with warm caches.

#![allow(dead_code, unreachable_pub, reason = "each bench uses a part of it")]

use std::cell::RefCell;
use std::future::ready;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;

use bytes::Bytes;
use gce_metadata_proxy::cli;
use gce_metadata_proxy::shared::{Identifying, Shared};
use gce_metadata_proxy::stack;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use identity::pods::{Sandboxes, Scans};
use mock::Mock;
use protocol::metadata::token::AccessToken;
use protocol::metadata::{CommonPath, MetadataPath, Query, Request};
use proxy::error::Error;
use proxy::failure::{Failure, UPSTREAM_TIMEOUT};
use proxy::layers::in_flight::SeatedBody;
use proxy::layers::latency::TimedBody;
use proxy::layers::leaves::{Leaf, Leaves};
use proxy::policy::LivePolicy;
use proxy::reply::Body;
use proxy::server::{Arrival, NewStack, Payload, Stack};
use proxy::shares;
use proxy::tokens::{Fetched, NoToken, TokenKey, TokenSource, Urgency};
use telemetry::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

pub const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";
pub const ZONE: &str = "/computeMetadata/v1/instance/zone";
pub const CLUSTER_UID: &str = "/computeMetadata/v1/instance/attributes/cluster-uid";
pub const KUBE_ENV: &str = "/computeMetadata/v1/instance/attributes/kube-env";

/// The client's address.
pub const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9)), 40000);

/// A runtime like the proxy's.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// The whole stack with warm caches: it needs no upstream requests for the zone and the default token.
pub async fn stack() -> impl Stack<Body = TimedBody<SeatedBody<Body>>> {
    new_stack(&stacks().await, PEER)
}

/// Like [`stack`], but pods are identified and have accounts. The client is a process of the node.
pub async fn stack_with_identity() -> impl Stack<Body = TimedBody<SeatedBody<Body>>> {
    let flags = [
        "--workload-identity",
        "--node-name=node-1",
        "--workload-pool=shop.svc.id.goog",
        "--cluster-uri=https://container.googleapis.com/v1/projects/shop/locations/l/clusters/c",
    ];
    let sandboxes = Sandboxes::open(Path::new("/proc")).expect("a /proc");
    let scans = Scans::start(sandboxes).expect("a thread");
    let identifying = Identifying { scans, exchange: None };
    let peer = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PEER.port());
    new_stack(&stacks_of(&flags, Some(identifying)).await, peer)
}

/// The stack for a connection that is accepted now.
fn new_stack<N: NewStack>(stacks: &N, peer: SocketAddr) -> N::Stack {
    let arrival = Arrival::now(peer);
    stacks.new_stack(arrival, &stacks.remember(arrival))
}

/// Creates stacks with warm caches for any peer.
async fn stacks() -> impl NewStack<Stack: Stack<Body = TimedBody<SeatedBody<Body>>>> {
    stacks_of(&[], None).await
}

async fn stacks_of(
    flags: &[&str],
    identifying: Option<Identifying>,
) -> impl NewStack<Stack: Stack<Body = TimedBody<SeatedBody<Body>>>> + use<> {
    let mock = Mock::start().await;
    let shared = shared(mock.addr(), flags, identifying).await;
    shared.tokens.warm(TokenKey::default_account()).await.expect("the mock gives a token");
    keep_zone(&shared.leaves);
    stack::assemble(shared)
}

async fn shared(upstream: SocketAddr, flags: &[&str], identifying: Option<Identifying>) -> Arc<Shared> {
    let upstream = format!("http://{upstream}");
    let args = ["gce-metadata-proxy", "--upstream", &upstream].into_iter().chain(flags.iter().copied());
    let Ok(cli::Command::Serve(config)) = cli::parse(args.map(Into::into)) else { panic!("valid flags") };
    let policy = Arc::new(LivePolicy::load(config.policy.clone()).await.expect("built in"));
    Shared::new(config, policy, Arc::default(), Registry::default(), identifying)
}

/// The whole stack in front of an upstream on a thread of its own, whose work is not counted.
pub async fn stack_in_front() -> impl Stack<Body = TimedBody<SeatedBody<Body>>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let shared = shared(listener.local_addr().expect("bound"), &[], None).await;
    thread::spawn(move || answer_always(&listener));
    new_stack(&stack::assemble(shared), PEER)
}

/// Gives the same answer to each request: a small value with the headers of the metadata server. A request comes in one
/// piece.
fn answer_always(listener: &TcpListener) {
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Type: application/text\r\n\
        ETag: 0123456789abcdef\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nServer: Metadata Server for VM\r\n\
        Content-Length: 64\r\nX-XSS-Protection: 0\r\nX-Frame-Options: SAMEORIGIN\r\n\r\n";
    let answer = [ANSWER, &[b'0'; 64]].concat();
    for connection in listener.incoming() {
        let mut connection = connection.expect("a connection");
        while connection.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {
            connection.write_all(&answer).expect("the proxy reads");
        }
    }
}

/// Cached leaves: the zone, with the server's response.
pub fn known_leaves() -> Arc<Leaves> {
    let leaves = Arc::new(Leaves::new(|_| std::future::pending::<Result<_, Failure>>()));
    keep_zone(&leaves);
    leaves
}

fn keep_zone(leaves: &Leaves) {
    let mut headers = HeaderMap::new();
    for (name, value) in
        [("content-type", "application/text"), ("etag", "0123456789abcdef"), ("metadata-flavor", "Google")]
    {
        headers.insert(name, value.parse().expect("a value"));
    }
    let zone = Bytes::from_static(b"projects/123456789012/zones/us-central1-a");
    let leaf = Leaf::new(CommonPath::Zone, false).expect("the zone is cached");
    leaves.keep(leaf, StatusCode::OK, headers, &zone);
}

/// Returns a token of realistic size immediately.
pub struct Source;

impl TokenSource for Source {
    fn deadline(&self) -> std::time::Duration {
        UPSTREAM_TIMEOUT
    }

    async fn fetch(&self, _: &TokenKey, _: shares::Client, _: Urgency) -> Result<Fetched, NoToken> {
        let secret = "x".repeat(180);
        let body = format!(r#"{{"access_token":"{secret}","expires_in":3599,"token_type":"Bearer"}}"#);
        let (token, left) = AccessToken::parse(body.as_bytes()).expect("a token");
        Ok(Fetched::Access(token, left))
    }
}

/// The output of a future that is ready immediately, without a runtime.
pub fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("what is known is answered at once"),
    }
}

/// A request as classify passes it on.
pub fn parsed(target: &str) -> Box<Request> {
    let target: http::uri::PathAndQuery = target.parse().expect("a target");
    let path = MetadataPath::parse(&target).expect("a path");
    let mut request = Request::get(path, Query::parse(target.query()).expect("a query"));
    request.headers.insert("host", HeaderValue::from_static("metadata.google.internal"));
    request.headers.insert("metadata-flavor", HeaderValue::from_static("Google"));
    Box::new(request)
}

/// The innermost service of a stack of layers: responds immediately with an empty body.
pub fn nothing(request: Box<Request>) -> std::future::Ready<Result<Response<Body>, Error>> {
    drop(request);
    ready(Ok(Response::new(Body::Whole(Bytes::new()))))
}

/// A request with the headers of a small client.
pub fn head(target: &str) -> http::request::Builder {
    let request = http::Request::get(target).header("host", "169.254.169.254").header("metadata-flavor", "Google");
    request.header("user-agent", "curl/8").header("accept", "*/*")
}

/// The same request as bytes.
pub fn wire(target: &str) -> Vec<u8> {
    let head = "Host: 169.254.169.254\r\nMetadata-Flavor: Google\r\nUser-Agent: curl/8\r\nAccept: */*\r\n";
    format!("GET {target} HTTP/1.1\r\n{head}\r\n").into_bytes()
}

/// The same request as the server passes it on.
pub fn request(target: &str) -> http::Request<Payload> {
    head(target).body(Payload::Empty).expect("a request")
}

/// The client's end of a connection over a pipe, which sends one request at a time.
pub struct Pipe {
    client: DuplexStream,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Pipe {
    /// A connection that hyper serves with a stack, with the server's settings.
    pub fn to_stack(stack: impl Stack<Body = TimedBody<SeatedBody<Body>>>, target: &str) -> Self {
        let stack = RefCell::new(stack);
        let call = move |request: http::Request<Incoming>| stack.borrow_mut().call(request.map(|_| Payload::Empty));
        Self::to(service_fn(call), target)
    }

    /// A connection that hyper serves with a service.
    pub fn to<S, B>(service: S, target: &str) -> Self
    where
        S: hyper::service::Service<http::Request<Incoming>, Response = Response<B>, Future: Send> + Send + 'static,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        B: http_body::Body<Data: Send, Error: std::error::Error + Send + Sync> + Send + 'static,
    {
        let (client, server) = duplex(64 * 1024);
        let mut http = http1::Builder::new();
        tokio::spawn(http.title_case_headers(true).serve_connection(TokioIo::new(server), service));
        Self { client, request: wire(target), answer: vec![0; 8 * 1024] }
    }

    /// Sends a request and reads the response. Returns its size in bytes.
    pub async fn exchange(&mut self) -> usize {
        self.client.write_all(&self.request).await.expect("the server reads");
        let read = self.client.read(&mut self.answer).await.expect("an answer");
        assert!(self.answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", String::from_utf8_lossy(&self.answer[..read]));
        read
    }
}
