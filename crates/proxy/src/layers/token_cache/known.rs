//! [`Known`]: the state of a key: a token, a recent failure, or nothing.
//!
//! A lookup finds one of the three, and nothing else.

use std::sync::Arc;

use super::cached_token::CachedToken;
use super::freshness::{self, Freshness};
use crate::single_flight::Remembered;
use crate::tokens::NoToken;
use base::clock::BootTime;

/// The state of a key, as published by its keeper.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) token: Option<Arc<CachedToken>>,
    /// The result of the last flight, if it was a failure.
    pub(super) failure: Option<Remembered<NoToken>>,
    /// A token expired before the server issued another.
    pub(super) is_lost: bool,
}

/// The result of a lookup.
pub(super) enum Lookup {
    /// A valid token with its freshness.
    Token(Arc<CachedToken>, Freshness),
    /// A failure recent enough to be the answer.
    Failure(NoToken),
    /// Neither. The caller waits for a flight.
    Nothing,
}

impl Known {
    pub(super) fn find(&self, now: BootTime) -> Lookup {
        if let Some(token) = &self.token {
            match freshness::judge(token.expires, now) {
                Freshness::Expired => {}
                freshness if now < token.good_until => return Lookup::Token(Arc::clone(token), freshness),
                freshness if self.failure.as_ref().is_some_and(|failure| failure.what.is_outage()) => {
                    return Lookup::Token(Arc::clone(token), Freshness::Stale(freshness.seconds()));
                }
                Freshness::Fresh(_) | Freshness::Stale(_) => {}
            }
        }
        let failure = self.failure.as_ref().and_then(|failure| failure.at(now));
        failure.map_or(Lookup::Nothing, |why| Lookup::Failure(why.clone()))
    }

    /// The token, if it is valid, for a request whose flight is late: as good as an outage. Not after a refusal.
    pub(super) fn valid(&self, now: BootTime) -> Option<(Arc<CachedToken>, Freshness)> {
        let is_refused = self.failure.as_ref().is_some_and(|failure| !failure.what.is_outage());
        let token = self.token.as_ref().filter(|_| !is_refused)?;
        let left = freshness::judge(token.expires, now).seconds();
        (left > 0).then(|| (Arc::clone(token), Freshness::Stale(left)))
    }

    /// The result of the last flight, however long ago, if it was a failure.
    pub(super) fn last_failure(&self) -> Option<NoToken> {
        self.failure.as_ref().map(|failure| failure.what.clone())
    }

    /// Drops an expired token, which wipes it from memory.
    pub(super) fn drop_expired(&mut self, now: BootTime) {
        let expired = self.token.take_if(|token| freshness::judge(token.expires, now) == Freshness::Expired);
        self.is_lost |= expired.is_some();
    }

    pub(super) fn seconds_left(&self, now: BootTime) -> Option<u32> {
        Some(freshness::judge(self.token.as_ref()?.expires, now).seconds()).filter(|seconds| *seconds > 0)
    }

    /// Heap memory, in bytes.
    pub(super) fn heap(&self) -> usize {
        let token = self.token.as_ref().map_or(0, |token| token.memory());
        let failure = match &self.failure {
            Some(Remembered { what: NoToken::Refused(refused), .. }) => refused.heap(),
            _ => 0,
        };
        token + failure
    }
}
