//! What a token from memory costs, in the token layer alone.

use std::future::ready;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use gce_metadata_proxy::error::Error;
use gce_metadata_proxy::layers::token_cache::{Store, TokenCacheLayer, Tokens};
use gce_metadata_proxy::metadata::query::Param;
use gce_metadata_proxy::metadata::token::AccessToken;
use gce_metadata_proxy::metadata::{Query, Request};
use gce_metadata_proxy::reply::Body;
use gce_metadata_proxy::telemetry::Metrics;
use gce_metadata_proxy::telemetry::audit::Audit;
use gce_metadata_proxy::tokens::{Fetched, NoToken, TokenKey, TokenSource};
use http::Response;
use tower::{Layer, Service, service_fn};

/// Gives a token of a real one's size.
struct Source;

impl TokenSource for Source {
    async fn fetch(&self, _: &TokenKey) -> Result<Fetched, NoToken> {
        let secret = "x".repeat(180);
        let body = format!(r#"{{"access_token":"{secret}","expires_in":3599,"token_type":"Bearer"}}"#);
        let (token, left) = AccessToken::parse(body.as_bytes()).expect("a token");
        Ok(Fetched::Access(token, left))
    }
}

fn hit(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let _entered = runtime.enter();
    let tokens = Tokens::new(Arc::new(Store::new(Arc::new(Metrics::new()))), Source);
    let default = TokenKey::default_account().request();
    let query = Query::of([(Param::Scopes, "https://www.googleapis.com/auth/cloud-platform".into())]);
    let with_scopes = Request { query, ..default.clone() };
    let inner = service_fn(|_: Request| ready(Err::<Response<Body>, _>(Error::Flavor)));
    let mut cache = TokenCacheLayer::new(tokens.clone(), Audit::Off).layer(inner);

    let mut group = criterion.benchmark_group("token_hit");
    for (name, request) in [("default", default), ("scopes", with_scopes)] {
        let key = TokenKey::of(&request).expect("a token").0;
        runtime.block_on(tokens.warm(key)).expect("the source gives a token");
        group.bench_function(name, |bencher| {
            bencher.iter_batched(|| request.clone(), |request| black_box(cache.call(request)), BatchSize::SmallInput);
        });
    }
    group.finish();
}

criterion_group!(benches, hit);
criterion_main!(benches);
