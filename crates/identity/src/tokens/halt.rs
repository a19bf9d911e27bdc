//! [`Halt`]: the reason why a step gave no token, and the time until it is tried again.

use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderValue};
use http::{Response, StatusCode};

use super::rest::Rest;
use http_client::retry_after;
use proxy::failure::{ExchangeFailure, TokenFailure, Withheld};
use proxy::reply::{self, Body};
use proxy::tokens::{NoToken, Refused};

/// Maximum `Retry-After` of a server that is passed on, in seconds.
const MAX_RETRY_AFTER: u64 = 60;

/// The reason why a step gave no token, and the time until it is tried again.
#[derive(Debug)]
pub(super) struct Halt {
    pub(super) why: NoToken,
    pub(super) rest: Rest,
}

impl Halt {
    /// A failure that may pass by itself.
    pub(super) fn failed(failure: ExchangeFailure) -> Self {
        Self { why: no_token(failure), rest: Rest::Brief }
    }

    /// A failure that stays until somebody changes something.
    pub(super) fn stays(failure: ExchangeFailure) -> Self {
        Self { why: no_token(failure), rest: Rest::Fixed }
    }

    /// A failure because requests to the server are held back at present.
    pub(super) fn resting(failure: ExchangeFailure) -> Self {
        Self { why: no_token(failure), rest: Rest::Unasked }
    }

    /// A refusal that is passed on.
    pub(super) fn refused(why: Withheld, status: StatusCode, text: impl Into<String>, rest: Rest) -> Self {
        Self { why: withheld(why, reply::sentence(status, text.into())), rest }
    }

    /// The reason in one line, for the log.
    pub(super) fn line(&self) -> String {
        match &self.why {
            NoToken::Refused(refused) => refused.line().into_owned(),
            why @ (NoToken::Failed(_) | NoToken::Overloaded(_)) => why.to_string(),
        }
    }

    /// The status of a refusal.
    pub(super) fn status(&self) -> Option<StatusCode> {
        match &self.why {
            NoToken::Refused(refused) => Some(refused.status),
            NoToken::Failed(_) | NoToken::Overloaded(_) => None,
        }
    }

    /// Whether a server refused it. Otherwise the server failed.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self.why, NoToken::Refused(_))
    }

    /// Whether Google accepts no token of the cluster.
    pub(super) fn is_untrusted(&self) -> bool {
        self.withheld() == Some(Withheld::Untrusted)
    }

    /// Whether the quota of the account's own project is used up.
    pub(super) fn is_of_a_project(&self) -> bool {
        self.withheld() == Some(Withheld::Project)
    }

    fn withheld(&self) -> Option<Withheld> {
        match &self.why {
            NoToken::Refused(refused) => refused.withheld,
            NoToken::Failed(_) | NoToken::Overloaded(_) => None,
        }
    }

    /// The quota is used up: no request is sent before this time has passed.
    pub(super) fn throttled(why: Withheld, text: String, retry_after: Duration) -> Self {
        let mut response = reply::sentence(StatusCode::SERVICE_UNAVAILABLE, text);
        let seconds = retry_after.as_secs().clamp(1, MAX_RETRY_AFTER);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        Self { why: withheld(why, response), rest: Rest::Throttled(retry_after) }
    }
}

/// The reason of the step before.
impl From<NoToken> for Halt {
    fn from(why: NoToken) -> Self {
        Self { why, rest: Rest::None }
    }
}

/// A failure without a refusal.
pub(super) fn no_token(failure: ExchangeFailure) -> NoToken {
    NoToken::from(failure)
}

/// A refusal with a text, as the metadata server's.
pub(super) fn refused(status: StatusCode, text: impl Into<String>) -> NoToken {
    NoToken::Refused(Arc::new(copied(reply::sentence(status, text.into()))))
}

/// The answer while a step rests for this long: its `Retry-After` is not shorter, except that of a refusal without one.
pub(super) fn resting(why: NoToken, left: Duration) -> NoToken {
    let refused = match &why {
        NoToken::Refused(refused) => refused,
        NoToken::Failed(failed) => {
            return match &**failed {
                TokenFailure::Exchange(failure, rests) if *rests < left => {
                    TokenFailure::Exchange(failure.clone(), left).into()
                }
                _ => why,
            };
        }
        NoToken::Overloaded(_) => return why,
    };
    if retry_after(&refused.headers).is_none_or(|named| named >= left) {
        return why;
    }
    let mut headers = refused.headers.clone();
    headers.insert(header::RETRY_AFTER, reply::retry_after(left));
    let Refused { status, ref body, withheld, .. } = **refused;
    NoToken::Refused(Arc::new(Refused { status, headers, body: body.clone(), withheld }))
}

fn withheld(why: Withheld, response: Response<Body>) -> NoToken {
    NoToken::Refused(Arc::new(copied(response).withholding(why)))
}

fn copied(response: Response<Body>) -> Refused {
    let (head, body) = response.into_parts();
    let body = match body {
        Body::Whole(body) => body,
        // Never made here.
        Body::Streamed(_) => bytes::Bytes::new(),
    };
    Refused::copied(head.status, &head.headers, &body)
}
