//! [`Underway`]: a request that has not ended.

use std::net::SocketAddr;
use std::sync::Arc;

use http::{Method, Request, StatusCode};

use super::Timeline;
use telemetry::Moment;
use telemetry::labels::Label;
use telemetry::latency::RequestOutcome;

/// Target of the access log, which has one line per request at debug level.
const ACCESS_LOG: &str = "gce_metadata_proxy::access";

/// A request until the last byte of its response. If it is dropped earlier, the request was cut short.
#[derive(Debug)]
pub(super) struct Underway {
    pub(super) timeline: Arc<Timeline>,
    began: Moment,
    ended: Option<Moment>,
    pub(super) is_head: bool,
    line: Option<Box<AccessLine>>,
}

/// Fields of the access log that the timeline does not have.
#[derive(Debug)]
struct AccessLine {
    peer: SocketAddr,
    method: Method,
    uri: String,
    status: Option<StatusCode>,
}

impl Underway {
    /// The request has been read.
    pub(super) fn begin<B>(timeline: Arc<Timeline>, request: &Request<B>) -> Self {
        let began = Moment::now();
        timeline.begin();
        let line = || {
            let uri = request.uri().to_string();
            Box::new(AccessLine { peer: timeline.peer(), method: request.method().clone(), uri, status: None })
        };
        Self {
            line: tracing::enabled!(target: ACCESS_LOG, tracing::Level::DEBUG).then(line),
            is_head: *request.method() == Method::HEAD,
            ended: None,
            began,
            timeline,
        }
    }

    pub(super) fn first_byte(&mut self, status: StatusCode, now: Moment) {
        self.timeline.first_byte(now - self.began);
        if let Some(line) = &mut self.line {
            line.status = Some(status);
        }
    }

    /// The last byte is available, or the connection is reset.
    pub(super) fn end(mut self, now: Moment) {
        self.ended = Some(now);
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        let (outcome, ended) = match self.ended {
            Some(ended) => (self.timeline.outcome(), ended),
            None => (RequestOutcome::Cut, Moment::now()),
        };
        let duration = ended - self.began;
        self.timeline.end(outcome, duration);
        let Some(line) = &self.line else { return };
        tracing::debug!(
            target: ACCESS_LOG,
            peer = %line.peer,
            method = %line.method,
            uri = line.uri,
            status = line.status.map(|status| status.as_u16()),
            endpoint = self.timeline.endpoint().label(),
            outcome = outcome.label(),
            micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
            "request"
        );
    }
}
