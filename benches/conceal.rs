//! What reading and judging a request costs: classify and conceal, in front of a service that does nothing.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use gce_metadata_proxy::error::Error;
use gce_metadata_proxy::layers::classify::ClassifyLayer;
use gce_metadata_proxy::layers::conceal::ConcealLayer;
use gce_metadata_proxy::metadata::Request;
use gce_metadata_proxy::metadata::host::AllowedHosts;
use gce_metadata_proxy::server::Arrival;
use http_body_util::Empty;
use tower::{Service, ServiceBuilder, service_fn};

const REQUESTS: [(&str, &str); 4] = [
    ("token", "/computeMetadata/v1/instance/service-accounts/default/token"),
    (
        "token_with_scopes",
        "/computeMetadata/v1/instance/service-accounts/default/token?scopes=https%3A%2F%2Fwww.googleapis.com%2Fauth%2Fcloud-platform",
    ),
    ("leaf", "/computeMetadata/v1/instance/attributes/cluster-name"),
    ("concealed", "/computeMetadata/v1/instance/attributes/kube-env"),
];

fn arrival(target: &str) -> Arrival<Empty<Bytes>> {
    let request = http::Request::get(target).header("host", "169.254.169.254").header("metadata-flavor", "Google");
    let request = request.header("user-agent", "curl/8").header("accept", "*/*").body(Empty::new());
    Arrival { request: request.expect("a request"), peer: ([10, 0, 0, 9], 40000).into() }
}

fn parse_and_conceal(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parse_and_conceal");
    let nothing = service_fn(|request: Request| {
        black_box(&request);
        std::future::ready(Ok::<_, Error>(()))
    });
    let mut stack =
        ServiceBuilder::new().layer(ClassifyLayer::new(AllowedHosts::default())).layer(ConcealLayer).service(nothing);
    for (name, target) in REQUESTS {
        group.bench_function(name, |bencher| {
            bencher.iter_batched(|| arrival(target), |arrival| stack.call(arrival), BatchSize::SmallInput);
        });
    }
    group.finish();
}

criterion_group!(benches, parse_and_conceal);
criterion_main!(benches);
