//! [`Known`]: what a keeper has learnt about a key: a token, a recent failure, or nothing.
//!
//! Callers find one of the three in it, and nothing else.

use std::sync::Arc;

use super::cached_token::Kept;
use super::freshness::{self, Freshness};
use crate::clock::BootTime;
use crate::tokens::NoToken;

/// What a keeper has learnt so far.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) token: Option<Arc<Kept>>,
    pub(super) failure: Option<Remembered>,
    /// A token expired before the server issued another.
    pub(super) is_lost: bool,
}

/// A failure, and until when it is the answer to requests.
#[derive(Debug)]
pub(super) struct Remembered {
    pub(super) why: NoToken,
    pub(super) until: BootTime,
}

/// The result of a lookup.
pub(super) enum Found {
    /// A valid token, and how fresh it is.
    Token(Arc<Kept>, Freshness),
    /// A failure so recent that it is the answer.
    Failure(NoToken),
    /// Neither. The caller waits for a flight.
    Nothing,
}

impl Known {
    pub(super) fn find(&self, now: BootTime) -> Found {
        if let Some(kept) = &self.token {
            let freshness = freshness::judge(kept.expires, now);
            if freshness != Freshness::Expired {
                return Found::Token(Arc::clone(kept), freshness);
            }
        }
        match &self.failure {
            Some(failure) if now < failure.until => Found::Failure(failure.why.clone()),
            _ => Found::Nothing,
        }
    }

    /// Drops an expired token, which wipes it from memory.
    pub(super) fn drop_expired(&mut self, now: BootTime) {
        let expired = self.token.take_if(|kept| freshness::judge(kept.expires, now) == Freshness::Expired);
        self.is_lost |= expired.is_some();
    }

    pub(super) fn seconds_left(&self, now: BootTime) -> Option<u32> {
        Some(freshness::judge(self.token.as_ref()?.expires, now).seconds()).filter(|seconds| *seconds > 0)
    }

    /// Heap memory, in bytes.
    pub(super) fn heap(&self) -> usize {
        let token = self.token.as_ref().map_or(0, |kept| kept.memory());
        let failure = match &self.failure {
            Some(Remembered { why: NoToken::Refused(refused), .. }) => refused.heap(),
            _ => 0,
        };
        token + failure
    }
}
