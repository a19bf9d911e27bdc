//! [`Google`]: sends requests to Google's APIs.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use http::{Request, Response, StatusCode};
use serde::Deserialize;
use zeroize::{Zeroize, Zeroizing};

use super::not_given::{NotGiven, Said};
use super::secret::Secret;
use crate::workloads::{Federation, QuotaProject};
use http_client::renewed::Renewed;
use http_client::secure::{self, CaError, SecureConnector};
use http_client::{ClientError, HttpClient, Limits, retry_after};

/// Limits of a request. A token has 1 to 2 KiB. The timeout is longer than that of a pod's request for a token, which
/// gets the result when it is repeated.
const LIMITS: Limits = Limits { timeout: Duration::from_secs(5), max_body_bytes: 64 << 10 };

/// Maximum unused connections to each server, for the moment when a node starts.
const MAX_IDLE: usize = 4;

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

    /// Sends a request with the token `sent`, and returns a response with status 200.
    pub(super) async fn post(&self, call: Call<'_>, sent: &Secret) -> Result<Response<Bytes>, NotGiven> {
        let refused = |status, body: &Bytes| NotGiven::Refused(Said::read(status, body, sent));
        let request = request(call).map_err(|error| NotGiven::Failed(error.to_string()))?;
        let response = self.transport.send(request).await.or_else(|error| match error.status() {
            // The status says enough, if the body is too large or cut short.
            Some(status) if status.is_client_error() => Ok(without_body(status)),
            _ => Err(NotGiven::Failed(words(&error))),
        })?;
        match response.status() {
            StatusCode::OK => Ok(response),
            status if status == StatusCode::TOO_MANY_REQUESTS || is_used_up(response.body()) => {
                Err(NotGiven::Throttled(retry_after(response.headers()).unwrap_or(DEFAULT_RETRY_AFTER)))
            }
            status if status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT => {
                Err(refused(status, response.body()))
            }
            status => Err(NotGiven::Failed(format!("it answered {status}"))),
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

fn without_body(status: StatusCode) -> Response<Bytes> {
    let mut response = Response::default();
    *response.status_mut() = status;
    response
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
