//! Cost of measuring: eight no-op filters, with and without probes, and a single observation.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use proxy::layers::latency::{Instruments, Timeline, enter, leave, track};
use telemetry::Moment;
use telemetry::histogram::{Histogram, WORK_BOUNDS};
use telemetry::latency::{Filter, RequestOutcome};
use telemetry::talkers::Talkers;
use tower::{Layer, Service, ServiceBuilder};

struct ThroughLayer;

/// A filter that passes every request on. It is not inlined, because real filters are not either.
struct Through<S>(S);

impl<S> Layer<S> for ThroughLayer {
    type Service = Through<S>;

    fn layer(&self, inner: S) -> Through<S> {
        Through(inner)
    }
}

impl<S: Service<u64>> Service<u64> for Through<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    #[inline(never)]
    fn call(&mut self, request: u64) -> S::Future {
        self.0.call(request)
    }
}

/// Responds immediately.
struct Answers;

impl Service<u64> for Answers {
    type Response = u64;
    type Error = Infallible;
    type Future = Ready<Result<u64, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    #[inline(never)]
    fn call(&mut self, request: u64) -> Self::Future {
        ready(Ok(request))
    }
}

fn run(stack: &mut impl Service<u64, Response = u64, Error = Infallible>) -> u64 {
    let answer = pin!(stack.call(black_box(1)));
    match answer.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(answer)) => answer,
        Poll::Pending => unreachable!("it answers at once"),
    }
}

/// The figures are for eight filters: the difference, divided by eight, is the cost of measuring one.
fn eight_filters(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("eight_filters");
    let timeline = &Timeline::new(Instruments::default(), ([10, 0, 0, 9], 40000).into());
    let bare = ThroughLayer.layer(ThroughLayer.layer(ThroughLayer.layer(Answers)));
    let mut bare = ThroughLayer.layer(ThroughLayer.layer(ThroughLayer.layer(ThroughLayer.layer(bare))));
    group.bench_function("bare", |bencher| bencher.iter(|| run(&mut bare)));
    let mut tracked = ServiceBuilder::new()
        .layer(leave(timeline))
        .layer(track(timeline, Filter::Classify, ThroughLayer))
        .layer(track(timeline, Filter::InFlight, ThroughLayer))
        .layer(track(timeline, Filter::Discovery, ThroughLayer))
        .layer(track(timeline, Filter::Conceal, ThroughLayer))
        .layer(track(timeline, Filter::Hanging, ThroughLayer))
        .layer(track(timeline, Filter::Leaves, ThroughLayer))
        .layer(track(timeline, Filter::TokenCache, ThroughLayer))
        .layer(enter(timeline, Filter::Forward))
        .service(Answers);
    group.bench_function("tracked", |bencher| bencher.iter(|| run(&mut tracked)));
    group.finish();
}

fn one_observation(criterion: &mut Criterion) {
    let histogram = Histogram::new(&WORK_BOUNDS);
    criterion.bench_function("one_observation", |bencher| {
        bencher.iter(|| histogram.record(black_box(Duration::from_nanos(1_234))));
    });
    criterion.bench_function("one_look_at_the_clock", |bencher| bencher.iter(Moment::now));
}

/// Cost of recording a client: with few clients, and with one per slot.
fn one_talker(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one_talker");
    for clients in [4, 64] {
        let (talkers, now) = (Talkers::default(), Moment::now());
        let mut client = 0;
        group.bench_function(format!("of_{clients}"), |bencher| {
            bencher.iter(|| {
                client = (client + 1) % clients;
                talkers.note([10, 0, 0, client].into(), RequestOutcome::Answered, now);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, eight_filters, one_observation, one_talker);
criterion_main!(benches);
