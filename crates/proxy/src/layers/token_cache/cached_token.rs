//! [`CachedToken`]: a cached token and its expiry.
//!
//! It also caches the last response body, which all callers within the same second share.

use std::fmt;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::tokens::Token;
use base::clock::BootTime;
use protocol::metadata::token::TokenFormat;

/// A token with its expiry.
#[derive(Debug)]
pub(super) struct CachedToken {
    pub(super) token: Token,
    /// Time at which its source asked for it. Its life counts from here, so that it is never overestimated.
    pub(super) since: BootTime,
    pub(super) expires: BootTime,
    /// Time until which it is served while its source works.
    pub(super) good_until: BootTime,
    /// The last response body. It is the same for all requests within one second.
    written: Mutex<Option<Written>>,
}

#[derive(Clone)]
struct Written {
    form: TokenFormat,
    seconds: u32,
    body: Bytes,
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Written").field("seconds", &self.seconds).finish_non_exhaustive()
    }
}

impl CachedToken {
    pub(super) fn new(token: Token, since: BootTime, expires: BootTime) -> Self {
        Self { token, since, expires, good_until: expires, written: Mutex::default() }
    }

    /// The same token, to be replaced at this time although it is valid for longer.
    pub(super) fn good_until(self, good_until: BootTime) -> Self {
        Self { good_until: good_until.min(self.expires), ..self }
    }

    /// Memory of the cached token, in bytes.
    pub(super) fn memory(&self) -> usize {
        let heap = match &self.token {
            // The token and the last response body.
            Token::Access(token) => 2 * token.heap(),
            Token::Identity(jwt) => jwt.len(),
        };
        size_of::<Self>() + heap
    }

    /// The response body for a token that expires in this many seconds.
    pub(super) fn body(&self, form: TokenFormat, seconds: u32) -> Bytes {
        let token = match &self.token {
            Token::Access(token) => token,
            Token::Identity(jwt) => return jwt.clone(),
        };
        // The value is replaced as a whole, so a panic elsewhere leaves it consistent.
        let mut written = self.written.lock();
        match &*written {
            Some(written) if written.form == form && written.seconds == seconds => written.body.clone(),
            _ => {
                let body = token.body(form, seconds);
                *written = Some(Written { form, seconds, body: body.clone() });
                body
            }
        }
    }
}
