//! [`Answer`] and [`Refusal`]: responses in the formats of Google's two services.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

use super::Endpoint;

/// The page of Google's front end, if the service is not even reached.
const HTML: &str = "<!DOCTYPE html>\n<html lang=en><title>Error</title><p>The server encountered a temporary error.\n";

/// A complete response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    content_type: &'static str,
    retry_after: Option<Duration>,
    body: String,
}

impl Answer {
    /// 200 with JSON.
    pub(super) fn ok(body: &Value) -> Self {
        Self::json(StatusCode::OK, body)
    }

    /// 200 with any text, declared as JSON.
    pub(super) fn raw(body: String) -> Self {
        Self { status: StatusCode::OK, content_type: "application/json; charset=UTF-8", retry_after: None, body }
    }

    fn json(status: StatusCode, body: &Value) -> Self {
        // `{:#}` indents, as Google's APIs do.
        Self { status, ..Self::raw(format!("{body:#}\n")) }
    }

    pub(super) fn response(self) -> Response<Bytes> {
        let Self { status, content_type, retry_after, body } = self;
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Some(after) = retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(after.as_secs()));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"https://accounts.google.com/\""));
        }
        response
    }
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

    pub(super) fn answer(self) -> Answer {
        match self {
            Self::Oauth { error, description } => oauth(error, &description),
            Self::Status(status) => api(status, meaning(status).1),
            Self::Api(status, text) => api(status, &text),
            Self::Permission(permission) => {
                let text = format!("Permission '{permission}' denied on resource (or it may not exist).");
                let metadata = json!({ "permission": permission });
                detailed(StatusCode::FORBIDDEN, &text, "IAM_PERMISSION_DENIED", "iam.googleapis.com", &metadata)
            }
            Self::Path => {
                let (status, content_type) = (StatusCode::NOT_FOUND, "text/html; charset=UTF-8");
                Answer { status, content_type, retry_after: None, body: HTML.to_owned() }
            }
        }
    }
}

/// A response in OAuth's format, with status 400.
pub(super) fn oauth(error: &str, description: &str) -> Answer {
    let body = json!({ "error": error, "error_description": description }).to_string();
    Answer { status: StatusCode::BAD_REQUEST, ..Answer::raw(body) }
}

/// The response of a service whose quota is used up.
pub(super) fn used_up(endpoint: Endpoint, retry_after: Duration) -> Answer {
    let [_, quota, service] = service(endpoint);
    let text =
        format!("Quota exceeded for quota metric '{quota}' and limit '{quota} per minute' of service '{service}'.");
    let metadata = json!({ "service": service });
    let answer = detailed(StatusCode::TOO_MANY_REQUESTS, &text, "RATE_LIMIT_EXCEEDED", "googleapis.com", &metadata);
    Answer { retry_after: Some(retry_after), ..answer }
}

/// The response of a service whose API is not enabled in a project.
pub(super) fn disabled(endpoint: Endpoint, project: u64) -> Answer {
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
fn api(code: StatusCode, message: &str) -> Answer {
    error(code, json!({ "message": message }))
}

/// An error whose reason is machine-readable too.
fn detailed(code: StatusCode, message: &str, reason: &str, domain: &str, metadata: &Value) -> Answer {
    let info = json!({
        "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": domain, "metadata": metadata,
    });
    error(code, json!({ "message": message, "details": [info] }))
}

fn error(code: StatusCode, mut error: Value) -> Answer {
    error["code"] = code.as_u16().into();
    error["status"] = meaning(code).0.into();
    Answer::json(code, &json!({ "error": error }))
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
