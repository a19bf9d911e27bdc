//! Access tokens: minted, stored until they nearly expire, and returned with their remaining lifetime.
//!
//! As on the real server, a repeated request returns the same token with a smaller `expires_in`, until about
//! five minutes remain (Google's document on authenticating workloads; comments in client libraries say four).
//! No request can trigger an earlier renewal, which causes the storms of requests in a token's last minutes.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::forged::padded;

/// Length of a token in bytes, similar to that of a real one.
const TOKEN_BYTES: usize = 180;

/// Maximum number of keys. Beyond that all tokens are forgotten; only clients that invent scopes get there.
const MAX_KEYS: usize = 10_000;

/// Lifetime of a new token: the first value that the real server reports for an hour.
const LIFE: Duration = Duration::from_secs(3599);

/// A token with at most this remaining lifetime is replaced at the next request.
const REMINT_AT: Duration = Duration::from_secs(300);

/// Identifies a token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct TokenKey {
    /// The account's e-mail.
    pub(super) account: String,
    /// The parameters that distinguish tokens, normalised.
    pub(super) params: String,
}

/// A token in a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) access_token: String,
    /// Whole seconds, at least 1.
    pub(super) expires_in: u64,
}

impl Token {
    /// The response body, with the server's order and spacing. Tokens contain nothing to escape.
    pub(super) fn json(&self) -> String {
        let Self { access_token, expires_in } = self;
        format!(r#"{{"access_token":"{access_token}","expires_in":{expires_in},"token_type":"Bearer"}}"#)
    }

    /// The response body for `alt=text`.
    pub(super) fn text(&self) -> String {
        let Self { access_token, expires_in } = self;
        format!("access_token {access_token}\nexpires_in {expires_in}\ntoken_type Bearer\n")
    }
}

/// All valid tokens. The current time is passed as an argument.
#[derive(Debug)]
pub(super) struct TokenStore {
    /// Lifetime of a new token, in whole seconds. If it is short, every request gets a new token.
    pub(super) life: Duration,
    minted: HashMap<TokenKey, (String, Instant)>,
    serial: u64,
}

impl Default for TokenStore {
    fn default() -> Self {
        Self { life: LIFE, minted: HashMap::new(), serial: 0 }
    }
}

impl TokenStore {
    /// The token of a key at this time. Mints a new one if the last one is nearly at its end.
    pub(super) fn token(&mut self, key: TokenKey, now: Instant) -> Token {
        if let Some((access_token, expiry)) = self.minted.get(&key) {
            let left = expiry.saturating_duration_since(now);
            if left > REMINT_AT {
                return Token { access_token: access_token.clone(), expires_in: left.as_secs() };
            }
        }
        self.mint(key, now)
    }

    fn mint(&mut self, key: TokenKey, now: Instant) -> Token {
        if self.minted.len() >= MAX_KEYS {
            self.minted.clear();
        }
        self.serial += 1;
        let access_token = padded(format!("ya29.mock-{}-{:06}-", key.account, self.serial), TOKEN_BYTES);
        self.minted.insert(key, (access_token.clone(), now + self.life));
        Token { access_token, expires_in: self.life.as_secs().max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(params: &str) -> TokenKey {
        TokenKey { account: "a@b.c".into(), params: params.into() }
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_token_ages_and_is_replaced_with_five_minutes_left() {
        let (mut store, start) = (TokenStore::default(), Instant::now());
        let first = store.token(key(""), start);
        assert_eq!((first.expires_in, first.access_token.len()), (3599, TOKEN_BYTES));
        let older = store.token(key(""), after(start, 2));
        assert_eq!((older.access_token, older.expires_in), (first.access_token.clone(), 3597));
        let last = store.token(key(""), after(start, 3298));
        assert_eq!((last.access_token, last.expires_in), (first.access_token.clone(), 301));
        let next = store.token(key(""), after(start, 3299));
        assert_ne!(next.access_token, first.access_token);
        assert_eq!(next.expires_in, 3599);
    }

    #[test]
    fn tokens_differ_between_keys_and_stores() {
        let (mut store, start) = (TokenStore::default(), Instant::now());
        let first = store.token(key(""), start).access_token;
        assert_ne!(store.token(key("scopes=x"), start).access_token, first);
        assert_eq!(store.token(key(""), start).access_token, first);
        assert_ne!(TokenStore::default().token(key(""), start).access_token, first, "a restarted mock");
    }
}
