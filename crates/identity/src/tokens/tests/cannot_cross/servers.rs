//! [`Servers`]: an API server, STS and IAM whose tokens name everything that they were issued for.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{Request, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::sleep;
use zeroize::Zeroizing;

use super::truth::{ACCOUNTS, Failing, Truth};
use crate::cluster::fake::{Asked, Fake};
use base::clock::BootTime;
use http_client::ClientError;
use protocol::metadata::query::Param;
use protocol::metadata::token::AccessToken;
use proxy::shares::Client;
use proxy::tokens::{Fetched, NoToken, TokenKey, TokenKind, TokenSource, Urgency};

/// Life of a Kubernetes token and of the node's.
const LIFE: Duration = Duration::from_secs(3600);

/// The claims of a token.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Claims {
    /// `kubernetes`, `federated`, `google`, `identity` or `node`.
    pub(super) step: String,
    pub(super) namespace: String,
    pub(super) name: String,
    /// The UID of the service account.
    pub(super) uid: String,
    /// The pod that the Kubernetes token is bound to.
    pub(super) pod_uid: String,
    pub(super) google: Option<String>,
    /// Scopes, separated by commas, or an audience.
    pub(super) what: String,
    /// In nanoseconds of the tests' clock.
    ends: u64,
    /// In seconds of the wall clock, which is not paused.
    exp: u64,
}

impl Claims {
    pub(super) fn ends(&self) -> BootTime {
        BootTime::from_nanos(self.ends)
    }

    /// The same with narrower claims, until `ends` at the latest.
    fn next(self, step: &str, what: &str, ends: BootTime) -> Self {
        let ends = ends.min(self.ends());
        let left = ends.seconds_since(BootTime::now());
        Self { step: step.into(), what: what.into(), ends: ends.as_nanos(), exp: wall_clock() + left, ..self }
    }

    /// The token, in the form of a JWT.
    pub(super) fn token(&self) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).expect("JSON")))
    }

    pub(super) fn of(token: &str) -> Self {
        let claims = token.split('.').nth(1).expect("a JWT");
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).expect("base64")).expect("claims")
    }

    fn lives(&self, step: &str) -> bool {
        self.step == step && self.ends() > BootTime::now()
    }
}

fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

/// The API server and Google.
#[derive(Debug, Clone)]
pub(super) struct Servers(Arc<Mutex<Truth>>);

impl Servers {
    pub(super) fn new(truth: &Arc<Mutex<Truth>>) -> Self {
        Self(Arc::clone(truth))
    }

    pub(super) async fn serve_api(self, mut fake: Fake) {
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
        let mut parts = path.split('/').skip(4);
        let (namespace, _, name) = (parts.next(), parts.next(), parts.next());
        let is_asked = |account: &(&str, &str)| (Some(account.0), Some(account.1)) == (namespace, name);
        let account = ACCOUNTS.iter().position(is_asked).expect("a known account");
        if parts.next() == Some("token") {
            let answer = self.token_request(account, &serde_json::from_slice(body).expect("JSON"));
            self.take_time().await;
            match answer {
                Ok(token) => asked.answer(201, &token),
                Err(message) => asked.refuse(404, &message),
            }
        } else {
            let (looked, found) = (BootTime::now(), self.truth().now(account));
            self.take_time().await;
            self.truth().was_read(account, looked);
            match found {
                Some(found) => {
                    let annotations = json!({"iam.gke.io/gcp-service-account": found.google});
                    asked.answer(200, &json!({"metadata": {"uid": found.uid, "annotations": annotations}}));
                }
                None => asked.refuse(404, &format!("serviceaccounts \"{}\" not found", ACCOUNTS[account].1)),
            }
        }
    }

    fn token_request(&self, account: usize, body: &Value) -> Result<Value, String> {
        let truth = self.truth();
        let existing = truth.now(account).ok_or("serviceaccounts not found")?;
        let bound = &body["spec"]["boundObjectRef"];
        let mut pods = truth.pods.iter().filter(|pod| pod.is_in_api && pod.account == account);
        let pod = pods.find(|pod| bound["name"] == *pod.name && bound["uid"] == *pod.uid).ok_or("pods not found")?;
        let (namespace, name) = ACCOUNTS[account];
        let claims = Claims {
            namespace: namespace.into(),
            name: name.into(),
            uid: existing.uid,
            pod_uid: pod.uid.clone(),
            ends: u64::MAX,
            ..Claims::default()
        };
        let audience = body["spec"]["audiences"][0].as_str().expect("text");
        let token = claims.next("kubernetes", audience, BootTime::now() + LIFE).token();
        Ok(json!({"spec": {"expirationSeconds": LIFE.as_secs()}, "status": {"token": token}}))
    }

