//! Each layer's own cost, for a request that it lets through, above a service that answers at once with nothing.

mod support;

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use gce_metadata_proxy::config::LARGE_ANSWERS;
use gce_metadata_proxy::error::Error;
use gce_metadata_proxy::layers::classify::ClassifyLayer;
use gce_metadata_proxy::layers::conceal::{ConcealLayer, Mode};
use gce_metadata_proxy::layers::discovery::DiscoveryLayer;
use gce_metadata_proxy::layers::hanging::{HangingLayer, Watches};
use gce_metadata_proxy::layers::in_flight::{InFlightLayer, MakeRoom, Seats};
use gce_metadata_proxy::layers::leaves::KnownLeavesLayer;
use gce_metadata_proxy::layers::rescue::{OnOverload, RescueLayer};
use gce_metadata_proxy::layers::token_cache::Audit;
use gce_metadata_proxy::layers::token_cache::{LIMIT, Store, TokenCacheLayer, Tokens};
use gce_metadata_proxy::metadata::Request;
use gce_metadata_proxy::metadata::host::AllowedHosts;
use gce_metadata_proxy::policy::{Choice, LivePolicy};
use gce_metadata_proxy::reply::Body;
use gce_metadata_proxy::room::{CutUnread, Room};
use gce_metadata_proxy::telemetry::Metrics;
use http_body_util::Empty;
use tower::{Layer, Service, service_fn};

fn layers(criterion: &mut Criterion) {
    let runtime = support::runtime();
    let _entered = runtime.enter();
    let metrics = Metrics::leak();
    let ends = || service_fn(support::nothing);
    let leaf = || support::parsed(support::CLUSTER_NAME);

    let answers = service_fn(|_: http::Request<Empty<Bytes>>| {
        std::future::ready(Ok::<_, Error>(http::Response::new(Body::Whole(Bytes::new()))))
    });
    let request = || support::request(support::CLUSTER_NAME, Empty::new());
    let rescue = RescueLayer::new(metrics, OnOverload::Reset, support::PEER).layer(answers);
    bench(criterion, "rescue", rescue, request);
    let classify = ClassifyLayer::new(Arc::new(AllowedHosts::default()), support::PEER);
    bench(criterion, "classify", classify.layer(ends()), request);

    let seats = Seats::leak(200);
    let in_flight = InFlightLayer::new(seats, |_: &Request| false, Request::hangs, MakeRoom::by(|| false));
    bench(criterion, "in_flight", in_flight.layer(ends()), leaf);
    bench(criterion, "discovery", DiscoveryLayer.layer(ends()), leaf);
    let policy = Arc::new(LivePolicy::load(Choice::default()).expect("built in"));
    let room = Room::new(LARGE_ANSWERS, CutUnread::never());
    let conceal = ConcealLayer::new(policy, Mode::Enforce, Arc::clone(&room), metrics);
    bench(criterion, "conceal", conceal.layer(ends()), leaf);
    bench(criterion, "hanging", HangingLayer::new(Arc::new(Watches::new(64, room))).layer(ends()), leaf);
    bench(criterion, "leaves", KnownLeavesLayer::new(support::known_leaves()).layer(ends()), leaf);
    let tokens = Tokens::new(Arc::new(Store::new(LIMIT, metrics)), support::Source);
    bench(criterion, "token_cache", TokenCacheLayer::new(tokens, Audit::Off).layer(ends()), leaf);
    bench(criterion, "nothing", ends(), leaf);
}

/// The request is made beforehand; that it goes out of scope is part of what is measured, in every layer alike.
fn bench<R, S: Service<R>>(criterion: &mut Criterion, name: &str, mut service: S, mut request: impl FnMut() -> R) {
    criterion.benchmark_group("layers").bench_function(name, |bencher| {
        let ask = |request| drop(black_box(support::now(service.call(request))));
        bencher.iter_batched(&mut request, ask, BatchSize::SmallInput);
    });
}

criterion_group!(benches, layers);
criterion_main!(benches);
