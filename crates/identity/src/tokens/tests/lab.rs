//! A pod's way to its token: an API server and a Google in memory, so that time can be paused.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{Request, Response};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::*;
use crate::cluster::fake::{Asked, Fake};
use crate::tests::pod;
use crate::workloads::{ClusterUri, Endpoint, Trust, WorkloadPool};
use http_client::ClientError;
use protocol::metadata::{Endpoint as Path, Fingerprint, MetadataPath, Query, Request as MetadataRequest};

pub(in crate::tokens) const GOOGLE_ACCOUNT: &str = "app@shop.iam.gserviceaccount.com";

/// The behaviour of a server.
#[derive(Debug, Clone)]
pub(in crate::tokens) enum Does {
    /// Issues tokens for this many seconds.
    Issue(u32),
    Refuse(u16, &'static str),
    /// This status, with a body that cannot be read. The API server does nothing.
    Cut(u16),
    /// This status, with a `Retry-After`.
    PutOff(u16, &'static str),
    /// Loses the connection.
    Fail,
    /// Sends no response.
    Stall,
}

/// Accounts whose names begin with this have no annotation.
pub(in crate::tokens) const DIRECT: &str = "direct";

/// The behaviour of the servers, and their requests.
#[derive(Debug)]
pub(in crate::tokens) struct Script {
    pub(in crate::tokens) delay: Duration,
    pub(in crate::tokens) annotation: &'static str,
    pub(in crate::tokens) kubernetes: Does,
    pub(in crate::tokens) sts: Does,
    pub(in crate::tokens) iam: Does,
    /// Paths and bodies, in order.
    pub(in crate::tokens) token_requests: Vec<(String, Value)>,
    pub(in crate::tokens) exchanges: Vec<Value>,
    pub(in crate::tokens) impersonations: Vec<(String, String, Value)>,
}

#[derive(Debug, Clone)]
pub(in crate::tokens) struct Servers(Arc<Mutex<Script>>);

impl Servers {
    pub(in crate::tokens) fn new(annotation: &'static str) -> Self {
        Self(Arc::new(Mutex::new(Script {
            delay: Duration::from_millis(100),
            annotation,
            kubernetes: Does::Issue(3600),
            sts: Does::Issue(3600),
            iam: Does::Issue(3600),
            token_requests: Vec::new(),
            exchanges: Vec::new(),
            impersonations: Vec::new(),
        })))
    }

    pub(in crate::tokens) fn change(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.0.lock().expect("no panic"));
    }

    pub(in crate::tokens) fn read<T>(&self, read: impl FnOnce(&Script) -> T) -> T {
        read(&self.0.lock().expect("no panic"))
    }

    /// Number of token requests to the API server, STS and IAM.
    pub(in crate::tokens) fn counts(&self) -> [usize; 3] {
        self.read(|script| [script.token_requests.len(), script.exchanges.len(), script.impersonations.len()])
    }

    async fn serve_api(self, mut fake: Fake) {
        loop {
            let mut asked = fake.asked().await;
            let servers = self.clone();
            tokio::spawn(async move {
                let body = asked.take_body().await;
                servers.answer_api(asked, &body).await;
            });
        }
    }

    async fn answer_api(&self, asked: Asked, body: &[u8]) {
        let path = asked.request.uri().path().to_owned();
        if !path.ends_with("/token") {
            match self.read(|script| script.kubernetes.clone()) {
                Does::Fail => return drop(asked),
                Does::Stall => sleep(Duration::from_secs(60)).await,
                Does::Issue(_) | Does::Refuse(..) | Does::Cut(_) | Does::PutOff(..) => {}
            }
            let is_direct = path.rsplit('/').next().is_some_and(|name| name.starts_with(DIRECT));
            let annotation = if is_direct { "" } else { self.read(|script| script.annotation) };
            let annotations = json!({"iam.gke.io/gcp-service-account": annotation});
            return asked.answer(200, &json!({"metadata": {"uid": "u1", "annotations": annotations}}));
        }
        let (number, does) = {
            let mut script = self.0.lock().expect("no panic");
            script.token_requests.push((path, serde_json::from_slice(body).expect("JSON")));
            (script.token_requests.len(), script.kubernetes.clone())
        };
        sleep(self.read(|script| script.delay)).await;
        match does {
            Does::Issue(seconds) => {
                let token = format!("ksa-{number}");
                asked.answer(201, &json!({"spec": {"expirationSeconds": seconds}, "status": {"token": token}}));
            }
            Does::Refuse(status, message) => asked.refuse(status, message),
            Does::PutOff(status, seconds) => asked.put_off(status, seconds),
            Does::Fail | Does::Cut(_) => drop(asked),
            Does::Stall => {
                sleep(Duration::from_secs(60)).await;
                drop(asked);
            }
        }
    }

    pub(in crate::tokens) async fn answer_google(
        self,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, ClientError> {
        let url = request.uri().to_string();
        let body: Value = serde_json::from_slice(request.body()).expect("JSON");
        let (number, does) = {
            let mut script = self.0.lock().expect("no panic");
            if url.ends_with("/v1/token") {
                script.exchanges.push(body.clone());
                (script.exchanges.len(), script.sts.clone())
            } else {
                let bearer = request.headers()["authorization"].to_str().expect("text").to_owned();
                script.impersonations.push((url.clone(), bearer, body.clone()));
                (script.impersonations.len(), script.iam.clone())
            }
        };
        sleep(self.read(|script| script.delay)).await;
        let response =
            |status, body: String| Response::builder().status(status).body(Bytes::from(body)).expect("a response");
        match does {
            Does::Issue(seconds) => Ok(response(200, issued(&url, number, seconds))),
            Does::Refuse(status, body) => Ok(response(status, body.to_owned())),
            Does::Cut(status) => {
                let status = status.try_into().expect("a status");
                Err(ClientError::TooLarge { status, max_bytes: 64 << 10 })
            }
            Does::PutOff(status, seconds) => {
                let mut response = response(status, String::new());
                response.headers_mut().insert("retry-after", seconds.parse().expect("a header"));
                Ok(response)
            }
            Does::Fail => Err(ClientError::TimedOut(Duration::from_secs(5))),
            Does::Stall => {
                let time = Duration::from_secs(5);
                sleep(time).await;
                Err(ClientError::TimedOut(time))
            }
        }
    }
}

/// The answer of one of Google's servers.
pub(in crate::tokens) fn issued(url: &str, number: usize, seconds: u32) -> String {
    if url.ends_with("/v1/token") {
        return json!({"access_token": format!("fed-{number}"), "expires_in": seconds}).to_string();
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    let expires = now + u64::from(seconds) + 1;
    if url.ends_with("generateIdToken") {
        let claims = URL_SAFE_NO_PAD.encode(json!({"exp": expires, "serial": number}).to_string());
        return json!({"token": format!("e30.{claims}.c2ln")}).to_string();
    }
    let expires = jiff::Timestamp::from_second(i64::try_from(expires).expect("small")).expect("a time");
    json!({"accessToken": format!("google-{number}"), "expireTime": expires.to_string()}).to_string()
}

/// A source with one pod, and the workload that sends requests.
pub(in crate::tokens) struct Lab {
    pub(in crate::tokens) source: Arc<WorkloadSource>,
    pub(in crate::tokens) servers: Servers,
    pub(in crate::tokens) number: WorkloadId,
}

pub(in crate::tokens) fn federation() -> Federation {
    let endpoint = |url| Endpoint::parse(url).expect("a URL");
    let cluster = ClusterUri::parse("https://container.googleapis.com/v1/projects/shop/c").expect("a URI");
    Federation {
        trust: Trust::Pool(WorkloadPool::parse("shop.svc.id.goog").expect("a pool"), cluster),
        token_audience: None,
        sts: endpoint("https://sts.example"),
        iam: endpoint("https://iam.example"),
        google_ca: None,
        prefetch: crate::workloads::Prefetch::default(),
        bound_tokens: false,
    }
}

impl Lab {
    pub(in crate::tokens) fn new(annotation: &'static str) -> Self {
        let servers = Servers::new(annotation);
        let google = servers.clone();
        let google = Google::through(move |request| google.clone().answer_google(request));
        Self::with(servers, federation(), google)
    }

    pub(in crate::tokens) fn with(servers: Servers, federation: Federation, google: Google) -> Self {
        let (fake, cluster) = Fake::new("n");
        tokio::spawn(servers.clone().serve_api(fake));
        let pods = Arc::<Pods>::default();
        pods.apply(pod(1, "a", "app"));
        let workloads = Arc::new(Workloads::new(Some(federation)));
        let account = workloads.of_pod(&pod(1, "a", "app"));
        let Principal::Workload(number) = account.principal() else { panic!("a workload") };
        let (following, of_cluster) = (Arc::clone(&workloads), cluster.clone());
        tokio::spawn(async move { match crate::workloads::follow(of_cluster, following).await {} });
        let federation = Arc::clone(workloads.federation().expect("tokens"));
        let parts = Parts { federation, workloads, pods, cluster, google, kept: Arc::default() };
        Self { source: Arc::new(WorkloadSource::new(parts, &Registry::default())), servers, number }
    }

    /// Adds a pod with an account of its own.
    pub(in crate::tokens) fn add(&self, pod: u8, account: &str) -> WorkloadId {
        let pod = self::pod(pod, "a", account);
        let Principal::Workload(number) = self.source.means.workloads.of_pod(&pod).principal() else {
            panic!("a workload")
        };
        self.source.means.pods.apply(pod);
        number
    }

    pub(in crate::tokens) async fn ask(&self, what: &str) -> Result<(String, u32), NoToken> {
        self.ask_for(&key(self.number, what)).await
    }

    /// The token of a key, and how many seconds it is said to live.
    pub(in crate::tokens) async fn ask_for(&self, key: &TokenKey) -> Result<(String, u32), NoToken> {
        match self.source.fetch(key, None, Urgency::Demanded).await? {
            Fetched::Own { token: Token::Access(token), expires, .. } => {
                let seconds = seconds_left(expires);
                let body = token.body(protocol::metadata::token::TokenFormat::Json, seconds);
                let body: Value = serde_json::from_slice(&body).expect("JSON");
                assert_eq!(body["token_type"], "Bearer");
                Ok((body["access_token"].as_str().expect("text").to_owned(), seconds))
            }
            Fetched::Own { token: Token::Identity(jwt), expires, .. } => {
                Ok((String::from_utf8(jwt.to_vec()).expect("text"), seconds_left(expires)))
            }
            other => panic!("not a pod's own: {other:?}"),
        }
    }

    /// The token.
    pub(in crate::tokens) async fn token(&self, what: &str) -> String {
        self.ask(what).await.expect("a token").0
    }

    /// Status and text of a refusal.
    pub(in crate::tokens) async fn refusal(&self, what: &str) -> (u16, String) {
        match self.ask(what).await {
            Err(NoToken::Refused(refused)) => {
                (refused.status.as_u16(), String::from_utf8(refused.body.to_vec()).expect("text"))
            }
            other => panic!("{other:?}"),
        }
    }

    /// The text of a failure.
    pub(in crate::tokens) async fn failure(&self, what: &str) -> String {
        match self.ask(what).await {
            Err(NoToken::Failed(why)) => why.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

fn seconds_left(expires: BootTime) -> u32 {
    expires.seconds_since(BootTime::now()).try_into().expect("small")
}

/// The key of a request for what is below `service-accounts/`.
pub(in crate::tokens) fn key(number: WorkloadId, what: &str) -> TokenKey {
    TokenKey::from_request(&request_of(number, what)).expect("a token").0
}

/// The same, bound to a certificate.
pub(super) fn bound_key(number: WorkloadId, certificate: u8, what: &str) -> TokenKey {
    let mut key = key(number, what);
    key.bound_to = Some(Box::new(Fingerprint::from([certificate; 32])));
    key
}

/// A request for what is below `service-accounts/`.
pub(in crate::tokens) fn request_of(number: WorkloadId, what: &str) -> MetadataRequest {
    let target = format!("/computeMetadata/v1/instance/service-accounts/{what}").parse().expect("a target");
    let path = MetadataPath::parse(&target).expect("a path");
    let query = Query::parse(target.query()).expect("a query");
    let principal = Principal::Workload(number);
    MetadataRequest::own(Path::from_path(&path), path.as_str(), query, principal)
}
