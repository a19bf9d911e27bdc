//! [`Collector`]: sends spans to a collector with OTLP over plain HTTP.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use prost::Message;

use crate::http_client::{ClientError, HttpClient, Limits};
use crate::metadata::Target;

/// The path for spans in OTLP's specification.
const PATH: &str = "/v1/traces";

/// A valid response body is at most a sentence.
const LIMITS: Limits = Limits { timeout: Duration::from_secs(5), max_body_bytes: 16 * 1024 };

/// Maximum characters of the collector's message to log.
const MAX_MESSAGE_CHARS: usize = 256;

/// A collector.
#[derive(Debug)]
pub(super) struct Collector {
    target: Target,
    client: HttpClient,
}

/// Why spans were not exported.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExportError {
    #[error(transparent)]
    Client(ClientError),
    #[error("the collector answered {0}")]
    Status(StatusCode),
    #[error("the collector did not respond in time")]
    TimedOut,
    #[error("the collector rejected {spans} spans: {message:?}")]
    Rejected { spans: u64, message: String },
}

impl Collector {
    pub(super) fn new(target: Target) -> Self {
        Self { target, client: HttpClient::plain(LIMITS) }
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// Sends spans.
    pub(super) async fn take(&self, spans: &ExportTraceServiceRequest) -> Result<(), ExportError> {
        let (status, body) = match self.client.send(self.request(spans)).await {
            Ok(response) => (response.status(), response.into_body()),
            Err(ClientError::TimedOut(_)) => return Err(ExportError::TimedOut),
            // The status decides, even if the body cannot be read.
            Err(error) => (error.status().ok_or(ExportError::Client(error))?, Bytes::new()),
        };
        if !status.is_success() {
            return Err(ExportError::Status(status));
        }
        let answer = ExportTraceServiceResponse::decode(body).ok();
        match answer.and_then(|answer| answer.partial_success) {
            Some(partial) if partial.rejected_spans > 0 => Err(ExportError::Rejected {
                spans: partial.rejected_spans.unsigned_abs(),
                message: partial.error_message.chars().take(MAX_MESSAGE_CHARS).collect(),
            }),
            _ => Ok(()),
        }
    }

    fn request(&self, spans: &ExportTraceServiceRequest) -> Request<Bytes> {
        Request::post(format!("http://{}{PATH}", self.target))
            .header(header::CONTENT_TYPE, "application/x-protobuf")
            .header(header::USER_AGENT, concat!(env!("CARGO_PKG_NAME"), "/", env!("CARGO_PKG_VERSION")))
            .body(spans.encode_to_vec().into())
            .expect("a target is an authority, and the rest is fixed")
    }
}
