//! [`TokenRecord`]: a cached token, as it is handed over to the next process.
//!
//! The cache knows neither how a record is sent nor which number a workload has in the other process: a record names no principal.
//! Records are checked like responses of a token source: the key is parsed from the request for the token, and the token from its
//! text. Times are those of `CLOCK_BOOTTIME`, which all processes of a node share.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::cached_token::CachedToken;
use super::entry::Entry;
use super::flight::Next;
use super::freshness::{self, Freshness};
use super::known::Known;
use super::service::Tokens;
use super::store::Store;
use crate::tokens::{Token, TokenKey, TokenKind, TokenSource};
use base::clock::BootTime;
use protocol::metadata::token::{AccessToken, MAX_LIFE_SECONDS, TokenFormat, is_token};
use protocol::metadata::{Endpoint, MetadataPath, Principal, Query, Request};

/// Maximum length of an identity token, in bytes. Google's have about 1 KiB.
const MAX_IDENTITY: usize = 16 << 10;

/// A cached token, without its principal.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRecord {
    /// The request for it: path and query.
    target: String,
    /// JSON: an access token as a source returns it, with any lifetime, or an identity token.
    #[serde(with = "raw")]
    token: Zeroizing<String>,
    since: u64,
    expires: u64,
    good_until: u64,
    /// Time of its last request.
    used: u64,
    /// The client charged for it. `None` only for the node's default token.
    holder: Option<IpAddr>,
}

/// Reason for rejecting a record. Never shows the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// Not a request for a token.
    #[error("its key is invalid")]
    Key,
    /// Not a token.
    #[error("it is not a token")]
    Token,
    /// The times are not those of any token.
    #[error("its times are invalid")]
    Times,
    /// It has expired.
    #[error("it has expired")]
    Expired,
    /// There is such a token already.
    #[error("it is not needed")]
    Needless,
    /// The cache is full.
    #[error("there is no room for it")]
    NoRoom,
}

impl fmt::Debug for TokenRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenRecord").finish_non_exhaustive()
    }
}

/// A token that can be handed over.
#[derive(Debug)]
pub struct Exported {
    entry: Arc<Entry>,
    token: Arc<CachedToken>,
}

impl Exported {
    /// Its principal in this process.
    pub fn principal(&self) -> Principal {
        self.entry.key.principal
    }

    /// Its record, whose memory is wiped on drop.
    pub fn record(&self) -> TokenRecord {
        let Self { entry, token } = self;
        let request = entry.key.request();
        let (quote, text) = match &token.token {
            // The lifetime in the text is ignored in favour of `expires`.
            Token::Access(token) => ("", token.body(TokenFormat::Json, 1)),
            Token::Identity(jwt) => ("\"", jwt.clone()),
        };
        // Allocated at its exact size: growing would leave a copy behind that is not wiped.
        let mut json = Zeroizing::new(String::with_capacity(text.len() + 2));
        for part in [quote, &String::from_utf8_lossy(&text), quote] {
            json.push_str(part);
        }
        TokenRecord {
            target: format!("{}{}", request.path, request.query),
            token: json,
            since: token.since.as_nanos(),
            expires: token.expires.as_nanos(),
            good_until: token.good_until.as_nanos(),
            used: entry.used.load(Relaxed),
            holder: entry.holder,
        }
    }
}

impl Store {
    /// All tokens that have not expired, except those that are bound to a certificate: a record does not name it, so the other
    /// process would give them to every client. Shares their memory.
    pub fn exported(&self, now: BootTime) -> Vec<Exported> {
        let token = |entry: &Arc<Entry>| {
            if entry.key.bound_to.is_some() {
                return None;
            }
            let token = entry.known.borrow().token.clone()?;
            let is_valid = freshness::judge(token.expires, now) != Freshness::Expired;
            is_valid.then(|| Exported { entry: Arc::clone(entry), token })
        };
        self.entries().iter().filter_map(token).collect()
    }
}

impl<T: TokenSource> Tokens<T> {
    /// Takes over a token of this principal. Its keeper renews it when that of the other process would have.
    pub fn take_over(&self, principal: Principal, record: &TokenRecord, now: BootTime) -> Result<(), NotTaken> {
        let key = record.key(principal).ok_or(NotTaken::Key)?;
        if record.holder.is_none() && !key.is_default_account() {
            return Err(NotTaken::Key);
        }
        let token = record.checked(&key, now)?;
        let next = Next::after(&key, &token, now);
        let used = BootTime::from_nanos(record.used).as_nanos().min(now.as_nanos());
        let store = self.store();
        let (entry, is_new) =
            store.find_or_make(store.canonical(key), record.holder, now).map_err(|_| NotTaken::NoRoom)?;
        let is_taken = entry.known.send_if_modified(|known| {
            let is_free = is_new || known.token.is_none();
            if is_free {
                *known = Known { token: Some(Arc::new(token)), ..Known::default() };
            }
            is_free
        });
        if is_new {
            entry.used.store(used, Relaxed);
            self.keep(&entry, next);
        }
        store.reweigh(&entry);
        if is_taken { Ok(()) } else { Err(NotTaken::Needless) }
    }
}

impl TokenRecord {
    fn key(&self, principal: Principal) -> Option<TokenKey> {
        let target: PathAndQuery = self.target.parse().ok()?;
        let path = MetadataPath::parse(&target).ok()?;
        let query = Query::parse(target.query()).ok()?;
        let request = Request { endpoint: Endpoint::from_path(&path), principal, ..Request::get(path, query) };
        TokenKey::from_request(&request).map(|(key, _)| key)
    }

    fn checked(&self, key: &TokenKey, now: BootTime) -> Result<CachedToken, NotTaken> {
        let [since, expires, good_until] = [self.since, self.expires, self.good_until].map(BootTime::from_nanos);
        let longest = Duration::from_secs(MAX_LIFE_SECONDS.into());
        if since > now || expires <= since || expires.since(since) > longest || !(since..=expires).contains(&good_until)
        {
            return Err(NotTaken::Times);
        }
        if freshness::judge(expires, now) == Freshness::Expired {
            return Err(NotTaken::Expired);
        }
        let token = match key.kind {
            TokenKind::Access => {
                Token::Access(AccessToken::parse(self.token.as_bytes()).map_err(|_| NotTaken::Token)?.0)
            }
            TokenKind::Identity => {
                let jwt =
                    self.token.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).ok_or(NotTaken::Token)?;
                if jwt.len() > MAX_IDENTITY || !is_token(jwt.as_bytes()) {
                    return Err(NotTaken::Token);
                }
                Token::Identity(Bytes::from_owner(Zeroizing::new(jwt.as_bytes().to_vec())))
            }
        };
        Ok(CachedToken::new(token, since, expires).good_until(good_until))
    }
}

/// Embedded raw JSON. As a string it would be escaped, and parsing it would leave a copy that is not wiped.
mod raw {
    use serde::de::{Deserialize, Deserializer};
    use serde::ser::{Error, Serialize, Serializer};
    use serde_json::value::RawValue;
    use zeroize::Zeroizing;

    pub(super) fn serialize<S: Serializer>(json: &Zeroizing<String>, to: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<&RawValue>(json).map_err(|_| S::Error::custom("it is not JSON"))?.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Zeroizing<String>, D::Error> {
        <&RawValue>::deserialize(from).map(|json| Zeroizing::new(json.get().to_owned()))
    }
}
