//! [`Tokens`]: mints tokens and remembers their subjects.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::Subject;
use crate::forged::{jwt, padded};
use crate::identity::{Identity, LIFE_SECONDS};

/// Length of an access token in bytes, the same as Google's.
const TOKEN_BYTES: usize = 1024;

/// Maximum number of remembered tokens. The oldest are forgotten.
const MAX_TOKENS: usize = 50_000;

/// An issued token.
#[derive(Debug, Clone)]
pub(super) struct Issued {
    pub(super) subject: Subject,
    /// Expiry in seconds since 1970.
    pub(super) expires_at: u64,
    /// Whether it may be used as a `Bearer` token.
    pub(super) is_access: bool,
}

/// All issued tokens.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    issued: HashMap<Arc<str>, Issued>,
    order: VecDeque<Arc<str>>,
}

impl Tokens {
    /// A new access token. `expires_at` is in seconds since 1970.
    pub(super) fn access(&mut self, subject: Subject, expires_at: u64) -> Arc<str> {
        self.keep(padded(subject.write(), TOKEN_BYTES), subject, expires_at, true)
    }

    /// A new identity token: well-formed, with a signature that no verifier accepts. `now` is in seconds since 1970.
    pub(super) fn identity(&mut self, subject: Subject, identity: Identity<'_>, now: u64) -> Arc<str> {
        self.keep(jwt(&identity.claims(now)), subject, now + LIFE_SECONDS, false)
    }

    /// An issued token.
    pub(super) fn get(&self, token: &str) -> Option<&Issued> {
        self.issued.get(token)
    }

    fn keep(&mut self, token: String, subject: Subject, expires_at: u64, is_access: bool) -> Arc<str> {
        if self.order.len() >= MAX_TOKENS
            && let Some(oldest) = self.order.pop_front()
        {
            self.issued.remove(&oldest);
        }
        let token: Arc<str> = token.into();
        self.order.push_back(Arc::clone(&token));
        self.issued.insert(Arc::clone(&token), Issued { subject, expires_at, is_access });
        token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_token_is_forgotten() {
        let mut tokens = Tokens::default();
        let subject = Subject::read("ya29.fake~a~app~u~-~~-~").expect("a subject");
        let [first, second] = [0, 0].map(|_| tokens.access(subject.clone(), 1));
        assert_eq!((first.len(), second.len()), (TOKEN_BYTES, TOKEN_BYTES));
        for _ in 2..=MAX_TOKENS {
            tokens.keep(format!("filler {}", tokens.order.len()), subject.clone(), 1, true);
        }
        assert!(tokens.get(&first).is_none() && tokens.get(&second).is_some());
        assert_eq!((tokens.issued.len(), tokens.order.len()), (MAX_TOKENS, MAX_TOKENS));
    }
}
