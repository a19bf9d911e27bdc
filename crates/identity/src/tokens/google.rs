//! [`Google`]: sends requests to Google's APIs.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Request, Response, StatusCode};
use serde::Deserialize;
use zeroize::{Zeroize, Zeroizing};

use super::secret::Secret;
use crate::workloads::{Federation, QuotaProject};
use http_client::renewed::Renewed;
use http_client::secure::{self, CaError, SecureConnector};
use http_client::{ClientError, HttpClient, Limits};

/// Limits of a request. A token has 1 to 2 KiB. The timeout is longer than that of a pod's request for a token, which
/// gets the result when it is repeated.
const LIMITS: Limits = Limits { timeout: Duration::from_secs(5), max_body_bytes: 64 << 10 };

/// Maximum unused connections to each server, for the moment when a node starts.
const MAX_IDLE: usize = 4;

/// Maximum length of a server's error message that is passed on, in characters.
const MAX_TEXT: usize = 600;

/// Delay after 429 if the server names none.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const AGENT: HeaderValue = HeaderValue::from_static(concat!("gce-metadata-proxy/", env!("CARGO_PKG_VERSION")));
const USER_PROJECT: HeaderName = HeaderName::from_static("x-goog-user-project");

/// The future of a response.
pub(super) type Sending<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, ClientError>> + Send + 'a>>;

/// Sends requests within a deadline. Tests have another implementation, without sockets.
pub(super) trait Transport: Send + Sync {
    fn send(&self, request: Request<Bytes>) -> Sending<'_>;
}

impl Transport for HttpClient<SecureConnector> {
    fn send(&self, request: Request<Bytes>) -> Sending<'_> {
        Box::pin(self.send(request))
    }
}

impl Transport for Renewed {
    fn send(&self, request: Request<Bytes>) -> Sending<'_> {
        Box::pin(self.send(request))
    }
}

/// Google's APIs.
pub struct Google {
    transport: Box<dyn Transport>,
}

impl fmt::Debug for Google {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Google")
    }
}

pub(super) struct Call<'a> {
    pub(super) url: String,
    pub(super) bearer: Option<&'a Secret>,
    pub(super) quota_project: Option<&'a QuotaProject>,
    pub(super) body: Zeroizing<Vec<u8>>,
}

/// Reason why there is no successful response.
#[derive(Debug)]
pub(super) enum CallError {
    /// No response, or a server error.
    Failed(String),
    /// Too many requests: 429, or `RESOURCE_EXHAUSTED` with another status. None is sent before this time has passed.
    Throttled(Duration),
    /// A refusal with another status, and its body.
    Refused(StatusCode, Bytes),
}

impl Google {
    /// Reads the certificates to trust, and reads them again when they may have changed. Connects to nothing yet.
    pub fn new(federation: &Federation) -> Result<Self, CaError> {
        Ok(match &federation.google_ca {
            Some(file) => Self::with_transport(Renewed::new(file, LIMITS, MAX_IDLE)?),
            None => Self::with_transport(HttpClient::with_idle(secure::connector(None)?, LIMITS, MAX_IDLE)),
        })
    }

    /// A Google in memory, which gives these answers.
    #[cfg(feature = "test-util")]
    pub fn in_memory<F>(answer: impl Fn(Request<Bytes>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Response<Bytes>, ClientError>> + Send + 'static,
    {
        struct Memory<A>(A);

        impl<A, F> Transport for Memory<A>
        where
            A: Fn(Request<Bytes>) -> F + Send + Sync,
            F: Future<Output = Result<Response<Bytes>, ClientError>> + Send + 'static,
        {
            fn send(&self, request: Request<Bytes>) -> Sending<'_> {
                Box::pin((self.0)(request))
            }
        }

        Self::with_transport(Memory(answer))
    }

    pub(super) fn with_transport(transport: impl Transport + 'static) -> Self {
        Self { transport: Box::new(transport) }
    }

    /// Sends a request, and returns a response with status 200.
    pub(super) async fn post(&self, call: Call<'_>) -> Result<Response<Bytes>, CallError> {
        let request = request(call).map_err(|error| CallError::Failed(error.to_string()))?;
        let response = self.transport.send(request).await.map_err(|error| match error.status() {
            // A refusal whose body is too large or cut short is still a refusal.
            Some(status) if status.is_client_error() => CallError::Refused(status, Bytes::new()),
            _ => CallError::Failed(words(&error)),
        })?;
        match response.status() {
            StatusCode::OK => Ok(response),
            StatusCode::TOO_MANY_REQUESTS => Err(CallError::Throttled(retry_after(&response))),
            _ if is_used_up(response.body()) => Err(CallError::Throttled(retry_after(&response))),
            status if status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT => {
                Err(CallError::Refused(status, response.into_body()))
            }
            status => Err(CallError::Failed(format!("it answered {status}"))),
        }
    }
}

fn request(call: Call<'_>) -> http::Result<Request<Bytes>> {
    let mut request = Request::post(call.url).body(Bytes::from_owner(call.body))?;
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, JSON);
    headers.insert(USER_AGENT, AGENT);
    if let Some(token) = call.bearer {
        let bearer = Zeroizing::new(format!("Bearer {}", token.text.as_str()).into_bytes());
        // The header shares the memory, which is wiped.
        let mut bearer = HeaderValue::from_maybe_shared(Bytes::from_owner(bearer))?;
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
    }
    if let Some(project) = call.quota_project {
        headers.insert(USER_PROJECT, HeaderValue::from_str(project.as_str())?);
    }
    Ok(request)
}

fn words(error: &ClientError) -> String {
    match error {
        ClientError::TimedOut(time) => format!("it did not answer within {} s", time.as_secs()),
        error => error.to_string(),
    }
}

/// Whether an error says that a quota is used up, which it may with another status than 429.
fn is_used_up(body: &Bytes) -> bool {
    #[derive(Deserialize)]
    struct Answer {
        error: Error,
    }

    #[derive(Deserialize)]
    struct Error {
        status: String,
    }

    serde_json::from_slice(body).is_ok_and(|Answer { error }| error.status == "RESOURCE_EXHAUSTED")
}

fn retry_after(response: &Response<Bytes>) -> Duration {
    let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    seconds.map_or(DEFAULT_RETRY_AFTER, Duration::from_secs)
}

/// The beginning of a server's message, without the token that was sent to it and without characters that could break
/// lines in a log.
pub(super) fn quoted(words: &str, sent: &Secret) -> String {
    let words = words.replace(sent.text.as_str(), "[redacted]");
    words.chars().filter(|char| !char.is_control()).take(MAX_TEXT).collect()
}

/// Wipes a response that contained a token, unless it shares a buffer that is still in use.
pub(super) fn wipe(body: Bytes) {
    if let Ok(mut body) = body.try_into_mut() {
        body.as_mut().zeroize();
    }
}

/// Whether a token from Google can be sent in a header and in JSON without escaping.
pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\')
}
