//! Responses in the formats of Google's two services, most of them for a [`Refusal`].

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

use super::Endpoint;

/// The page of Google's front end, if the service is not even reached.
const HTML: &str = "<!DOCTYPE html>\n<html lang=en><title>Error</title><p>The server encountered a temporary error.\n";

/// 200 with JSON.
pub(super) fn ok(body: &Value) -> Response<Bytes> {
    json(StatusCode::OK, body)
}

fn json(status: StatusCode, body: &Value) -> Response<Bytes> {
    // `{:#}` indents, as Google's APIs do.
    response(status, "application/json; charset=UTF-8", format!("{body:#}\n"))
}

fn response(status: StatusCode, content_type: &'static str, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"https://accounts.google.com/\""));
    }
    response
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// In STS's error format, which is OAuth's.
    Oauth {
        /// The OAuth code, such as `invalid_grant`.
        error: &'static str,
        description: String,
    },
    /// In the format of Google's APIs, with the status's standard text.
    Status(StatusCode),
    /// In the format of Google's APIs, with this text.
    Api(StatusCode, String),
    /// A permission is missing.
    Permission(&'static str),
    /// The path does not exist.
    Path,
}

impl Refusal {
    pub(super) fn request(description: impl Into<String>) -> Self {
        Self::Oauth { error: "invalid_request", description: description.into() }
    }

    pub(super) fn grant(description: impl Into<String>) -> Self {
        Self::Oauth { error: "invalid_grant", description: description.into() }
    }

    /// An argument that IAM does not accept.
    pub(super) fn argument(message: impl Into<String>) -> Self {
        Self::Api(StatusCode::BAD_REQUEST, message.into())
    }

    pub(super) fn answer(self) -> Response<Bytes> {
        match self {
            Self::Oauth { error, description } => oauth(error, &description),
            Self::Status(status) => api(status, meaning(status).1),
            Self::Api(status, text) => api(status, &text),
            Self::Permission(permission) => {
                let text = format!("Permission '{permission}' denied on resource (or it may not exist).");
                let metadata = json!({ "permission": permission });
                detailed(StatusCode::FORBIDDEN, &text, "IAM_PERMISSION_DENIED", "iam.googleapis.com", &metadata)
            }
            Self::Path => response(StatusCode::NOT_FOUND, "text/html; charset=UTF-8", HTML.to_owned()),
        }
    }
}

/// A response in OAuth's format, with status 400.
pub(super) fn oauth(error: &str, description: &str) -> Response<Bytes> {
    json(StatusCode::BAD_REQUEST, &json!({ "error": error, "error_description": description }))
}

/// The response of a service whose quota is used up.
pub(super) fn used_up(endpoint: Endpoint, retry_after: Duration) -> Response<Bytes> {
    let [_, quota, service] = service(endpoint);
    let text =
        format!("Quota exceeded for quota metric '{quota}' and limit '{quota} per minute' of service '{service}'.");
    let metadata = json!({ "service": service });
    let mut answer = detailed(StatusCode::TOO_MANY_REQUESTS, &text, "RATE_LIMIT_EXCEEDED", "googleapis.com", &metadata);
    answer.headers_mut().insert(RETRY_AFTER, retry_after.as_secs().into());
    answer
}

/// The response of a service whose API is not enabled in a project.
pub(super) fn disabled(endpoint: Endpoint, project: u64) -> Response<Bytes> {
    let [name, _, service] = service(endpoint);
    let text = format!("{name} has not been used in project {project} before or it is disabled.");
    let metadata = json!({ "service": service, "consumer": format!("projects/{project}") });
    detailed(StatusCode::FORBIDDEN, &text, "SERVICE_DISABLED", "googleapis.com", &metadata)
}

/// The name, the quota and the host of an endpoint's service.
fn service(endpoint: Endpoint) -> [&'static str; 3] {
    match endpoint {
        Endpoint::Sts => ["Security Token Service API", "Token exchange requests", "sts.googleapis.com"],
        Endpoint::AccessToken | Endpoint::IdToken => {
            ["IAM Service Account Credentials API", "Generate credentials requests", "iamcredentials.googleapis.com"]
        }
    }
}

/// An error in the format of Google's APIs.
fn api(code: StatusCode, message: &str) -> Response<Bytes> {
    error(code, json!({ "message": message }))
}

/// An error whose reason is machine-readable too.
fn detailed(code: StatusCode, message: &str, reason: &str, domain: &str, metadata: &Value) -> Response<Bytes> {
    let info = json!({
        "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": domain, "metadata": metadata,
    });
    error(code, json!({ "message": message, "details": [info] }))
}

fn error(code: StatusCode, mut error: Value) -> Response<Bytes> {
    error["code"] = code.as_u16().into();
    error["status"] = meaning(code).0.into();
    json(code, &json!({ "error": error }))
}

/// The name of a status in Google's APIs, and its standard text.
fn meaning(code: StatusCode) -> (&'static str, &'static str) {
    match code.as_u16() {
        400 => ("INVALID_ARGUMENT", "Request contains an invalid argument."),
        401 => (
            "UNAUTHENTICATED",
            "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other \
             valid authentication credential. See \
             https://developers.google.com/identity/sign-in/web/devconsole-project.",
        ),
        403 => ("PERMISSION_DENIED", "The caller does not have permission"),
        404 => ("NOT_FOUND", "Requested entity was not found."),
        429 => ("RESOURCE_EXHAUSTED", "Unknown error."),
        _ => ("UNKNOWN", "Unknown error."),
    }
}
