//! Cost of parsing a request and deciding about it, alone and within its layers.

use std::hint::black_box;
use std::sync::Arc;

use base::hook::Hook;
use bytes::Bytes;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use http::uri::PathAndQuery;
use protocol::metadata::host::AllowedHosts;
use protocol::metadata::{MetadataPath, Query, Request};
use proxy::error::Error;
use proxy::layers::conceal::{Concealment, Mode};
use proxy::layers::latency::{Instruments, Timeline};
use proxy::layers::{classify, conceal};
use proxy::memory::MAX_PART_BYTES;
use proxy::policy::{Choice, LivePolicy, Source};
use proxy::reply::Body;
use proxy::room::Room;
use proxy::server::Payload;
use tokio::runtime::Builder;
use tower::{Service, ServiceBuilder, service_fn};

const REQUESTS: [(&str, &str); 4] = [
    ("token", "/computeMetadata/v1/instance/service-accounts/default/token"),
    (
        "token_with_scopes",
        "/computeMetadata/v1/instance/service-accounts/default/token?scopes=https%3A%2F%2Fwww.googleapis.com%2Fauth%2Fcloud-platform",
    ),
    ("leaf", "/computeMetadata/v1/instance/attributes/cluster-uid"),
    ("concealed", "/computeMetadata/v1/instance/attributes/kube-env"),
];

fn request(target: &str) -> http::Request<Payload> {
    let request = http::Request::get(target).header("host", "169.254.169.254").header("metadata-flavor", "Google");
    let request = request.header("user-agent", "curl/8").header("accept", "*/*").body(Payload::Empty);
    request.expect("a request")
}

fn parse_and_conceal(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parse_and_conceal");
    for name in ["compat", "strict"] {
        let policy = Choice { source: Source::parse(name), recursive: None }.load().expect("built in");
        for (request, target) in REQUESTS {
            let target: PathAndQuery = target.parse().expect("a target");
            group.bench_function(format!("{name}/{request}"), |bencher| {
                bencher.iter(|| {
                    let path = MetadataPath::parse(black_box(&target)).expect("a path");
                    let query = Query::parse(target.query()).expect("a query");
                    let request = Request::get(path, query);
                    black_box(policy.judge(&request));
                    request
                });
            });
        }
    }
    group.finish();
}

/// The two layers that do this, including dropping the request.
fn layers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("classify_and_conceal_layers");
    let nothing = service_fn(|request: Box<Request>| {
        black_box(&request);
        std::future::ready(Ok::<_, Error>(http::Response::new(Body::Whole(Bytes::new()))))
    });
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    let policy = Arc::new(runtime.block_on(LivePolicy::load(Choice::default())).expect("built in"));
    let room = Room::new(MAX_PART_BYTES, Hook::new(Arc::new(|_| false)));
    let timeline = Timeline::new(Instruments::default(), ([10, 0, 0, 9], 40000).into());
    let concealment = Arc::new(Concealment::new(policy, Mode::Enforce, room, Arc::default()));
    let mut stack = ServiceBuilder::new()
        .layer(classify::layer(&Arc::new(AllowedHosts::default()), (), &timeline))
        .layer(conceal::layer(&concealment))
        .service(nothing);
    for (name, target) in REQUESTS {
        group.bench_function(name, |bencher| {
            bencher.iter_batched(|| request(target), |request| stack.call(request), BatchSize::SmallInput);
        });
    }
    group.finish();
}

criterion_group!(benches, parse_and_conceal, layers);
criterion_main!(benches);
