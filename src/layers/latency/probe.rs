//! Measures a layer: [`Probe`] wraps it from outside, [`Next`] from inside.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tower::{Layer, Service};

use super::trace;
use crate::telemetry::Moment;
use crate::telemetry::latency::{Filter, FilterOutcome, FilterTimes, Latency};
use crate::telemetry::otlp;

/// Measures a layer under this filter's name.
pub fn track<L>(latency: &'static Latency, filter: Filter, layer: L) -> Tracked<L> {
    Tracked { layer, times: latency.filter(filter) }
}

/// A layer that is measured: made by [`track`].
#[derive(Debug, Clone)]
pub struct Tracked<L> {
    layer: L,
    times: &'static FilterTimes,
}

impl<S, L: Layer<Next<S>>> Layer<S> for Tracked<L> {
    type Service = Probe<L::Service>;

    fn layer(&self, inner: S) -> Self::Service {
        Probe { inner: self.layer.layer(Next { inner, times: self.times }), times: self.times }
    }
}

/// Measures the innermost service, which passes nothing on.
#[derive(Debug, Clone)]
pub struct ProbeLayer(&'static FilterTimes);

impl ProbeLayer {
    /// Measures under this filter's name.
    pub fn new(latency: &'static Latency, filter: Filter) -> Self {
        Self(latency.filter(filter))
    }
}

impl<S> Layer<S> for ProbeLayer {
    type Service = Probe<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Probe { inner, times: self.0 }
    }
}

/// Takes A, and B where the filter does not pass the request on.
#[derive(Debug, Clone)]
pub struct Probe<S> {
    inner: S,
    times: &'static FilterTimes,
}

/// Takes B where the filter passes the request on.
#[derive(Debug, Clone)]
pub struct Next<S> {
    inner: S,
    times: &'static FilterTimes,
}

impl<R, S: Service<R>> Service<R> for Probe<S>
where
    S::Future: Future<Output = Result<S::Response, S::Error>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let started = trace::start();
        let inner = self.inner.call(request);
        let state = if trace::leave() { State::Passed } else { State::Working(started) };
        ResponseFuture { inner, state, times: self.times }
    }
}

impl<R, S: Service<R>> Service<R> for Next<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let now = Moment::now();
        otlp::left(self.times.filter, FilterOutcome::Passed, now);
        let started = trace::pass(now);
        let future = self.inner.call(request);
        trace::passed();
        // Last, so that the next filter is not charged with it.
        if let Some(started) = started {
            self.times.worked(FilterOutcome::Passed, now - started);
        }
        future
    }
}

pin_project! {
    /// Of [`Probe`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        state: State,
        times: &'static FilterTimes,
    }
}

/// In few bytes, since hyper moves what eight of them are part of.
#[derive(Debug)]
enum State {
    /// The request is the filter's, since then and without a pause.
    Working(Moment),
    /// It waits for somebody else.
    Suspended(Box<Suspended>),
    /// The request is not the filter's any more.
    Passed,
}

#[derive(Debug)]
struct Suspended {
    since: Moment,
    /// All in all, before.
    worked: Duration,
    waited: Duration,
}

