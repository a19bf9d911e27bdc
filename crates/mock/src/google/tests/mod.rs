//! Tests of the fake Google, most of them without a connection.

mod faults;
mod iam;
mod sockets;
mod sts;

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Request, Response};
use serde_json::{Value, json};

use super::{Endpoint, Fault, Google, Handle, Issuer, Pod, Pool, Settings, Workload, routes};

const POOL: &str = "p.svc.id.goog";
const CLUSTER: &str = "https://container.googleapis.com/v1/projects/p/locations/l/clusters/c";
const AUDIENCE: &str =
    "identitynamespace:p.svc.id.goog:https://container.googleapis.com/v1/projects/p/locations/l/clusters/c";
const CLOUD_PLATFORM: &str = "https://www.googleapis.com/auth/cloud-platform";
const HOUR: Duration = Duration::from_secs(3600);
/// The Google service account of the tests.
const EMAIL: &str = "checkout@p.iam.gserviceaccount.com";

/// A fake Google, and an issuer that it trusts.
struct World {
    google: Handle,
    issuer: Issuer,
}

impl World {
    async fn new() -> Self {
        let issuer = Issuer::new(CLUSTER);
        let settings = Settings { jwks: issuer.jwks(), ..Settings::new(Pool::gke(POOL, CLUSTER)) };
        Self { google: Google::start(settings).await, issuer }
    }

    /// The fake's time, in whole seconds since 1970. It follows tokio's clock, even when that is paused.
    fn now(&self) -> u64 {
        self.google.state.clock.now()
    }

    /// A service account token of an hour.
    fn ksa_token(&self, workload: &Workload) -> String {
        self.issuer.token(&pod(workload), POOL, self.now(), HOUR)
    }

    /// A token exchange in JSON with these fields changed; null removes one.
    async fn exchange(&self, token: &str, changes: &Value) -> Reply {
        let mut fields = exchange(token);
        for (name, value) in changes.as_object().expect("an object") {
            match value {
                Value::Null => fields.as_object_mut().and_then(|fields| fields.remove(name)),
                value => fields.as_object_mut().and_then(|fields| fields.insert(name.clone(), value.clone())),
            };
        }
        self.post("/v1/token", None, &fields).await
    }

    /// A federated token.
    async fn federated(&self, workload: &Workload) -> String {
        let reply = self.exchange(&self.ksa_token(workload), &json!({})).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.body["access_token"].as_str().expect("a token").to_owned()
    }

    /// A request to IAM.
    async fn iam(&self, email: &str, method: &str, bearer: &str, body: &Value) -> Reply {
        self.post(&format!("/v1/projects/-/serviceAccounts/{email}:{method}"), Some(bearer), body).await
    }

    async fn post(&self, path: &str, bearer: Option<&str>, body: &Value) -> Reply {
        let mut request = Request::post(path).header(CONTENT_TYPE, "application/json");
        if let Some(bearer) = bearer {
            request = request.header(AUTHORIZATION, format!("Bearer {bearer}"));
        }
        self.call(request.body(Bytes::from(body.to_string())).expect("a request")).await
    }

    /// Without a connection, since tokio's clock may be paused.
    async fn call(&self, request: Request<Bytes>) -> Reply {
        let (parts, body) = request.into_parts();
        Reply::new(routes::answer(&self.google.state, &parts, &body).await)
    }
}

/// An answer in JSON.
#[derive(Debug)]
struct Reply {
    status: u16,
    headers: http::HeaderMap,
    body: Value,
}

impl Reply {
    fn new(response: Response<Bytes>) -> Self {
        let (parts, body) = response.into_parts();
        let text = String::from_utf8(body.into()).expect("UTF-8");
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Self { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// The `error` of an answer in OAuth's form.
    fn error(&self) -> (u16, &str) {
        (self.status, self.body["error"].as_str().unwrap_or_default())
    }

    /// The status and message of an answer in the form of Google's APIs.
    fn api_error(&self) -> (u16, &str, &str) {
        let error = &self.body["error"];
        assert_eq!(error["code"], self.status, "{}", self.body);
        let text = |name: &str| error[name].as_str().unwrap_or_default();
        (self.status, text("status"), text("message"))
    }
}

fn checkout() -> Workload {
    Workload::new("shop", "checkout")
}

fn pod(workload: &Workload) -> Pod {
    let uid = format!("uid-of-{}", workload.service_account);
    Pod { workload: workload.clone(), name: format!("{}-7d9c", workload.service_account), uid }
}

/// The fields of an exchange, in camelCase.
fn exchange(token: &str) -> Value {
    json!({
        "audience": AUDIENCE,
        "grantType": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requestedTokenType": "urn:ietf:params:oauth:token-type:access_token",
        "scope": CLOUD_PLATFORM,
        "subjectToken": token,
        "subjectTokenType": "urn:ietf:params:oauth:token-type:jwt",
    })
}

/// The claims of a token, without a check of its signature.
fn claims(token: &str) -> Value {
    let parts: Vec<_> = token.split('.').map(|part| URL_SAFE_NO_PAD.decode(part).expect("base64url")).collect();
    assert_eq!(parts.len(), 3);
    serde_json::from_slice(&parts[1]).expect("JSON")
}