    pub(in crate::tokens) async fn answer_google(
        self,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, ClientError> {
        let url = request.uri().to_string();
        let is_sts = url.ends_with("/v1/token");
        let failure = self.truth().failure(usize::from(!is_sts));
        let body: Value = serde_json::from_slice(request.body()).expect("JSON");
        let answer = match failure {
            Some(Failing::Unreachable) => {
                self.take_time().await;
                return Err(ClientError::TimedOut(Duration::from_secs(5)));
            }
            Some(Failing::Refuses(status)) => Err(status),
            None if is_sts => self.exchange(&body),
            None => {
                let bearer = request.headers()["authorization"].to_str().expect("text");
                self.impersonate(&url, bearer.strip_prefix("Bearer ").expect("a token"), &body)
            }
        };
        self.take_time().await;
        let (status, body) = answer.map_or_else(|status| (status, json!({})), |body| (200, body));
        Ok(Response::builder().status(status).body(Bytes::from(body.to_string())).expect("a response"))
    }

    fn exchange(&self, body: &Value) -> Result<Value, u16> {
        let subject = Claims::of(body["subjectToken"].as_str().expect("text"));
        if !subject.lives("kubernetes") || subject.what != "shop.svc.id.goog" {
            return Err(400);
        }
        let scopes = body["scope"].as_str().expect("text").replace(' ', ",");
        let now = BootTime::now();
        let federated = subject.next("federated", &scopes, now + self.truth().life);
        Ok(json!({"access_token": federated.token(), "expires_in": federated.ends().seconds_since(now)}))
    }

    fn impersonate(&self, url: &str, bearer: &str, body: &Value) -> Result<Value, u16> {
        let federated = Claims::of(bearer);
        if !federated.lives("federated") {
            return Err(401);
        }
        let (_, account) = url.rsplit_once('/').expect("a URL");
        let (google, method) = account.split_once(':').expect("a method");
        // A token from IAM outlives the token that it was issued for.
        let claims = Claims { google: Some(google.into()), ends: u64::MAX, ..federated };
        let ends = BootTime::now() + self.truth().life;
        if method == "generateIdToken" {
            let token = claims.next("identity", body["audience"].as_str().expect("text"), ends).token();
            return Ok(json!({"token": token}));
        }
        let scopes: Vec<_> = body["scope"].as_array().expect("scopes").iter().filter_map(Value::as_str).collect();
        let claims = claims.next("google", &scopes.join(","), ends);
        let expires = jiff::Timestamp::from_second(i64::try_from(claims.exp).expect("small")).expect("a time");
        Ok(json!({"accessToken": claims.token(), "expireTime": expires.to_string()}))
    }

    async fn take_time(&self) {
        let delay = self.truth().delay;
        sleep(delay).await;
    }

    fn truth(&self) -> MutexGuard<'_, Truth> {
        self.0.lock().expect("no panic")
    }
}

/// The token that the node's metadata server has for every client.
pub(super) fn of_node(what: &str) -> Claims {
    Claims { ends: u64::MAX, ..Claims::default() }.next("node", what, BootTime::now() + LIFE)
}

/// The node's metadata server. It ignores the identity of the client.
#[derive(Debug)]
pub(super) struct NodeServer;

impl TokenSource for NodeServer {
    fn deadline(&self) -> Duration {
        proxy::failure::UPSTREAM_TIMEOUT
    }

    async fn fetch(&self, key: &TokenKey, _: Client, _: Urgency) -> Result<Fetched, NoToken> {
        sleep(Duration::from_millis(5)).await;
        let what = |param| key.param(param).unwrap_or_default();
        let seconds = u32::try_from(LIFE.as_secs()).expect("small");
        Ok(match key.kind {
            TokenKind::Access => {
                let token = Zeroizing::new(of_node(what(Param::Scopes)).token());
                Fetched::Access(AccessToken::bearer(token).expect("a token"), seconds)
            }
            TokenKind::Identity => Fetched::Identity(of_node(what(Param::Audience)).token().into(), seconds),
        })
    }
}
