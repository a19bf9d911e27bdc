//! Traces sent to an OpenTelemetry collector: one span per request and one per filter, never at a request's
//! expense.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use gce_metadata_proxy::config::Config;
use gce_metadata_proxy::metadata::Target;
use gce_metadata_proxy::mock::Fault;
use gce_metadata_proxy::telemetry::labels::Label;
use gce_metadata_proxy::telemetry::latency::Filter;
use gce_metadata_proxy::telemetry::otlp::Settings;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{
    Answer, Binary, Connection, Proxy, config, eventually, get, metric_becomes, raw, request, upstream,
};

const CPU_PLATFORM: &str = "/computeMetadata/v1/instance/cpu-platform";
const KUBE_ENV: &str = "/computeMetadata/v1/instance/attributes/kube-env";
const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// A collector that stores what it receives and always sends the same response.
struct Collector {
    addr: SocketAddr,
    taken: Arc<Mutex<Vec<Bytes>>>,
    serving: JoinHandle<()>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Collector {
    async fn start() -> Self {
        Self::answering(StatusCode::OK, ExportTraceServiceResponse::default()).await
    }

    async fn answering(status: StatusCode, answer: ExportTraceServiceResponse) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("bound");
        let taken = Arc::new(Mutex::new(Vec::new()));
        let serving = tokio::spawn(serve(listener, Arc::clone(&taken), status, answer.encode_to_vec().into()));
        Self { addr, taken, serving }
    }

    /// All request bodies received.
    fn bytes(&self) -> Vec<Bytes> {
        self.taken.lock().expect("no test panics in here").clone()
    }

    fn requests(&self) -> Vec<ExportTraceServiceRequest> {
        self.bytes().into_iter().map(|bytes| ExportTraceServiceRequest::decode(bytes).expect("protobuf")).collect()
    }

    fn spans(&self) -> Vec<Span> {
        let resources = self.requests().into_iter().flat_map(|request| request.resource_spans);
        resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
    }

    /// The spans of each request; those of filters in order.
    fn traces(&self) -> Vec<Trace> {
        let (requests, mut filters): (Vec<Span>, Vec<Span>) =
            self.spans().into_iter().partition(|span| span.kind() == SpanKind::Server);
        filters.sort_by_key(|span| span.start_time_unix_nano);
        let of = |request: &Span| {
            let (mine, others) = std::mem::take(&mut filters)
                .into_iter()
                .partition::<Vec<_>, _>(|span| span.parent_span_id == request.span_id);
            filters = others;
            mine
        };
        let traces = requests.iter().map(of).collect::<Vec<_>>();
        assert!(filters.is_empty(), "without a request: {filters:?}");
        requests.into_iter().zip(traces).map(|(request, filters)| Trace { request, filters }).collect()
    }

    /// The one request that was exported.
    fn trace(&self) -> Trace {
        let mut traces = self.traces();
        assert_eq!(traces.len(), 1, "{traces:?}");
        traces.remove(0)
    }
}

async fn serve(listener: TcpListener, taken: Arc<Mutex<Vec<Bytes>>>, status: StatusCode, answer: Bytes) {
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        let (taken, answer) = (Arc::clone(&taken), answer.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let (taken, answer) = (Arc::clone(&taken), answer.clone());
            async move {
                assert_eq!((request.method().as_str(), request.uri().path()), ("POST", "/v1/traces"));
                assert_eq!(request.headers()["content-type"], "application/x-protobuf");
                let body = request.into_body().collect().await.expect("a whole body").to_bytes();
                taken.lock().expect("no test panics in here").push(body);
                let mut response = Response::new(Full::new(answer));
                *response.status_mut() = status;
                Ok::<_, Infallible>(response)
            }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

#[derive(Debug)]
struct Trace {
    request: Span,
    filters: Vec<Span>,
}

impl Trace {
    /// The filters with their outcomes.
    fn steps(&self) -> Vec<(&str, String)> {
        self.filters
            .iter()
            .map(|span| (span.name.as_str(), attributes(span)["metadata_proxy.outcome"].clone()))
            .collect()
    }
}

/// Attributes as text.
fn attributes(span: &Span) -> BTreeMap<&str, String> {
    let text = |attribute: &KeyValue| match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    };
    span.attributes.iter().map(|attribute| (attribute.key.as_str(), text(attribute))).collect()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("memory");
        text
    })
}

