//! [`Google`]: sends requests to Google's APIs.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use http::{Request, Response, StatusCode};
use zeroize::Zeroizing;

use super::not_given::NotGiven;
use super::secret::Secret;
use crate::workloads::{Federation, QuotaProject};
use http_client::renewed::Renewed;
use http_client::secure::{self, CaError};
use http_client::{ClientError, HttpClient, Limits, retry_after};

/// Limits of a request. A token has 1 to 2 KiB. The timeout is longer than that of a pod's request for a token, which
/// gets the result when it is repeated.
const LIMITS: Limits = Limits { timeout: Duration::from_secs(5), max_body_bytes: 64 << 10 };

/// Maximum unused connections to each server, for the moment when a node starts.
const MAX_IDLE: usize = 4;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const AGENT: HeaderValue = HeaderValue::from_static(concat!("gce-metadata-proxy/", env!("CARGO_PKG_VERSION")));
const USER_PROJECT: HeaderName = HeaderName::from_static("x-goog-user-project");

/// Google's APIs.
pub struct Google {
    /// Sends a request within a deadline.
    send: Box<dyn Fn(Request<Bytes>) -> Sending + Send + Sync>,
}

type Sending = Pin<Box<dyn Future<Output = Result<Response<Bytes>, ClientError>> + Send>>;

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
        if let Some(file) = &federation.google_ca {
            let client = Arc::new(Renewed::new(file, LIMITS, MAX_IDLE)?);
            return Ok(Self::through(move |request| {
                let client = Arc::clone(&client);
                async move { client.send(request).await }
            }));
        }
        let client = HttpClient::with_idle(secure::connector(None)?, LIMITS, MAX_IDLE);
        Ok(Self::through(move |request| {
            let client = client.clone();
            async move { client.send(request).await }
        }))
    }

    /// Sends requests by this function. Tests have one without sockets.
    pub fn through<F>(send: impl Fn(Request<Bytes>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Response<Bytes>, ClientError>> + Send + 'static,
    {
        Self { send: Box::new(move |request| Box::pin(send(request))) }
    }

    /// Sends a request with the token `sent`, and returns a response with status 200.
    pub(super) async fn post(&self, call: Call<'_>, sent: &Secret) -> Result<Response<Bytes>, NotGiven> {
        let request = request(call).map_err(|error| NotGiven::Failed(error.to_string()))?;
        let response = (self.send)(request).await.map_err(|error| match error.status() {
            // A refusal whose body is too large or cut short is still a refusal.
            Some(status) if status.is_client_error() => NotGiven::read(status, None, &Bytes::new(), sent),
            _ => NotGiven::Failed(words(&error)),
        })?;
        match response.status() {
            StatusCode::OK => Ok(response),
            status => Err(NotGiven::read(status, retry_after(response.headers()), response.body(), sent)),
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
