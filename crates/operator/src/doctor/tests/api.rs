//! [`Api`]: a small API server on loopback, which refuses what a test wants it to, in the words of the real one.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::DATE;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use mock::google::{Issuer, Pod, Workload};

pub(super) const NODE: &str = "node-1";
pub(super) const NAMESPACE: &str = "shop";
pub(super) const ACCOUNT: &str = "checkout";
pub(super) const POD: &str = "checkout-7d9c";
pub(super) const POD_UID: &str = "6f0a9d3e-5b1c-4c7e-9d51-0a1b2c3d4e5f";
pub(super) const OWN_ACCOUNT: &str = "system:serviceaccount:kube-system:gce-metadata-proxy";

/// What it can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Ask {
    User,
    Right,
    Pods,
    Account,
    Token,
    Issuer,
    Keys,
}

/// What it knows, and what it refuses.
pub(super) struct State {
    pub(super) user: &'static str,
    pub(super) annotation: &'static str,
    pub(super) refuses: HashMap<Ask, (u16, &'static str)>,
    /// How long it takes to answer.
    pub(super) delays: HashMap<Ask, Duration>,
    pub(super) issuer: Issuer,
    /// How far its clock is ahead, in seconds.
    pub(super) ahead: i64,
    pub(super) host_network: bool,
    /// Part of the verbs that the account may use besides those that the proxy needs.
    pub(super) right: &'static str,
    /// How long tokens live, in seconds.
    pub(super) life: u64,
}

pub(super) struct Api {
    pub(super) addr: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Api {
    pub(super) async fn start(issuer: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("bound");
        let state = Arc::new(Mutex::new(State {
            user: OWN_ACCOUNT,
            annotation: "",
            refuses: HashMap::new(),
            delays: HashMap::new(),
            issuer: Issuer::new(issuer),
            ahead: 0,
            host_network: false,
            right: "",
            life: 3600,
        }));
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                let service = service_fn(move |request| answer(Arc::clone(&state), request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { addr, state }
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().expect("no panic"));
    }
}

async fn answer(state: Arc<Mutex<State>>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.expect("a request").to_bytes();
    let path = head.uri.path();
    let ask = match path {
        "/apis/authentication.k8s.io/v1/selfsubjectreviews" => Ask::User,
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" => Ask::Right,
        "/api/v1/pods" => Ask::Pods,
        "/.well-known/openid-configuration" => Ask::Issuer,
        "/openid/v1/jwks" => Ask::Keys,
        path if path.ends_with("/token") => Ask::Token,
        _ => Ask::Account,
    };
    // As the node for what nodes may, and in its own name for the rest.
    let is_node = head.headers.contains_key("impersonate-user");
    assert_eq!(is_node, matches!(ask, Ask::Pods | Ask::Account | Ask::Token), "{path}");
    let delay = state.lock().expect("no panic").delays.get(&ask).copied();
    if let Some(delay) = delay {
        tokio::time::sleep(delay).await;
    }
    let state = state.lock().expect("no panic");
    let (status, body) = match state.refuses.get(&ask) {
        Some((code, message)) => (*code, json!({"kind": "Status", "code": code, "message": message})),
        None => state.answer(ask, &body),
    };
    let date = at(state.ahead);
    let response = Response::builder().status(status).header(DATE, httpdate::fmt_http_date(date));
    Ok(response.body(Full::from(body.to_string())).expect("a response"))
}

impl State {
    fn answer(&self, ask: Ask, body: &Bytes) -> (u16, Value) {
        match ask {
            Ask::User => {
                let extra = json!({"authentication.kubernetes.io/node-name": [NODE]});
                (201, json!({"status": {"userInfo": {"username": self.user, "extra": extra}}}))
            }
            Ask::Right => {
                let asked: Value = serde_json::from_slice(body).expect("JSON");
                let verb = asked["spec"]["resourceAttributes"]["verb"].as_str().expect("a verb");
                (
                    201,
                    json!({"status": {"allowed": verb.contains("associated-node") || (!self.right.is_empty() && verb.contains(self.right))}}),
                )
            }
            Ask::Pods => {
                let spec = json!({"nodeName": NODE, "serviceAccountName": ACCOUNT, "hostNetwork": self.host_network});
                let pod = json!({"metadata": {"name": POD, "namespace": NAMESPACE, "uid": POD_UID}, "spec": spec});
                (200, json!({"metadata": {"resourceVersion": "7"}, "items": [pod]}))
            }
            Ask::Account => {
                let annotations = json!({"iam.gke.io/gcp-service-account": self.annotation});
                (200, json!({"metadata": {"uid": "u", "annotations": annotations}}))
            }
            Ask::Token => {
                let asked: Value = serde_json::from_slice(body).expect("JSON");
                let audience = asked["spec"]["audiences"][0].as_str().expect("an audience");
                let workload = Workload::new(NAMESPACE, ACCOUNT);
                let pod = Pod { workload, name: POD.into(), uid: POD_UID.into() };
                let now = at(self.ahead).duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
                let token = self.issuer.token(&pod, audience, now, Duration::from_secs(self.life));
                (201, json!({"spec": {"expirationSeconds": self.life}, "status": {"token": token}}))
            }
            Ask::Issuer => (200, json!({"issuer": self.issuer.url(), "jwks_uri": "https://127.0.0.1:9/keys"})),
            Ask::Keys => (200, serde_json::from_str(&self.issuer.jwks_json()).expect("JSON")),
        }
    }
}

/// The time by a clock that is ahead by so many seconds.
fn at(ahead: i64) -> SystemTime {
    let by = Duration::from_secs(ahead.unsigned_abs());
    if ahead < 0 { SystemTime::now() - by } else { SystemTime::now() + by }
}
