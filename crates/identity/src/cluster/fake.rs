//! [`Fake`]: an API server for tests.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::response;
use http_body::Frame;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::client::Clients;
use super::{Acting, Arc, Body, Cluster, Credential, Request, Response, Settings};

/// The version of the fake's lists.
pub const VERSION: &str = "100";

/// An API server in memory, so that time can be paused. The test answers each request itself.
pub struct Fake {
    requests: mpsc::UnboundedReceiver<Asked>,
}

/// A request. Dropped without a response, it counts as a refused connection.
pub struct Asked {
    pub request: Request<Body>,
    answer: oneshot::Sender<Response<Pieces>>,
}

/// The open response of a watch. Dropping it ends the response in order.
pub struct Running(mpsc::UnboundedSender<io::Result<Bytes>>);

/// The pieces of a response's body.
pub struct Pieces(mpsc::UnboundedReceiver<io::Result<Bytes>>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

impl Fake {
    /// A server, and a client of it for this node.
    pub fn new(node: &str) -> (Self, Cluster) {
        let (sender, requests) = mpsc::unbounded_channel();
        let service = tower::service_fn(move |request| {
            let (answer, answered) = oneshot::channel();
            let _ = sender.send(Asked { request, answer });
            async move { answered.await.map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused)) }
        });
        let settings =
            Settings { node: node.parse().expect("a name"), credential: Credential::OwnAccount(Acting::AsItsNode) };
        let clients = Arc::new(Clients::fixed(settings, Client::new(service, "default")));
        (Self { requests }, Cluster { clients })
    }

    /// The next request.
    pub async fn asked(&mut self) -> Asked {
        self.requests.recv().await.expect("a request")
    }
}

impl Asked {
    /// A parameter of the query.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let query = self.request.uri().query().unwrap_or_default();
        form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    }

    /// Takes the whole body out of the request.
    pub async fn take_body(&mut self) -> Bytes {
        std::mem::replace(self.request.body_mut(), Body::empty()).collect_bytes().await.expect("a body")
    }

    /// Answers a patch with success, and returns its body.
    pub async fn body(mut self) -> Value {
        let body = self.take_body().await;
        self.answer(200, &json!({}));
        serde_json::from_slice(&body).expect("JSON")
    }

    /// Answers, and leaves the body open.
    pub fn run(self, status: u16) -> Running {
        self.run_with(Response::builder().status(status))
    }

    fn run_with(self, response: response::Builder) -> Running {
        let (pieces, body) = mpsc::unbounded_channel();
        let _ = self.answer.send(response.body(Pieces(body)).expect("a response"));
        Running(pieces)
    }

    /// Answers with 429 and this `Retry-After`.
    pub fn throttle(self, retry_after: &str) {
        self.put_off(429, retry_after);
    }

    /// Answers with this status and `Retry-After`.
    pub fn put_off(self, code: u16, retry_after: &str) {
        let running = self.run_with(Response::builder().status(code).header("retry-after", retry_after));
        running.bytes(json!({"kind": "Status", "code": code, "message": "slow down"}).to_string());
    }

    /// Answers with a whole body.
    pub fn answer(self, status: u16, body: &Value) {
        self.run(status).bytes(body.to_string());
    }

    /// Answers with a refusal.
    pub fn refuse(self, code: u16, message: &str) {
        self.answer(code, &json!({"kind": "Status", "code": code, "message": message}));
    }
}

impl Running {
    /// Sends bytes.
    pub fn bytes(&self, bytes: impl Into<Bytes>) {
        let _ = self.0.send(Ok(bytes.into()));
    }

    /// Sends an event of a watch.
    pub fn event(&self, kind: &str, object: &Value) {
        self.bytes(format!("{}\n", json!({"type": kind, "object": object})));
    }

    /// Sends a bookmark of this version.
    pub fn bookmark(&self, version: &str) {
        self.event("BOOKMARK", &json!({"kind": "Pod", "metadata": {"resourceVersion": version}, "spec": {}}));
    }

    /// Ends the list at the beginning.
    pub fn end_list(&self) {
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        self.event("BOOKMARK", &json!({"metadata": {"resourceVersion": VERSION, "annotations": annotations}}));
    }

    /// Loses the connection.
    pub fn cut(self) {
        let _ = self.0.send(Err(io::ErrorKind::ConnectionReset.into()));
    }
}
