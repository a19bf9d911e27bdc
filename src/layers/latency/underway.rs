//! [`Underway`]: what is measured of a request, from its head to the last byte of its answer.

use std::net::SocketAddr;

use http::{Method, Request, StatusCode};

use crate::telemetry::Moment;
use crate::telemetry::labels::Label;
use crate::telemetry::latency::{EndpointClass, Latency, RequestOutcome};
use crate::telemetry::otlp::{Recording, Tracer};

/// Of the access lines: one for each request, at debug.
const ACCESS: &str = "gce_metadata_proxy::access";

/// A request whose last byte is not there. Dropped before its end, it was cut.
#[derive(Debug)]
pub(super) struct Underway {
    latency: &'static Latency,
    pub(super) began: Moment,
    pub(super) endpoint: EndpointClass,
    /// What became of it, once it is known; until it has ended it may still be cut.
    pub(super) outcome: RequestOutcome,
    ended: Option<Moment>,
    is_head: bool,
    line: Option<Box<Line>>,
    pub(super) recording: Recording,
}

/// What the access line says besides.
#[derive(Debug)]
struct Line {
    peer: SocketAddr,
    method: Method,
    uri: String,
    status: Option<StatusCode>,
}

impl Underway {
    pub(super) fn new<B>(latency: &'static Latency, tracer: Tracer, peer: SocketAddr, request: &Request<B>) -> Self {
        let began = Moment::now();
        let line = || {
            let uri = request.uri().to_string();
            Box::new(Line { peer, method: request.method().clone(), uri, status: None })
        };
        Self {
            latency,
            endpoint: EndpointClass::Unread,
            outcome: RequestOutcome::Cut,
            ended: None,
            is_head: *request.method() == Method::HEAD,
            line: tracing::enabled!(target: ACCESS, tracing::Level::DEBUG).then(line),
            recording: tracer.record(request, peer, began),
            began,
        }
    }

    pub(super) fn is_head(&self) -> bool {
        self.is_head
    }

    pub(super) fn first_byte(&mut self, status: StatusCode, now: Moment) {
        self.latency.requests.first_byte.record(self.endpoint, self.outcome, now - self.began);
        self.recording.answered(status);
        if let Some(line) = &mut self.line {
            line.status = Some(status);
        }
    }

    /// Its last byte is there, or it was reset.
    pub(super) fn end(mut self, now: Moment) {
        self.ended = Some(now);
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        let (outcome, ended) = match self.ended {
            Some(ended) => (self.outcome, ended),
            None => (RequestOutcome::Cut, Moment::now()),
        };
        let duration = ended - self.began;
        self.latency.requests.last_byte.record(self.endpoint, outcome, duration);
        self.recording.end(self.endpoint, outcome, duration);
        let Some(line) = &self.line else { return };
        tracing::debug!(
            target: ACCESS,
            peer = %line.peer,
            method = %line.method,
            uri = line.uri,
            status = line.status.map(|status| status.as_u16()),
            endpoint = self.endpoint.label(),
            outcome = outcome.label(),
            micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
            "request"
        );
    }
}
