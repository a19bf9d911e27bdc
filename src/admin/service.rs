//! The pages of the admin listener.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::Full;
use tower::Service;

use super::Readiness;
use crate::reply;
use crate::server::Arrival;
use crate::server::Reset;
use crate::telemetry::Metrics;

const PROMETHEUS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

const INDEX: &str = "\
gce-metadata-proxy

/metrics          Prometheus metrics
/healthz          200 as long as the process lives; does not depend on the metadata server
/readyz           200 ready or degraded, 503 starting or draining
/readyz?verbose   the same as JSON
";

/// Answers operators.
#[derive(Debug, Clone)]
pub struct Admin {
    metrics: Arc<Metrics>,
    readiness: Readiness,
}

impl Admin {
    /// Shows these.
    pub fn new(metrics: Arc<Metrics>, readiness: Readiness) -> Self {
        Self { metrics, readiness }
    }

    fn answer(&self, method: &http::Method, uri: &http::Uri) -> Response<Full<Bytes>> {
        if !matches!(*method, http::Method::GET | http::Method::HEAD) {
            let mut response =
                page(StatusCode::METHOD_NOT_ALLOWED, reply::PLAIN_TEXT, "Only GET and HEAD are allowed here.\n");
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match uri.path() {
            "/" => page(StatusCode::OK, reply::PLAIN_TEXT, INDEX),
            "/metrics" => page(StatusCode::OK, PROMETHEUS, self.metrics.render()),
            "/healthz" => page(StatusCode::OK, reply::PLAIN_TEXT, "ok\n"),
            "/readyz" => self.readyz(uri.query().is_some_and(|query| query.starts_with("verbose"))),
            _ => page(StatusCode::NOT_FOUND, reply::PLAIN_TEXT, "There is no such page; / lists them.\n"),
        }
    }

    fn readyz(&self, verbose: bool) -> Response<Full<Bytes>> {
        let state = self.readiness.state();
        let status = if state.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        if verbose {
            let json = serde_json::to_string(&state).expect("a tag and a string are always JSON");
            page(status, JSON, json + "\n")
        } else {
            page(status, reply::PLAIN_TEXT, format!("{state}\n"))
        }
    }
}

fn page(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

impl<B> Service<Arrival<B>> for Admin {
    type Response = Response<Full<Bytes>>;
    type Error = Reset;
    type Future = Ready<Result<Self::Response, Reset>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Reset>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, arrival: Arrival<B>) -> Self::Future {
        ready(Ok(self.answer(arrival.request.method(), arrival.request.uri())))
    }
}
