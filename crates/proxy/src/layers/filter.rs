//! [`Decide`]: a filter as a function. [`layer`] turns it into a tower layer.
//!
//! A layer that only decides on requests is such a filter. A layer that works on responses, or that holds something
//! until the response is written (`conceal`, `hanging`, `in_flight`, `rescue`), is a service of its own.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::Response;
use tower::layer::layer_fn;
use tower::{Layer, Service, ServiceExt};

use crate::error::Error;
use crate::outcome::Outcome;
use crate::reply::Body;
use protocol::metadata::Request;

/// A filter whose responses have bodies of this type.
pub trait Decide<B = Body> {
    /// Decides on a request.
    fn decide(&self, request: Box<Request>) -> Decision<B>;

    /// Whether the filter answers this request from memory, or with a fetch shared with other requests, so that the
    /// request needs no seat. Called on the filters below `in_flight`.
    fn answers_from_memory(&self, _request: &Request) -> bool {
        false
    }
}

/// The decision of a filter.
pub enum Decision<B = Body> {
    /// The filter answers or refuses the request.
    Answer(Answer<B>),
    /// The layers below answer the request.
    Pass(Box<Request>),
    /// The filter answers later. Many requests may wait at once, so the future should be small.
    Wait(Later<Answer<B>>),
    /// The filter decides later.
    Undecided(Later<Result<Self, Error>>),
}

/// A filter's response.
pub type Answer<B> = Result<Response<B>, Error>;

/// A value that is available later.
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<B> Decision<B> {
    /// The filter answers later.
    pub fn wait(answer: impl Future<Output = Answer<B>> + Send + 'static) -> Self {
        Self::Wait(Box::pin(answer))
    }

    /// The filter decides later.
    pub fn undecided(decision: impl Future<Output = Result<Self, Error>> + Send + 'static) -> Self {
        Self::Undecided(Box::pin(decision))
    }
}

/// Creates the layer of a filter.
pub fn layer<S, D: Clone>(filter: D) -> impl Layer<S, Service = Filtered<S, D>> + Clone + use<S, D> {
    layer_fn(move |inner| Filtered { inner, filter: filter.clone() })
}

/// The service of a filter's layer.
#[derive(Debug, Clone)]
pub struct Filtered<S, D> {
    inner: S,
    filter: D,
}

impl<S, D, B> Service<Box<Request>> for Filtered<S, D>
where
    S: Service<Box<Request>, Response = Response<B>, Error = Error, Future: Send> + Clone + Send + 'static,
    D: Decide<B>,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = Error;
    type Future = Outcome<S::Future, Answer<B>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Box<Request>) -> Self::Future {
        match self.filter.decide(request) {
            Decision::Answer(answer) => Outcome::decided(answer),
            Decision::Pass(request) => Outcome::passed(self.inner.call(request)),
            Decision::Wait(answer) => Outcome::Pending { boxed: answer },
            Decision::Undecided(decision) => Outcome::pending(settled(self.inner.clone(), decision)),
        }
    }
}

/// Carries out the decision as soon as it is made.
async fn settled<S, B>(inner: S, mut later: Later<Result<Decision<B>, Error>>) -> Answer<B>
where
    S: Service<Box<Request>, Response = Response<B>, Error = Error>,
{
    loop {
        match later.await? {
            Decision::Answer(answer) => return answer,
            Decision::Pass(request) => return inner.oneshot(request).await,
            Decision::Wait(answer) => return answer.await,
            Decision::Undecided(decision) => later = decision,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use tower::service_fn;

    use super::*;
    use crate::reply;
    use protocol::metadata::CommonPath;

    /// Answers with a status, after this many undecided decisions. Status 0 passes the request on.
    #[derive(Clone)]
    struct Scripted {
        status: u16,
        waits: bool,
        undecided: usize,
    }

    impl Decide for Scripted {
        fn decide(&self, request: Box<Request>) -> Decision {
            let next = Self { undecided: self.undecided.saturating_sub(1), ..self.clone() };
            match self {
                Self { undecided: 1.., .. } => Decision::undecided(async move { Ok(next.decide(request)) }),
                Self { status: 0, .. } => Decision::Pass(request),
                Self { waits: true, status, .. } => {
                    let status = *status;
                    Decision::wait(async move { Ok(with_status(status)) })
                }
                Self { status, .. } => Decision::Answer(Ok(with_status(*status))),
            }
        }
    }

    fn with_status(status: u16) -> Response<Body> {
        reply::local(StatusCode::from_u16(status).expect("a status"), reply::APPLICATION_TEXT, "")
    }

    #[tokio::test]
    async fn a_decision_is_carried_out_however_late_it_is_made() {
        for undecided in 0..3 {
            for (status, waits, expected) in [(204, false, 204), (204, true, 204), (0, false, 299)] {
                let inner = service_fn(async |request: Box<Request>| {
                    assert_eq!(request.path.common(), Some(CommonPath::Zone), "it is unchanged");
                    Ok(with_status(299))
                });
                let filter = layer(Scripted { status, waits, undecided }).layer(inner);
                let request = Request::get(CommonPath::Zone.into(), protocol::metadata::Query::default());
                let answer = filter.oneshot(Box::new(request)).await.expect("an answer");
                assert_eq!(answer.status().as_u16(), expected, "{undecided}, {status}, {waits}");
            }
        }
    }

    #[tokio::test]
    async fn an_error_in_place_of_a_decision_is_the_answer() {
        #[derive(Clone)]
        struct Fails;

        impl Decide for Fails {
            fn decide(&self, _: Box<Request>) -> Decision {
                Decision::undecided(async { Err(Error::Outdated) })
            }
        }

        let inner = service_fn(async |_: Box<Request>| Ok(with_status(299)));
        let request = Request::get(CommonPath::Zone.into(), protocol::metadata::Query::default());
        let answer = layer(Fails).layer(inner).oneshot(Box::new(request)).await;
        assert!(matches!(answer, Err(Error::Outdated)), "{answer:?}");
    }
}
