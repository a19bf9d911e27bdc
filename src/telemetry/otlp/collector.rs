//! [`Collector`]: the other end, which speaks OTLP over plain HTTP.

use std::io;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use prost::Message;
use tokio::net::TcpStream;

use crate::metadata::Target;

/// Where spans are taken, by OTLP's specification.
const PATH: &str = "/v1/traces";

/// Largest answer that is read, in bytes; an honest one says a sentence at most.
const LARGEST: usize = 16 * 1024;

/// Longest reason of its that is told, in characters.
const LONGEST_REASON: usize = 256;

/// Takes spans.
#[derive(Debug)]
pub(super) struct Collector {
    target: Target,
}

/// Why it did not.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExportError {
    #[error("cannot connect: {0}")]
    Connect(#[from] io::Error),
    #[error("no valid HTTP/1.1 response: {0}")]
    Http(#[from] hyper::Error),
    #[error("the collector answered {0}")]
    Status(StatusCode),
    #[error("the collector did not respond in time")]
    TimedOut,
    #[error("the collector rejected {spans} spans: {message:?}")]
    Rejected { spans: u64, message: String },
}

impl Collector {
    pub(super) fn new(target: Target) -> Self {
        Self { target }
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// Sends spans, on a connection of their own.
    pub(super) async fn take(&self, spans: &ExportTraceServiceRequest) -> Result<(), ExportError> {
        let stream = TcpStream::connect(self.target.address()).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let request = self.request(spans);
        let exchange = async move {
            let response = sender.send_request(request).await?;
            let status = response.status();
            if !status.is_success() {
                return Err(ExportError::Status(status));
            }
            let body = Limited::new(response.into_body(), LARGEST).collect().await;
            // The status says that they were taken; what cannot be read takes nothing back.
            let answer = body.ok().and_then(|body| ExportTraceServiceResponse::decode(body.to_bytes()).ok());
            match answer.and_then(|answer| answer.partial_success) {
                Some(partial) if partial.rejected_spans > 0 => Err(ExportError::Rejected {
                    spans: partial.rejected_spans.unsigned_abs(),
                    message: partial.error_message.chars().take(LONGEST_REASON).collect(),
                }),
                _ => Ok(()),
            }
        };
        tokio::pin!(exchange);
        tokio::select! {
            outcome = &mut exchange => outcome,
            // Why it ended is told to the exchange.
            _ = connection => exchange.await,
        }
    }

    fn request(&self, spans: &ExportTraceServiceRequest) -> Request<Full<Bytes>> {
        Request::post(PATH)
            .header(header::HOST, self.target.to_string())
            .header(header::CONTENT_TYPE, "application/x-protobuf")
            .header(header::USER_AGENT, concat!(env!("CARGO_PKG_NAME"), "/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(spans.encode_to_vec().into()))
            .expect("a target is an authority, and the rest is fixed")
    }
}
