//! Cost of parsing a request and deciding about it. The bench `layers` has their layers.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use http::uri::PathAndQuery;
use protocol::metadata::{MetadataPath, Query, Request};
use proxy::policy::{Choice, Source};

const REQUESTS: [(&str, &str); 4] = [
    ("token", "/computeMetadata/v1/instance/service-accounts/default/token"),
    (
        "token_with_scopes",
        "/computeMetadata/v1/instance/service-accounts/default/token?scopes=https%3A%2F%2Fwww.googleapis.com%2Fauth%2Fcloud-platform",
    ),
    ("leaf", "/computeMetadata/v1/instance/attributes/cluster-uid"),
    ("concealed", "/computeMetadata/v1/instance/attributes/kube-env"),
];

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

criterion_group!(benches, parse_and_conceal);
criterion_main!(benches);
