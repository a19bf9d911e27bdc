//! [`Slot`]: the state of one leaf, updated by the flight that fetches it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use parking_lot::RwLock;

use super::leaf::{Leaf, Lifetime};
use crate::error::Error;
use crate::failure::is_failure;
use crate::reply::{self, Body};
use crate::single_flight::{Remembered, SingleFlight};
use base::clock::BootTime;

/// Time for which a 404 is cached where a value may be missing.
const MISSING_TTL: Duration = Duration::from_secs(60);

/// Time for which a failure is the answer. Less than a second, so that recovery is noticed within one.
const FAILURE_TTL: Duration = Duration::from_millis(750);

/// A response of the server, without the headers that belong to one response only.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    headers: RwLock<Aged>,
    body: Bytes,
    /// Time of the request to the server.
    asked: BootTime,
}

/// Headers with the `Age` of one second, so that it is formatted at most once per second.
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
    /// A response that is not cached: it is too large to be buffered, or a tree that cannot be cached.
    TooLarge,
    /// No response.
    Failed(Arc<Error>),
}

/// The state of a leaf at some time.
#[derive(Debug)]
pub(super) enum Lookup {
    /// The answer.
    Known(Landed),
    /// The answer, unless a flight, which is needed or under way, soon brings another.
    Stale(Arc<Answer>),
    /// A flight is needed, or under way.
    Unknown,
}

/// The state of a leaf, and the flight that fetches it.
pub(super) type Slot = SingleFlight<Known, Landed>;

/// The state of a leaf.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The value, or a 404 for a limited time.
    kept: Option<Remembered<Arc<Answer>>>,
    /// The result of a flight that fetched no value. It is the answer if there is no value.
    failed: Option<Remembered<Landed>>,
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

    /// The response for a client, as the server sent it.
    pub(super) fn response(&self) -> Response<Body> {
        let mut headers = self.headers.read().headers.clone();
        headers.remove(header::AGE);
        self.with_headers(headers)
    }

    /// The response for a client, from memory: with `Age` (RFC 9111, section 5.1), in seconds since the request to the
    /// server.
    pub(super) fn response_from_memory(&self, now: BootTime) -> Response<Body> {
        let seconds = self.age(now).as_secs();
        let aged = self.headers.read();
        if aged.seconds == seconds {
            return self.with_headers(aged.headers.clone());
        }
        drop(aged);
        let mut aged = self.headers.write();
        aged.seconds = seconds;
        aged.headers.insert(header::AGE, seconds.into());
        self.with_headers(aged.headers.clone())
    }

    fn with_headers(&self, headers: HeaderMap) -> Response<Body> {
        reply::whole(self.status, headers, self.body.clone())
    }

    /// Time since the request to the server.
    pub(super) fn age(&self, now: BootTime) -> Duration {
        now.since(self.asked)
    }

    /// The body, if this is a value.
    pub(super) fn value(&self) -> Option<&Bytes> {
        (self.status == StatusCode::OK).then_some(&self.body)
    }
}

impl Landed {
    /// Classifies the response to a request for a leaf.
    pub(super) fn new(leaf: Leaf, response: Result<Response<Body>, Error>, asked: BootTime) -> Self {
        let (head, body) = match response {
            Ok(response) => response.into_parts(),
            Err(Error::TooLarge(_)) => return Self::TooLarge,
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

    /// Whether this result makes a cached tree obsolete.
    pub(super) fn replaces_a_tree(&self) -> bool {
        match self {
            Self::Kept(answer) => answer.value().is_some(),
            Self::TooLarge => true,
            Self::Refused(_) | Self::Failed(_) => false,
        }
    }

    /// Whether the server's answer was valid, so that the leaf need not be fetched again before it is due.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Kept(_) | Self::TooLarge)
    }
}

impl Known {
    /// The current state.
    pub(super) fn find(&self, leaf: Leaf, now: BootTime) -> Lookup {
        let kept = self.kept.as_ref().and_then(|kept| kept.at(now)).map(Arc::clone);
        let failed = self.failed.as_ref().and_then(|failed| failed.at(now));
        match (kept, failed) {
            (Some(kept), None) if !leaf.lifetime().is_fresh(kept.age(now)) => Lookup::Stale(kept),
            (Some(kept), _) => Lookup::Known(Landed::Kept(kept)),
            (None, Some(failed)) => Lookup::Known(failed.clone()),
            (None, None) => Lookup::Unknown,
        }
    }

    /// The cached response, even if it is an expired 404.
    pub(super) fn kept(&self) -> Option<&Arc<Answer>> {
        self.kept.as_ref().map(|kept| &kept.what)
    }

    /// Records the result of a flight. Only a value, or a 404 for an attribute, replaces a value.
    pub(super) fn land(&mut self, leaf: Leaf, landed: &Landed, now: BootTime) {
        let has_value = self.kept().is_some_and(|kept| kept.value().is_some());
        match landed {
            Landed::Kept(answer) if answer.value().is_some() => self.keep(Remembered::always(Arc::clone(answer))),
            Landed::Kept(_) if has_value && leaf.lifetime() != Lifetime::Attribute => {
                self.failed = Some(Remembered::until(landed.clone(), now + FAILURE_TTL));
            }
            Landed::Kept(missing) => self.keep(Remembered::until(Arc::clone(missing), now + MISSING_TTL)),
            // The cached tree is outdated. For other leaves, a response of this size is not a value.
            Landed::TooLarge if leaf.is_tree() => {
                *self = Self { kept: None, failed: Some(Remembered::always(Landed::TooLarge)) };
            }
            // Until the next refresh. Otherwise requests would now and then begin a flight in vain.
            Landed::TooLarge => self.failed = Some(Remembered::always(Landed::TooLarge)),
            // Nothing was learnt of its size.
            Landed::Refused(_) | Landed::Failed(_) if self.is_too_large() => {}
            Landed::Refused(_) | Landed::Failed(_) => {
                self.failed = Some(Remembered::until(landed.clone(), now + FAILURE_TTL));
            }
        }
    }

    /// The status with which the server refused this leaf when it was last asked for it. `None` if it failed: its health tells that.
    pub(super) fn refused(&self) -> Option<StatusCode> {
        match &self.failed.as_ref()?.what {
            Landed::Refused(answer) => Some(answer.status).filter(|status| !is_failure(*status)),
            Landed::Kept(_) | Landed::TooLarge | Landed::Failed(_) => None,
        }
    }

    fn is_too_large(&self) -> bool {
        self.failed.as_ref().is_some_and(|failed| matches!(failed.what, Landed::TooLarge))
    }

    fn keep(&mut self, answer: Remembered<Arc<Answer>>) {
        *self = Self { kept: Some(answer), failed: None };
    }
}
