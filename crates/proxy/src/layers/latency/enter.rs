//! [`enter`] reports on the way in that a filter got a request, and [`leave`] on the way back that it answered.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower::layer::layer_fn;
use tower::layer::util::Stack;
use tower::util::MapRequestLayer;
use tower::{Layer, Service};

use super::Timeline;
use telemetry::latency::{Filter, FilterOutcome};

/// Measures the service inside under this name.
pub fn enter<R>(timeline: &Arc<Timeline>, filter: Filter) -> MapRequestLayer<impl FnMut(R) -> R + Clone + use<R>> {
    let timeline = Arc::clone(timeline);
    MapRequestLayer::new(move |request| {
        timeline.enter(filter);
        request
    })
}

/// Measures this layer's filter under this name.
pub fn track<R, L>(
    timeline: &Arc<Timeline>,
    filter: Filter,
    layer: L,
) -> Stack<L, MapRequestLayer<impl FnMut(R) -> R + Clone + use<R, L>>> {
    Stack::new(layer, enter(timeline, filter))
}

/// Ends the measurement of the inner filter that answers.
///
/// It stands outside all filters, and inside each filter that works on responses: that work is not measured as a
/// filter's.
pub fn leave<S>(timeline: &Arc<Timeline>) -> impl Layer<S, Service = Leave<S>> + Clone + use<S> {
    let timeline = Arc::clone(timeline);
    layer_fn(move |inner| Leave { inner, timeline: Arc::clone(&timeline) })
}

/// The service of [`leave`].
#[derive(Debug, Clone)]
pub struct Leave<S> {
    inner: S,
    timeline: Arc<Timeline>,
}

impl<R, T, E, S> Service<R> for Leave<S>
where
    S: Service<R, Response = T, Error = E>,
{
    type Response = T;
    type Error = E;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), E>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let timeline = Arc::clone(&self.timeline);
        ResponseFuture { timeline, inner: self.inner.call(request) }
    }
}

pin_project! {
    /// The future of [`Leave`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        timeline: Arc<Timeline>,
    }
}

