//! Cost of each layer for an allowed request, above a service that responds immediately with an empty body, and of a
//! token that is in memory.

mod support;

use std::hint::black_box;
use std::sync::Arc;

use base::hook::Hook;
use bytes::Bytes;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use protocol::metadata::Request;
use protocol::metadata::host::AllowedHosts;
use proxy::error::Error;
use proxy::layers::conceal::{Concealment, Mode};
use proxy::layers::discovery::Discovery;
use proxy::layers::hanging::Watches;
use proxy::layers::in_flight::{Limit, MakeRoom, Seats};
use proxy::layers::latency::{Instruments, Timeline};
use proxy::layers::rescue::OnOverload;
use proxy::layers::token_cache::{Audit, DEFAULT_LIMIT_BYTES, Store, TokenCache, Tokens};
use proxy::layers::{classify, conceal, filter, hanging, in_flight, rescue};
use proxy::memory::MAX_PART_BYTES;
use proxy::policy::{Choice, LivePolicy};
use proxy::reply::Body;
use proxy::room::Room;
use proxy::server::Payload;
use proxy::tokens::TokenKey;
use telemetry::Registry;
use tower::{Layer, Service, service_fn};

const SCOPED_TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token?\
                            scopes=https%3A%2F%2Fwww.googleapis.com%2Fauth%2Fcloud-platform";

fn layers(criterion: &mut Criterion) {
    let runtime = support::runtime();
    let _entered = runtime.enter();
    let timeline = Timeline::new(Instruments::default(), support::PEER);
    let ends = || service_fn(support::nothing);
    let leaf = || support::parsed(support::CLUSTER_UID);

    let answers = service_fn(|_: http::Request<Payload>| {
        std::future::ready(Ok::<_, Error>(http::Response::new(Body::Whole(Bytes::new()))))
    });
    let request = || support::request(support::CLUSTER_UID);
    let rescue = rescue::layer(&rescue::Notes::default(), OnOverload::Reset, &timeline).layer(answers);
    bench(criterion, "rescue", rescue, request);
    let hosts = Arc::new(AllowedHosts::default());
    bench(criterion, "classify", classify::layer(&hosts, (), &timeline).layer(ends()), request);

    let limit = Arc::new(Limit {
        seats: Seats::new(200),
        needs_none: |_: &Request| false,
        hangs: Request::hangs,
        make_room: MakeRoom::new(|_| false),
    });
    bench(criterion, "in_flight", in_flight::layer(&limit).layer(ends()), leaf);
    bench(criterion, "discovery", filter::layer(Discovery).layer(ends()), leaf);
    let policy = Arc::new(runtime.block_on(LivePolicy::load(Choice::default())).expect("built in"));
    let room = Room::new(MAX_PART_BYTES, Hook::new(Arc::new(|_| false)));
    let concealment = Arc::new(Concealment::new(policy, Mode::Enforce, Arc::clone(&room), Arc::default()));
    bench(criterion, "conceal", conceal::layer(&concealment).layer(ends()), leaf);
    bench(criterion, "hanging", hanging::layer(&Arc::new(Watches::new(64, room))).layer(ends()), leaf);
    bench(criterion, "leaves", filter::layer(support::known_leaves()).layer(ends()), leaf);
    let tokens = Tokens::new(Store::new(DEFAULT_LIMIT_BYTES, &Registry::default()), support::Source);
    let token_cache = || filter::layer(TokenCache::new(&tokens, Audit::Off)).layer(ends());
    bench(criterion, "token_cache", token_cache(), leaf);
    for (name, target) in [("token_hit", support::TOKEN), ("token_hit_with_scopes", SCOPED_TOKEN)] {
        let token = || support::parsed(target);
        let (key, _) = TokenKey::from_request(&token()).expect("a token");
        runtime.block_on(tokens.warm(key)).expect("the source gives a token");
        bench(criterion, name, token_cache(), token);
    }
    bench(criterion, "nothing", ends(), leaf);
}

/// The request is created beforehand. Dropping it is part of the measurement for every layer.
fn bench<R, S: Service<R>>(criterion: &mut Criterion, name: &str, mut service: S, mut request: impl FnMut() -> R) {
    criterion.benchmark_group("layers").bench_function(name, |bencher| {
        let ask = |request| drop(black_box(support::now(service.call(request))));
        bencher.iter_batched(&mut request, ask, BatchSize::SmallInput);
    });
}

criterion_group!(benches, layers);
criterion_main!(benches);