impl<F, T, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<T, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        // Where the filter goes on after a pause, it is as if it had started later, so that all since then is work.
        let (started, waited) = match this.state {
            State::Passed => return this.inner.poll(cx),
            State::Working(started) => (*started, Duration::ZERO),
            State::Suspended(suspended) => {
                let now = Moment::now();
                (now.checked_sub(suspended.worked).unwrap_or(now), suspended.waited + (now - suspended.since))
            }
        };
        trace::resume(started);
        let poll = this.inner.poll(cx);
        let has_passed = trace::leave();
        if !has_passed {
            let now = Moment::now();
            let worked = now - started;
            let Poll::Ready(outcome) = &poll else {
                *this.state = State::Suspended(Box::new(Suspended { since: now, worked, waited }));
                return poll;
            };
            let outcome = if outcome.is_ok() { FilterOutcome::Answered } else { FilterOutcome::Refused };
            this.times.worked(outcome, worked);
            otlp::left(this.times.filter, outcome, now);
        }
        *this.state = State::Passed;
        if !waited.is_zero() {
            this.times.waited(waited);
            otlp::waited(this.times.filter, waited);
        }
        poll
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;
    use tokio::time::{advance, sleep};
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::telemetry::histogram::Snapshot;
    use crate::telemetry::latency::Filter::{Conceal, Forward, TokenCache};

    const WORK: Duration = Duration::from_millis(2);
    const WAIT: Duration = Duration::from_secs(1);

    /// Which outcomes there were in a filter with which sum, and how long requests waited in it.
    fn seen(latency: &Latency, filter: Filter) -> (Vec<(&'static str, u64, Duration)>, Option<Duration>) {
        let time = |snapshot: &Snapshot| Duration::from_nanos(snapshot.nanoseconds);
        let of_filter = |labels: &[(&str, &str)]| labels[0].1 == crate::telemetry::labels::Label::label(filter);
        let work = latency.work().into_iter().filter(|(labels, seen)| of_filter(labels) && seen.count() > 0);
        let wait = latency.waits().into_iter().find(|(labels, seen)| of_filter(labels) && seen.count() > 0);
        (
            work.map(|(labels, seen)| (labels[1].1, seen.count(), time(&seen))).collect(),
            wait.map(|(_, seen)| time(&seen)),
        )
    }

    /// Works and waits; the clock moves by what is worked while this is polled, and by what is waited while it is not.
    async fn works_and_waits() {
        advance(WORK).await;
        sleep(WAIT).await;
    }

    /// A layer that works and waits before it passes a request on.
    fn slow<S>(inner: S) -> impl Service<u8, Response = u8, Error = u8, Future: Send>
    where
        S: Service<u8, Response = u8, Error = u8, Future: Send> + Clone + Send + 'static,
    {
        service_fn(move |request| {
            let inner = inner.clone();
            async move {
                works_and_waits().await;
                inner.oneshot(request).await
            }
        })
    }

    #[tokio::test(start_paused = true)]
    async fn what_answers_or_refuses_is_measured_to_its_outcome_and_waiting_is_apart() {
        let latency = Latency::leak();
        let service = ProbeLayer::new(latency, Forward).layer(service_fn(|request: u8| async move {
            works_and_waits().await;
            if request == 0 { Err(0) } else { Ok(request) }
        }));
        assert_eq!(service.clone().oneshot(1).await, Ok(1));
        assert_eq!(seen(latency, Forward), (vec![("answered", 1, WORK)], Some(WAIT)));
        assert_eq!(service.oneshot(0).await, Err(0));
        assert_eq!(seen(latency, Forward), (vec![("answered", 1, WORK), ("refused", 1, WORK)], Some(2 * WAIT)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_passes_on_is_measured_until_the_next_one_starts_and_not_beyond() {
        let latency = Latency::leak();
        let answers = service_fn(|request: u8| async move {
            works_and_waits().await;
            Ok::<_, u8>(request)
        });
        let inner = ProbeLayer::new(latency, Forward).layer(answers);
        let through = track(latency, TokenCache, tower::layer::util::Identity::new()).layer(inner);
        let outer = track(latency, Conceal, tower::layer::layer_fn(slow)).layer(through);
        assert_eq!(outer.oneshot(1).await, Ok(1));
        assert_eq!(seen(latency, Conceal), (vec![("passed", 1, WORK)], Some(WAIT)));
        assert_eq!(seen(latency, TokenCache), (vec![("passed", 1, Duration::ZERO)], None));
        assert_eq!(seen(latency, Forward), (vec![("answered", 1, WORK)], Some(WAIT)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_given_up_is_no_observation_and_disturbs_no_other() {
        let latency = Latency::leak();
        let answers = service_fn(|request: u8| async move {
            if request == 0 {
                sleep(WAIT).await;
            }
            Ok::<_, u8>(request)
        });
        let service = track(latency, Conceal, tower::layer::util::Identity::new())
            .layer(ProbeLayer::new(latency, Forward).layer(answers));
        let given_up = tokio::spawn(service.clone().oneshot(0));
        yield_now().await;
        given_up.abort();
        assert!(given_up.await.is_err());
        assert_eq!(service.oneshot(1).await, Ok(1));
        assert_eq!(seen(latency, Conceal).0, [("passed", 2, Duration::ZERO)]);
        assert_eq!(seen(latency, Forward), (vec![("answered", 1, Duration::ZERO)], None));
    }
}
