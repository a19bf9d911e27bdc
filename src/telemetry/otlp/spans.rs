//! Converts records to OTLP spans.

use std::env;
use std::time::{Duration, UNIX_EPOCH};

use http::Version;
use opentelemetry::{KeyValue, SpanId, TraceId};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, SpanFlags, Status};
use opentelemetry_proto::transform::common::tonic::{Attributes, ResourceAttributesWithSchema};
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};

use super::record::{Record, Step};
use crate::telemetry::labels::Label;
use crate::telemetry::latency::RequestOutcome;

/// The flag of a span whose trace is sampled.
const SAMPLED: u32 = 1;

/// The export request for these spans.
pub(super) fn export_request(resource: Resource, spans: Vec<Span>) -> ExportTraceServiceRequest {
    let scope = InstrumentationScope {
        name: env!("CARGO_PKG_NAME").into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..InstrumentationScope::default()
    };
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
    let resource_spans = ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![resource_spans] }
}

/// The resource: this program on this host. `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` take precedence.
pub(super) fn resource() -> Resource {
    let from_env = |variable| env::var(variable).ok().filter(|value| !value.is_empty());
    let named = |key: &'static str, value: Option<String>| value.map(|value| KeyValue::new(key, value));
    let resource = opentelemetry_sdk::Resource::builder_empty()
        .with_service_name(env!("CARGO_PKG_NAME"))
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attributes(named("host.name", from_env("HOSTNAME")))
        .with_detector(Box::new(EnvResourceDetector::new()))
        .with_attributes(named("service.name", from_env("OTEL_SERVICE_NAME")))
        .build();
    let attributes = ResourceAttributesWithSchema::from(&resource).attributes.0;
    Resource { attributes, ..Resource::default() }
}

/// The spans of a request: its own, and below it one for each filter.
pub(super) fn from_record(record: &Record, ids: &RandomIdGenerator) -> Vec<Span> {
    let request = request(record, ids);
    let mut spans = Vec::with_capacity(1 + record.steps.len());
    let mut began = record.began;
    for step in &record.steps {
        spans.push(filter(step, &request, ids, at(record, began - record.began), at(record, step.left - record.began)));
        began = step.left;
    }
    spans.push(request);
    spans
}

fn request(record: &Record, ids: &RandomIdGenerator) -> Span {
    let parent = record.parent.as_ref();
    let remote = if parent.is_some() { SpanFlags::ContextIsRemoteMask as u32 } else { 0 };
    Span {
        trace_id: bytes(parent.map_or_else(|| ids.new_trace_id(), |parent| parent.trace_id)),
        parent_span_id: parent.map(|parent| parent.span_id.to_bytes().into()).unwrap_or_default(),
        trace_state: record.trace_state.clone(),
        flags: SAMPLED | SpanFlags::ContextHasIsRemoteMask as u32 | remote,
        kind: SpanKind::Server.into(),
        attributes: Attributes::from(attributes(record)).0,
        status: has_failed(record).then(|| Status { code: StatusCode::Error.into(), message: String::new() }),
        ..span(record.endpoint.label(), ids.new_span_id(), at(record, Duration::ZERO), at(record, record.duration))
    }
}

fn filter(step: &Step, request: &Span, ids: &RandomIdGenerator, began: u64, ended: u64) -> Span {
    let mut attributes = vec![KeyValue::new("metadata_proxy.outcome", step.outcome.label())];
    if !step.waited.is_zero() {
        attributes.push(KeyValue::new("metadata_proxy.waited_seconds", step.waited.as_secs_f64()));
    }
    Span {
        trace_id: request.trace_id.clone(),
        parent_span_id: request.span_id.clone(),
        trace_state: request.trace_state.clone(),
        flags: SAMPLED | SpanFlags::ContextHasIsRemoteMask as u32,
        kind: SpanKind::Internal.into(),
        attributes: Attributes::from(attributes).0,
        ..span(step.filter.label(), ids.new_span_id(), began, ended)
    }
}

fn span(name: &str, id: SpanId, began: u64, ended: u64) -> Span {
    Span {
        name: name.into(),
        span_id: id.to_bytes().into(),
        start_time_unix_nano: began,
        end_time_unix_nano: ended,
        ..Span::default()
    }
}

fn bytes(id: TraceId) -> Vec<u8> {
    id.to_bytes().into()
}

/// Attributes with the names of OpenTelemetry's semantic conventions for HTTP servers, and `metadata_proxy.*`.
fn attributes(record: &Record) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new("http.request.method", record.method),
        KeyValue::new("url.scheme", "http"),
        KeyValue::new("url.path", record.path.clone()),
        KeyValue::new("network.protocol.version", if record.version == Version::HTTP_10 { "1.0" } else { "1.1" }),
        KeyValue::new("client.address", record.peer.ip().to_canonical().to_string()),
        KeyValue::new("client.port", i64::from(record.peer.port())),
        KeyValue::new("metadata_proxy.endpoint", record.endpoint.label()),
        KeyValue::new("metadata_proxy.outcome", record.outcome.label()),
    ];
    attributes.extend(record.user_agent.clone().map(|agent| KeyValue::new("user_agent.original", agent)));
    let status = record.status.map(|status| i64::from(status.as_u16()));
    attributes.extend(status.map(|status| KeyValue::new("http.response.status_code", status)));
    attributes.extend(record.reason.map(|reason| KeyValue::new("metadata_proxy.reason", reason)));
    if has_failed(record) {
        let kind = record.reason.map(Into::into).or(status.map(|status| status.to_string()));
        attributes.extend(kind.map(|kind: String| KeyValue::new("error.type", kind)));
    }
    attributes
}

/// Whether the span is an error. A refusal is not, because it is the client's fault.
fn has_failed(record: &Record) -> bool {
    matches!(record.outcome, RequestOutcome::Failed | RequestOutcome::Shed)
        || record.status.is_some_and(|status| status.is_server_error())
}

/// The time this long after the request began, in nanoseconds since the Unix epoch.
fn at(record: &Record, since: Duration) -> u64 {
    let began = record.began_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from((began + since).as_nanos()).unwrap_or(u64::MAX)
}