/// The default configuration with traces.
fn traced(upstream: SocketAddr, collector: SocketAddr, sample_ratio: f64) -> Config {
    let collector = Target::parse(&format!("http://{collector}")).expect("an address is a target");
    Config { otlp: Settings { collector: Some(collector), sample_ratio }, ..config(upstream) }
}

/// A GET with these header lines besides.
async fn get_with(addr: SocketAddr, target: &str, lines: &[&str]) -> Answer {
    let head = format!("GET {target} HTTP/1.1\r\nHost: metadata\r\nMetadata-Flavor: Google\r\nConnection: close");
    let bytes = raw(addr, format!("{}\r\n\r\n", [&[head.as_str()], lines].concat().join("\r\n"))).await;
    Answer::parse(&bytes, false).expect("a whole answer").0
}

#[tokio::test]
async fn a_request_is_one_span_and_each_filter_one_below_it() {
    let (mock, collector) = (upstream().await, Collector::start().await);
    let proxy = Proxy::with(traced(mock.addr(), collector.addr, 1.0)).await;
    assert_eq!(get_with(proxy.addr, CPU_PLATFORM, &["User-Agent: curl/8"]).await.status, 200);
    proxy.stop().await;

    let Trace { request, filters } = collector.trace();
    assert_eq!((request.name.as_str(), request.parent_span_id.as_slice()), ("leaf", &[][..]));
    assert_eq!((request.trace_id.len(), request.span_id.len(), &request.status), (16, 8, &None));
    let told = attributes(&request);
    for (name, value) in [
        ("http.request.method", "GET"),
        ("http.response.status_code", "200"),
        ("url.scheme", "http"),
        ("url.path", CPU_PLATFORM),
        ("network.protocol.version", "1.1"),
        ("user_agent.original", "curl/8"),
        ("client.address", "127.0.0.1"),
        ("metadata_proxy.endpoint", "leaf"),
        ("metadata_proxy.outcome", "passed"),
    ] {
        assert_eq!(told.get(name).map(String::as_str), Some(value), "{name} in {told:?}");
    }
    assert!(!told.contains_key("metadata_proxy.reason") && !told.contains_key("error.type"), "{told:?}");

    let names: Vec<&str> = filters.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, Filter::without_identity().map(Label::label).collect::<Vec<_>>());
    let mut began = request.start_time_unix_nano;
    for filter in &filters {
        assert_eq!((&filter.trace_id, filter.kind()), (&request.trace_id, SpanKind::Internal));
        assert_eq!(
            filter.start_time_unix_nano, began,
            "{} begins when the one before has passed the request on",
            filter.name
        );
        began = filter.end_time_unix_nano;
        let (told, is_last) = (attributes(filter), filter.name == "forward");
        assert_eq!(told["metadata_proxy.outcome"], if is_last { "answered" } else { "passed" }, "{}", filter.name);
        assert_eq!(told.contains_key("metadata_proxy.waited_seconds"), is_last, "the upstream alone was waited for");
    }
    assert!(began <= request.end_time_unix_nano, "{filters:?} in {request:?}");

    let resource = collector.requests().remove(0).resource_spans.remove(0).resource.expect("a resource");
    let resource = Span { attributes: resource.attributes, ..Span::default() };
    assert_eq!(attributes(&resource)["service.name"], "gce-metadata-proxy");
    assert_eq!(attributes(&resource)["service.version"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn the_trace_of_a_client_is_continued_if_the_client_samples_it() {
    let (mock, collector) = (upstream().await, Collector::start().await);
    // By itself it samples nothing.
    let proxy = Proxy::with(traced(mock.addr(), collector.addr, 0.0)).await;
    get(proxy.addr, CPU_PLATFORM).await;
    get_with(proxy.addr, CPU_PLATFORM, &[&format!("Traceparent: 00-{TRACE}-{PARENT}-00")]).await;
    let parent = format!("traceparent: 00-{TRACE}-{PARENT}-01");
    get_with(proxy.addr, CPU_PLATFORM, &[&parent, "tracestate: a=1", "tracestate: b=2"]).await;
    proxy.stop().await;
    let Trace { request, filters } = collector.trace();
    assert_eq!((hex(&request.trace_id), hex(&request.parent_span_id)), (TRACE.into(), PARENT.into()));
    assert_eq!(request.trace_state, "a=1,b=2");
    assert_ne!(hex(&request.span_id), PARENT);
    assert_eq!(filters.len(), Filter::without_identity().count());
    assert!(filters.iter().all(|filter| filter.trace_id == request.trace_id));
    assert!(mock.log().iter().all(|asked| asked.header("traceparent").is_none()), "the trace ends here");
}

#[tokio::test]
async fn a_client_that_does_not_sample_is_not_traced_whatever_the_ratio() {
    let (mock, collector) = (upstream().await, Collector::start().await);
    let proxy = Proxy::with(traced(mock.addr(), collector.addr, 1.0)).await;
    get_with(proxy.addr, CPU_PLATFORM, &[&format!("traceparent: 00-{TRACE}-{PARENT}-00")]).await;
    proxy.stop().await;
    assert_eq!(collector.spans(), []);
}

#[tokio::test]
async fn a_malformed_or_repeated_parent_begins_a_trace_of_its_own() {
    let (mock, collector) = (upstream().await, Collector::start().await);
    let proxy = Proxy::with(traced(mock.addr(), collector.addr, 1.0)).await;
    let (valid, other) =
        (format!("traceparent: 00-{TRACE}-{PARENT}-00"), format!("traceparent: 00-{PARENT}{PARENT}-{PARENT}-00"));
    let (upper, short) =
        (format!("traceparent: 00-{}-{PARENT}-00", TRACE.to_uppercase()), format!("traceparent: 00-{TRACE}-00"));
    let parents: [&[&str]; 4] = [&[&upper, "tracestate: a=1"], &[&short], &["traceparent:"], &[&valid, &other]];
    for lines in parents {
        assert_eq!(get_with(proxy.addr, CPU_PLATFORM, lines).await.status, 200, "{lines:?}");
    }
    proxy.stop().await;
    let traces = collector.traces();
    let ids: std::collections::BTreeSet<String> = traces.iter().map(|trace| hex(&trace.request.trace_id)).collect();
    assert_eq!(ids.len(), parents.len(), "each has its own");
    assert!(!ids.contains(TRACE) && !ids.contains(&format!("{PARENT}{PARENT}")), "{ids:?}");
    assert!(traces.iter().all(|trace| trace.request.parent_span_id.is_empty() && trace.request.trace_state.is_empty()));
}

#[tokio::test]
async fn a_ratio_of_the_other_requests_is_traced() {
    const REQUESTS: u32 = 400;
    let (mock, collector) = (upstream().await, Collector::start().await);
    let proxy = Proxy::with(traced(mock.addr(), collector.addr, 0.5)).await;
    let mut connection = Connection::open(proxy.addr).await;
    for _ in 0..REQUESTS {
        connection.ask("/").await.answer();
    }
    proxy.stop().await;
    // A greater deviation has a probability of 10^-23.
    let traces = collector.traces().len();
    assert!((100..=300).contains(&traces), "{traces} of {REQUESTS}");
}

#[tokio::test]
async fn a_refusal_ends_in_the_filter_that_refused() {
    let (mock, collector) = (upstream().await, Collector::start().await);
    let proxy = Proxy::with(traced(mock.addr(), collector.addr, 1.0)).await;
    assert_eq!(get(proxy.addr, KUBE_ENV).await.status, 403);
    proxy.stop().await;
    let trace = collector.trace();
    let passed = |name| (name, "passed".to_owned());
    assert_eq!(
        trace.steps(),
        [passed("classify"), passed("in_flight"), passed("discovery"), ("conceal", "refused".into())]
    );
    let told = attributes(&trace.request);
    assert_eq!(told["http.response.status_code"], "403");
    assert_eq!(
        (told["metadata_proxy.outcome"].as_str(), told["metadata_proxy.reason"].as_str()),
        ("refused", "concealed")
    );
    assert_eq!(trace.request.status, None, "it is the client's error, and not this server's");
}

#[tokio::test]
async fn what_is_failed_shed_or_cut_is_told_as_such() {
    let (mock, collector) = (upstream().await, Collector::start().await);
    let all = traced(mock.addr(), collector.addr, 1.0);
    let proxy = Proxy::with(Config { max_in_flight: 1, ..all }).await;
    mock.fault(Fault::Hang);
    let mut waiting = Connection::open(proxy.addr).await;
    waiting.send(request("/computeMetadata/v1/instance/cpu-platform")).await;
    metric_becomes(proxy.metrics_addr, "metadata_proxy_in_flight", 1).await;
    Connection::open(proxy.addr).await.ask(CPU_PLATFORM).await.assert_reset();
    assert_eq!(waiting.answer().await.expect("after its deadline").status, 503);
    let mut leaving = Connection::open(proxy.addr).await;
    leaving.send(request(CPU_PLATFORM)).await;
    metric_becomes(proxy.metrics_addr, "metadata_proxy_in_flight", 1).await;
    drop(leaving);
    metric_becomes(proxy.metrics_addr, "metadata_proxy_in_flight", 0).await;
    proxy.stop().await;

    let traces = collector.traces();
    let of = |outcome: &str| {
        let found = traces.iter().find(|trace| attributes(&trace.request)["metadata_proxy.outcome"] == outcome);
        found.unwrap_or_else(|| panic!("no {outcome} in {traces:?}"))
    };
    let (failed, shed, cut) = (of("failed"), of("shed"), of("cut"));
    assert_eq!(traces.len(), 3);
    let told = attributes(&failed.request);
    assert_eq!((told["http.response.status_code"].as_str(), told["error.type"].as_str()), ("503", "upstream_timeout"));
    assert_eq!(failed.steps().last(), Some(&("forward", "refused".into())));
    let waited: f64 =
        attributes(failed.filters.last().expect("forward"))["metadata_proxy.waited_seconds"].parse().expect("a number");
    assert!(waited > 2.0, "as long as the deadline: {waited}");
    let told = attributes(&shed.request);
    assert_eq!((told.get("http.response.status_code"), told["error.type"].as_str()), (None, "in_flight"));
    assert_eq!(shed.steps(), [("classify", "passed".into()), ("in_flight", "refused".into())]);
    assert!(failed.request.status.is_some() && shed.request.status.is_some() && cut.request.status.is_none());
    assert_eq!(cut.steps().last(), Some(&("token_cache", "passed".into())), "what gave no outcome has no span");
}

#[tokio::test]
async fn an_answer_that_is_not_read_to_its_end_is_cut() {
    let (mock, collector) = (upstream().await, Collector::start().await);
    let proxy = Proxy::with(traced(mock.addr(), collector.addr, 1.0)).await;
    mock.fault(Fault::HugeBody { bytes: 32 * 1024 * 1024 });
    let mut client = Connection::open_narrow(proxy.addr).await;
    client.send(request(CPU_PLATFORM)).await;
    client.head().await;
    drop(client);
    metric_becomes(proxy.metrics_addr, "metadata_proxy_in_flight", 0).await;
    proxy.stop().await;
    let trace = collector.trace();
    let told = attributes(&trace.request);
    assert_eq!((told["http.response.status_code"].as_str(), told["metadata_proxy.outcome"].as_str()), ("200", "cut"));
}

#[tokio::test]
async fn no_token_and_no_secret_is_exported_and_nothing_without_bound() {
    let (mock, collector) = (upstream().await, Collector::start().await);
    let proxy = Proxy::with(traced(mock.addr(), collector.addr, 1.0)).await;
    let token: serde_json::Value = serde_json::from_str(&get(proxy.addr, TOKEN).await.body).expect("JSON");
    let secret = get(mock.addr(), KUBE_ENV).await.body;
    let identity = get(proxy.addr, &TOKEN.replace("/token", "/identity?audience=scarce-word")).await;
    for target in
        [KUBE_ENV, "/computeMetadata/v1/instance/?recursive=true", "/computeMetadata/v1/?recursive=true&alt=json"]
    {
        get(proxy.addr, target).await;
    }
    let long = format!("/computeMetadata/v1/{}", "a".repeat(6000));
    let agent = format!("User-Agent: {}", "b".repeat(6000));
    get_with(proxy.addr, &long, &[&agent, "Authorization: Bearer another-scarce-word", "X-Other: a-third-scarce-word"])
        .await;
    raw(proxy.addr, format!("{} / HTTP/1.1\r\nHost: metadata\r\nConnection: close\r\n\r\n", "M".repeat(500))).await;
    proxy.stop().await;

    let traces = collector.traces();
    assert_eq!(traces.len(), 7);
    let exported = collector.bytes().concat();
    let token = token["access_token"].as_str().expect("a token");
    let identity = if identity.status == 200 { identity.body } else { "scarce-word".into() };
    for text in [token, &secret[..40.min(secret.len())], &identity, "scarce-word", "aaa".repeat(100).as_str()] {
        let is_there = exported.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(text.len() > 10 && !is_there, "{text:?} was exported");
    }
    let spans = collector.spans();
    let longest = spans.iter().flat_map(|span| attributes(span).into_values()).map(|value| value.len()).max();
    assert_eq!(longest, Some(256));
    assert!(
        spans.iter().any(|span| attributes(span).get("http.request.method").is_some_and(|method| method == "_OTHER"))
    );
}

/// Sends more requests than spans may queue for a collector. Every response must arrive and be correct.
async fn ask_for_much(proxy: &Proxy) {
    const REQUESTS: usize = 600;
    let mut connection = Connection::open(proxy.addr).await;
    let asked = async {
        for _ in 0..REQUESTS / 100 {
            connection.send(request("/computeMetadata/v1/instance/zone").repeat(100)).await;
            for _ in 0..100 {
                let answer = connection.answer().await.expect("an answer");
                assert!(answer.status == 200 && answer.body.contains("/zones/"), "{answer:?}");
            }
        }
    };
    timeout(Duration::from_secs(4), asked).await.expect("less than the patience with one collector");
}

async fn spans_counted(proxy: &Proxy, outcome: &str) -> f64 {
    proxy.metric(&format!("metadata_proxy_spans_total{{outcome=\"{outcome}\"}}")).await.expect("it is always there")
}

/// Stops a proxy whose collector does not respond.
async fn stop_soon(proxy: Proxy) {
    let began = Instant::now();
    proxy.stop().await;
    assert!(began.elapsed() < Duration::from_secs(4), "it waited for its collector: {:?}", began.elapsed());
}

#[tokio::test]
async fn a_collector_that_is_not_there_changes_no_answer() {
    let mock = upstream().await;
    let nobody = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("bound");
    let proxy = Proxy::with(traced(mock.addr(), nobody, 1.0)).await;
    ask_for_much(&proxy).await;
    let failed = spans_counted(&proxy, "failed").await;
    assert!((256.0..512.0).contains(&failed), "one try, and then it is left in peace: {failed}");
    assert!(spans_counted(&proxy, "dropped").await > 0.0);
    assert!(spans_counted(&proxy, "exported").await.abs() < 0.5);
    stop_soon(proxy).await;
}

#[tokio::test]
async fn a_collector_that_never_answers_changes_no_answer() {
    let mock = upstream().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let proxy = Proxy::with(traced(mock.addr(), silent.local_addr().expect("bound"), 1.0)).await;
    ask_for_much(&proxy).await;
    assert!(spans_counted(&proxy, "dropped").await > 0.0);
    let began = Instant::now();
    while spans_counted(&proxy, "failed").await < 256.0 {
        assert!(began.elapsed() < Duration::from_secs(10), "it waits for ever");
        sleep(Duration::from_millis(20)).await;
    }
    stop_soon(proxy).await;
}

/// The counters after a ping, which has four spans (its own, and those of three filters), with this response
/// from the collector.
async fn counted(status: StatusCode, answer: ExportTraceServiceResponse) -> [f64; 2] {
    let (mock, collector) = (upstream().await, Collector::answering(status, answer).await);
    let proxy = Proxy::with(traced(mock.addr(), collector.addr, 1.0)).await;
    get(proxy.addr, "/").await;
    let began = Instant::now();
    loop {
        let counted = [spans_counted(&proxy, "exported").await, spans_counted(&proxy, "failed").await];
        if counted.iter().sum::<f64>() > 3.5 {
            proxy.stop().await;
            return counted;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{counted:?}");
        sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn what_a_collector_refuses_is_counted_as_failed() {
    let partial = ExportTracePartialSuccess { rejected_spans: 3, error_message: "too many".into() };
    let partial = ExportTraceServiceResponse { partial_success: Some(partial) };
    let (refused, partial) = tokio::join!(
        counted(StatusCode::SERVICE_UNAVAILABLE, ExportTraceServiceResponse::default()),
        counted(StatusCode::OK, partial)
    );
    assert_eq!((refused, partial), ([0.0, 4.0], [1.0, 3.0]));
}

#[tokio::test]
async fn spans_are_exported_while_it_serves() {
    let (mock, collector) = (upstream().await, Collector::start().await);
    let proxy = Proxy::with(traced(mock.addr(), collector.addr, 1.0)).await;
    get(proxy.addr, "/").await;
    eventually("spans", || !collector.bytes().is_empty()).await;
    assert_eq!(collector.trace().request.name, "root");
    proxy.stop().await;
}

#[tokio::test]
async fn an_endpoint_that_cannot_be_meant_is_bad_usage() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gce-metadata-proxy"));
    let run = command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4318").kill_on_drop(true).output();
    let run = timeout(Duration::from_secs(20), run).await.expect("it ends at once").expect("it can be run");
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(64), "{said}");
    assert!(said.contains("--otlp-endpoint (from OTEL_EXPORTER_OTLP_ENDPOINT): \"https://collector:4318\""), "{said}");
}

#[tokio::test]
async fn the_binary_exports_its_last_spans_before_it_ends() {
    let (mock, collector) = (upstream().await, Collector::start().await);
    let endpoint = format!("--otlp-endpoint=http://{}", collector.addr);
    let (mut binary, addr, metrics_addr) =
        Binary::ready(None, mock.addr(), &[&endpoint, "--otlp-sample-ratio=1"]).await;
    let flags = get(metrics_addr, "/flagz").await.body;
    assert!(flags.contains(&endpoint) && flags.contains("--otlp-sample-ratio=1"), "{flags}");
    assert_eq!(get(addr, TOKEN).await.status, 200);
    assert_eq!(collector.spans(), [], "others may follow, and they wait for them");
    binary.terminate();
    assert!(binary.ended().await.success());
    let trace = collector.trace();
    assert_eq!(trace.request.name, "token");
    assert_eq!(trace.steps().last(), Some(&("token_cache", "answered".into())));
}
