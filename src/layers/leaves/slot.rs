//! [`Slot`]: what is known about one leaf, and the flight that fetches it.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use tokio::sync::watch;

use super::leaf::{Leaf, Lifetime};
use crate::clock::BootTime;
use crate::failure::Failure;
use crate::reply::Body;

/// How long a 404 is kept where a value may be missing.
const MISSING_TTL: Duration = Duration::from_secs(60);

/// How long a failure is the answer. Less than a second, so that recovery is noticed within one.
const FAILURE_TTL: Duration = Duration::from_millis(750);

/// A response of the server, without the headers that belong to one response only.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    headers: RwLock<Aged>,
    body: Bytes,
    /// When the server was asked.
    asked: BootTime,
}

/// Headers with the `Age` of one second, so that it is formatted once a second at most.
#[derive(Debug)]
struct Aged {
    seconds: u64,
    headers: HeaderMap,
}

/// The result of a flight, for all clients that wait for it.
#[derive(Debug, Clone)]
pub(super) enum Landed {
    /// The value, or 404 where the value may be missing.
    Kept(Arc<Answer>),
    /// Another response, which is passed on.
    Refused(Arc<Answer>),
    /// A response that is streamed, because it is too large to be buffered.
    TooLarge,
    /// No response.
    Failed(Arc<Failure>),
}

/// What is known about a leaf at a moment.
#[derive(Debug)]
pub(super) enum Lookup {
    /// This is the answer.
    Known(Landed),
    /// A flight is needed, or under way.
    Unknown,
}

/// Receives the result of a flight. The channel is closed without a result if its task panicked.
pub(super) type Flight = watch::Receiver<Option<Landed>>;

/// What is known about a leaf, and the flight that fetches it.
#[derive(Debug, Default)]
pub(super) struct Slot(RwLock<State>);

#[derive(Debug, Default)]
struct State {
    /// The value, or 404 and when that ends.
    kept: Option<(Arc<Answer>, Option<BootTime>)>,
    /// The result of a flight that fetched no value, and how long it is the answer if there is no value.
    failed: Option<(Landed, BootTime)>,
    flight: Option<Flight>,
}

impl Answer {
    /// Copies headers and body, because slices would keep the whole read buffer.
    pub(super) fn copied(status: StatusCode, mut headers: HeaderMap, body: &Bytes, asked: BootTime) -> Self {
        for name in [header::DATE, header::CONTENT_LENGTH] {
            headers.remove(name);
        }
        for value in headers.values_mut() {
            *value = HeaderValue::from_bytes(value.as_bytes()).expect("a copy of a valid value");
        }
        headers.insert(header::AGE, HeaderValue::from_static("0"));
        let headers = RwLock::new(Aged { seconds: 0, headers });
        Self { status, headers, body: Bytes::copy_from_slice(body), asked }
    }

    /// The response for a client, as the server gave it.
    pub(super) fn response(&self) -> Response<Body> {
        let mut headers = self.aged().headers.clone();
        headers.remove(header::AGE);
        self.with_headers(headers)
    }

    /// The response for a client, from memory: with `Age` (RFC 9111, section 5.1), in seconds since the server was asked.
    pub(super) fn response_from_memory(&self, now: BootTime) -> Response<Body> {
        let seconds = self.age(now).as_secs();
        let aged = self.aged();
        if aged.seconds == seconds {
            return self.with_headers(aged.headers.clone());
        }
        drop(aged);
        let mut aged = self.headers.write().unwrap_or_else(PoisonError::into_inner);
        aged.seconds = seconds;
        aged.headers.insert(header::AGE, seconds.into());
        self.with_headers(aged.headers.clone())
    }

    fn with_headers(&self, headers: HeaderMap) -> Response<Body> {
        let mut response = Response::new(Body::Whole(self.body.clone()));
        *response.status_mut() = self.status;
        *response.headers_mut() = headers;
        response
    }

    fn aged(&self) -> RwLockReadGuard<'_, Aged> {
        // Nothing panics between the two writes.
        self.headers.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since the server was asked.
    pub(super) fn age(&self, now: BootTime) -> Duration {
        now.since(self.asked)
    }

    /// The body, if this is a value.
    pub(super) fn value(&self) -> Option<&Bytes> {
        (self.status == StatusCode::OK).then_some(&self.body)
    }
}

impl Landed {
    /// Judges the response to a request for a leaf.
    pub(super) fn new(leaf: Leaf, response: Result<Response<Body>, Failure>, asked: BootTime) -> Self {
        let (head, body) = match response {
            Ok(response) => response.into_parts(),
            Err(failure) => return Self::Failed(Arc::new(failure)),
        };
        let Body::Whole(body) = body else { return Self::TooLarge };
        let answer = Arc::new(Answer::copied(head.status, head.headers, &body, asked));
        match answer.status {
            StatusCode::OK => Self::Kept(answer),
            StatusCode::NOT_FOUND if leaf.may_be_missing() => Self::Kept(answer),
            _ => Self::Refused(answer),
        }
    }

    /// Whether the server has answered as it should, so that the leaf need not be fetched again before it is due.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Kept(_) | Self::TooLarge)
    }
}

impl Slot {
    /// What is known now.
    pub(super) fn find(&self, now: BootTime) -> Lookup {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((answer, until)) = &state.kept
            && until.is_none_or(|until| now < until)
        {
            return Lookup::Known(Landed::Kept(Arc::clone(answer)));
        }
        match &state.failed {
            Some((failed, until)) if now < *until => Lookup::Known(failed.clone()),
            _ => Lookup::Unknown,
        }
    }

    /// What is kept, also if it is a 404 that has ended.
    pub(super) fn kept(&self) -> Option<Arc<Answer>> {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        state.kept.as_ref().map(|(answer, _)| Arc::clone(answer))
    }

    /// Joins the flight under way, or the one that `begin` starts.
    pub(super) fn join(&self, begin: impl FnOnce() -> Flight) -> Flight {
        let mut state = self.write();
        // A closed channel is that of a flight whose task panicked.
        match &state.flight {
            Some(flight) if flight.has_changed().is_ok() => flight.clone(),
            _ => state.flight.insert(begin()).clone(),
        }
    }

    /// Stores the result of a flight, which has ended. Only a value, or a 404 for an attribute, replaces a value.
    pub(super) fn land(&self, leaf: Leaf, landed: &Landed, now: BootTime) {
        let mut state = self.write();
        state.flight = None;
        let has_value = state.kept.as_ref().is_some_and(|(kept, _)| kept.value().is_some());
        match landed {
            Landed::Kept(answer) if answer.value().is_some() => {
                *state = State { kept: Some((Arc::clone(answer), None)), ..State::default() };
            }
            Landed::Kept(_) if has_value && leaf.lifetime() == Lifetime::Machine => {}
            Landed::Kept(missing) => {
                *state = State { kept: Some((Arc::clone(missing), Some(now + MISSING_TTL))), ..State::default() };
            }
            // Until the next refresh: otherwise a client's request would begin a flight in vain now and then.
            Landed::TooLarge => state.failed = Some((Landed::TooLarge, BootTime::from_nanos(u64::MAX))),
            Landed::Refused(_) | Landed::Failed(_) => state.failed = Some((landed.clone(), now + FAILURE_TTL)),
        }
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        // Each part of the state is replaced whole.
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