impl<F, T, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<T, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let answer = ready!(this.inner.poll(cx));
        this.timeline.leave(if answer.is_ok() { FilterOutcome::Answered } else { FilterOutcome::Refused });
        Poll::Ready(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::time::Duration;

    use tokio::task::yield_now;
    use tokio::time::{advance, sleep};
    use tower::{ServiceBuilder, ServiceExt, service_fn};

    use super::super::Instruments;
    use super::*;
    use telemetry::histogram::Snapshot;
    use telemetry::labels::Label;
    use telemetry::latency::Filter::{Conceal, Forward, TokenCache};
    use telemetry::latency::Latency;

    const WORK: Duration = Duration::from_millis(2);
    const WAIT: Duration = Duration::from_secs(1);

    fn timeline() -> (Arc<Latency>, Arc<Timeline>) {
        let instruments = Instruments::default();
        (Arc::clone(&instruments.latency), Timeline::new(instruments, ([10, 0, 0, 9], 40000).into()))
    }

    /// Sends a request, as the outermost layer does.
    async fn send<S: Service<u8>>(timeline: &Timeline, mut service: S, request: u8) -> Result<S::Response, S::Error> {
        timeline.begin();
        let mut answer = pin!(service.ready().await?.call(request));
        poll_fn(|cx| {
            timeline.resume();
            let polled = answer.as_mut().poll(cx);
            if polled.is_pending() {
                timeline.suspend();
            }
            polled
        })
        .await
    }

    /// Outcomes of a filter, each with its count and sum, and the time that requests waited in the filter.
    fn measured(latency: &Latency, filter: Filter) -> (Vec<(&'static str, u64, Duration)>, Option<Duration>) {
        let time = |snapshot: &Snapshot| Duration::from_nanos(snapshot.nanoseconds);
        let of_filter = |labels: &[(&str, &str)]| labels[0].1 == filter.label();
        let work = latency.work().into_iter().filter(|(labels, seen)| of_filter(labels) && seen.count() > 0);
        let wait = latency.waits().into_iter().find(|(labels, seen)| of_filter(labels) && seen.count() > 0);
        (
            work.map(|(labels, seen)| (labels[1].1, seen.count(), time(&seen))).collect(),
            wait.map(|(_, seen)| time(&seen)),
        )
    }

    /// Works and waits. The work advances the clock while this is polled, the wait while it is not.
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
    async fn a_filter_that_answers_or_refuses_is_measured_to_its_outcome_without_its_waits() {
        let (latency, timeline) = timeline();
        let service = ServiceBuilder::new().layer(leave(&timeline)).layer(enter(&timeline, Forward)).service_fn(
            |request: u8| async move {
                works_and_waits().await;
                if request == 0 { Err(0) } else { Ok(request) }
            },
        );
        assert_eq!(send(&timeline, service.clone(), 1).await, Ok(1));
        assert_eq!(measured(&latency, Forward), (vec![("answered", 1, WORK)], Some(WAIT)));
        assert_eq!(send(&timeline, service, 0).await, Err(0));
        assert_eq!(measured(&latency, Forward), (vec![("answered", 1, WORK), ("refused", 1, WORK)], Some(2 * WAIT)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_filter_that_passes_on_is_measured_until_the_next_one_starts() {
        let (latency, timeline) = timeline();
        let answers = service_fn(|request: u8| async move {
            works_and_waits().await;
            Ok::<_, u8>(request)
        });
        let service = ServiceBuilder::new()
            .layer(leave(&timeline))
            .layer(enter(&timeline, Conceal))
            .layer_fn(slow)
            .layer(enter(&timeline, TokenCache))
            .layer(enter(&timeline, Forward))
            .service(answers);
        assert_eq!(send(&timeline, service, 1).await, Ok(1));
        assert_eq!(measured(&latency, Conceal), (vec![("passed", 1, WORK)], Some(WAIT)));
        assert_eq!(measured(&latency, TokenCache), (vec![("passed", 1, Duration::ZERO)], None));
        assert_eq!(measured(&latency, Forward), (vec![("answered", 1, WORK)], Some(WAIT)));
    }

    /// The time in which a filter handles the response of the next one is not measured as any filter's.
    #[tokio::test(start_paused = true)]
    async fn the_way_back_is_not_measured() {
        let (latency, timeline) = timeline();
        let works_on_the_way_back = |inner: Leave<_>| {
            service_fn(move |request: u8| {
                let inner = inner.clone();
                async move {
                    let answer = inner.oneshot(request).await;
                    works_and_waits().await;
                    answer
                }
            })
        };
        let service = ServiceBuilder::new()
            .layer(leave(&timeline))
            .layer(enter(&timeline, Conceal))
            .layer_fn(works_on_the_way_back)
            .layer(leave(&timeline))
            .layer(enter(&timeline, Forward))
            .service(service_fn(|request: u8| async move { Ok::<_, u8>(request) }));
        assert_eq!(send(&timeline, service, 1).await, Ok(1));
        assert_eq!(measured(&latency, Conceal), (vec![("passed", 1, Duration::ZERO)], None));
        assert_eq!(measured(&latency, Forward), (vec![("answered", 1, Duration::ZERO)], None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_given_up_is_not_observed_and_does_not_disturb_the_next() {
        let (latency, timeline) = timeline();
        let answers = service_fn(|request: u8| async move {
            if request == 0 {
                sleep(WAIT).await;
            }
            Ok::<_, u8>(request)
        });
        let service = ServiceBuilder::new()
            .layer(leave(&timeline))
            .layer(enter(&timeline, Conceal))
            .layer(enter(&timeline, Forward))
            .service(answers);
        let (of_request, inner) = (Arc::clone(&timeline), service.clone());
        let given_up = tokio::spawn(async move { send(&of_request, inner, 0).await });
        yield_now().await;
        advance(WAIT / 2).await;
        given_up.abort();
        assert!(given_up.await.is_err());
        assert_eq!(send(&timeline, service, 1).await, Ok(1));
        assert_eq!(measured(&latency, Conceal), (vec![("passed", 2, Duration::ZERO)], None));
        assert_eq!(measured(&latency, Forward), (vec![("answered", 1, Duration::ZERO)], None));
    }
}
