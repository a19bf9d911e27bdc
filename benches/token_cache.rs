//! Cost of a cached token, in the token layer alone.

mod support;

use std::future::ready;
use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use http::Response;
use protocol::metadata::query::Param;
use protocol::metadata::{Query, Request, RequestError};
use proxy::error::Error;
use proxy::layers::filter;
use proxy::layers::token_cache::{Audit, DEFAULT_LIMIT_BYTES, Store, TokenCache, Tokens};
use proxy::reply::Body;
use proxy::tokens::TokenKey;
use telemetry::Registry;
use tower::{Layer, Service, service_fn};

use support::Source;

fn hit(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let _entered = runtime.enter();
    let tokens = Tokens::new(Store::new(DEFAULT_LIMIT_BYTES, &Registry::default()), Source);
    let default = TokenKey::default_account().request();
    let query = Query::from_params([(Param::Scopes, "https://www.googleapis.com/auth/cloud-platform".into())]);
    let with_scopes = Request { query, ..default.clone() };
    let inner = service_fn(|_: Box<Request>| ready(Err::<Response<Body>, _>(Error::from(RequestError::Flavor))));
    let mut cache = filter::layer(TokenCache::new(&tokens, Audit::Off)).layer(inner);

    let mut group = criterion.benchmark_group("token_hit");
    for (name, request) in [("default", default), ("scopes", with_scopes)] {
        let key = TokenKey::from_request(&request).expect("a token").0;
        runtime.block_on(tokens.warm(key)).expect("the source gives a token");
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                || Box::new(request.clone()),
                |request| black_box(cache.call(request)),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, hit);
criterion_main!(benches);
