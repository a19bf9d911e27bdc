//! Cost of three hundred concurrent requests for a token that is missing or expired.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use protocol::metadata::Request;
use proxy::failure::{Failure, UPSTREAM_TIMEOUT};
use proxy::layers::filter::{self, Filtered};
use proxy::layers::token_cache::{Audit, DEFAULT_LIMIT_BYTES, Store, TokenCache, Tokens};
use proxy::shares::Client;
use proxy::tokens::{Fetched, NoToken, TokenKey, TokenSource, Urgency};
use telemetry::Registry;
use tokio::task::JoinSet;
use tokio::time::advance;
use tower::{Layer, Service, service_fn};

const CROWD: usize = 300;

/// Longer than the lifetime of a token, and longer than a failure is cached.
const LIFE: Duration = Duration::from_secs(3600);
const MEMORY: Duration = Duration::from_secs(1);

/// A token source that yields once and then returns a token or fails.
#[derive(Default)]
struct Weather {
    is_bad: AtomicBool,
    fetches: AtomicU64,
}

struct Server(Arc<Weather>);

impl TokenSource for Server {
    fn deadline(&self) -> Duration {
        UPSTREAM_TIMEOUT
    }

    async fn fetch(&self, key: &TokenKey, client: Client, urgency: Urgency) -> Result<Fetched, NoToken> {
        tokio::task::yield_now().await;
        self.0.fetches.fetch_add(1, Relaxed);
        if self.0.is_bad.load(Relaxed) {
            return Err(Failure::Closed.into());
        }
        support::Source.fetch(key, client, urgency).await
    }
}

type Cache = Filtered<tower::util::ServiceFn<fn(Box<Request>) -> Answered>, TokenCache<Server>>;
type Answered = std::future::Ready<Result<http::Response<proxy::reply::Body>, proxy::error::Error>>;

fn crowds(criterion: &mut Criterion) {
    // Time is paused, so that a token can be made to expire between two rounds.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    let _entered = runtime.enter();
    let mut group = criterion.benchmark_group("token_crowd");
    group.throughput(Throughput::Elements(CROWD as u64));
    let (cache, weather) = empty_cache();
    let mut number = 0;
    group.bench_function("contended_miss", |bencher| {
        let unknown = || {
            number += 1;
            support::parsed(&format!("{}?scopes=scope-{number}", support::TOKEN))
        };
        bencher.iter_batched(
            unknown,
            |request| runtime.block_on(ask(&cache, &weather, &request)),
            BatchSize::PerIteration,
        );
    });
    // Without the keepers of the other keys.
    let (cache, weather) = empty_cache();
    let default = support::parsed(support::TOKEN);
    runtime.block_on(ask(&cache, &weather, &default));
    group.bench_function("expiry_herd", |bencher| {
        let expire = || {
            runtime.block_on(async {
                weather.is_bad.store(true, Relaxed);
                advance(LIFE).await;
                advance(MEMORY).await;
                weather.is_bad.store(false, Relaxed);
            });
        };
        bencher.iter_batched(expire, |()| runtime.block_on(ask(&cache, &weather, &default)), BatchSize::PerIteration);
    });
    group.finish();
}

/// An empty cache with a controllable source.
fn empty_cache() -> (Cache, Arc<Weather>) {
    let weather = Arc::new(Weather::default());
    let tokens = Tokens::new(Store::new(DEFAULT_LIMIT_BYTES, &Registry::default()), Server(Arc::clone(&weather)));
    (
        filter::layer(TokenCache::new(&tokens, Audit::Off))
            .layer(service_fn(support::nothing as fn(Box<Request>) -> Answered)),
        weather,
    )
}

/// All clients request the token, and all get the one that is fetched.
async fn ask(cache: &Cache, weather: &Weather, request: &Request) {
    let before = weather.fetches.load(Relaxed);
    let mut crowd = JoinSet::new();
    for _ in 0..CROWD {
        crowd.spawn(cache.clone().call(Box::new(request.clone())));
    }
    for answer in crowd.join_all().await {
        assert_eq!(answer.expect("an answer").status(), 200);
    }
    assert_eq!(weather.fetches.load(Relaxed) - before, 1, "one flight for all");
}

criterion_group!(benches, crowds);
criterion_main!(benches);
