//! [`TokenRequest`]: requests a token of a service account from the API server, bound to one of the account's pods.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::RequestError;
use super::hints::AUDIENCE;

/// Requested lifetime, in seconds. The tokens that Google issues for the token end with it.
pub(super) const LIFE_SECONDS: u32 = 3600;

/// Maximum size of a response, in bytes. A token has 1 to 2 KiB.
pub(super) const MAX_BYTES: usize = 32 << 10;

/// The parameters of a token.
#[derive(Debug, Clone, Copy)]
pub struct TokenRequest<'a> {
    /// The service account's namespace.
    pub namespace: &'a str,
    /// The service account's name.
    pub account: &'a str,
    pub audience: &'a str,
    /// The name of the pod that it is bound to. The API server refuses it once that pod is gone.
    pub pod: &'a str,
    /// The UID of that pod.
    pub pod_uid: &'a str,
}

/// A token of a service account. Wiped from memory on drop.
pub struct PodToken {
    pub secret: Zeroizing<String>,
    /// Its lifetime, from before the request.
    pub life: Duration,
}

impl fmt::Debug for PodToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodToken").field("life", &self.life).finish_non_exhaustive()
    }
}

/// Reason why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenRequestError {
    /// The pod is gone, or another one has its name. Another pod of the account may do.
    #[error("the pod {pod} is gone: {message}")]
    SponsorGone {
        /// The pod's name.
        pod: String,
        /// The API server's message.
        message: String,
    },
    /// Nodes have no right to tokens with this audience.
    #[error(transparent)]
    Audience(RequestError),
    /// Anything else.
    #[error(transparent)]
    Request(#[from] RequestError),
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    spec: AnswerSpec,
    status: AnswerStatus,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AnswerSpec {
    expiration_seconds: Option<u32>,
}

#[derive(Deserialize)]
struct AnswerStatus {
    token: Zeroizing<String>,
}

impl TokenRequest<'_> {
    pub(super) fn object(&self) -> Value {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "name": self.pod, "uid": self.pod_uid});
        let spec = json!({"audiences": [self.audience], "expirationSeconds": LIFE_SECONDS, "boundObjectRef": pod});
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
    }

    /// Distinguishes a pod that is gone from a missing right. The texts are those of Kubernetes 1.36.
    pub(super) fn refused(&self, error: RequestError) -> TokenRequestError {
        let RequestError::Refused { status, message, hint, retry_after } = error else { return error.into() };
        let says = |text: &str| message.contains(text);
        let is_gone = match status {
            StatusCode::CONFLICT => true,
            StatusCode::NOT_FOUND => says("pods "),
            StatusCode::BAD_REQUEST => says("different serviceaccount name"),
            StatusCode::FORBIDDEN => {
                says("the UID in the bound object reference")
                    || says("scheduled on a different node")
                    || says("no relationship found between node")
            }
            _ => false,
        };
        if is_gone {
            return TokenRequestError::SponsorGone { pod: self.pod.to_owned(), message };
        }
        if status == StatusCode::FORBIDDEN && says("audience") {
            return TokenRequestError::Audience(RequestError::Refused { status, message, hint: AUDIENCE, retry_after });
        }
        RequestError::Refused { status, message, hint, retry_after }.into()
    }
}

/// Reads a response. Errors quote none of it.
pub(super) fn parse(body: &[u8]) -> Result<PodToken, RequestError> {
    let invalid = || RequestError::Invalid("a TokenRequest without a token".to_owned());
    let Answer { spec, status } = serde_json::from_slice(body).map_err(|_| invalid())?;
    let is_jwt_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if status.token.is_empty() || !status.token.bytes().all(is_jwt_byte) {
        return Err(invalid());
    }
    // The API server may issue a shorter one.
    let seconds = spec.expiration_seconds.unwrap_or(LIFE_SECONDS).min(LIFE_SECONDS);
    Ok(PodToken { secret: status.token, life: Duration::from_secs(seconds.into()) })
}
