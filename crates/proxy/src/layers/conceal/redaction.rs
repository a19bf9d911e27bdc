//! [`Redaction`]: redacts the response to one request, and inserts a pod's accounts.

use std::hash::BuildHasher;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use foldhash::quality::FixedState;
use http::Response;
use http::header::{self, HeaderMap, HeaderValue};
use http::response::Parts;

use super::OwnEmail;
use super::redact::{self, RedactError, Redacted, View};
use crate::error::Error;
use crate::layers::leaves::Leaf;
use crate::policy::{Cause, Concealed, Policy, Subject};
use crate::reply::{self, Body};
use crate::room::{Account, Amount, Charge, SMALL_BYTES, SMALL_BYTES_WITHOUT_SEAT, Whole};
use crate::upstream::MAX_BUFFERED_BYTES;
use protocol::metadata::own_accounts::{self, Format};
use protocol::metadata::query::Param;
use protocol::metadata::{MetadataPath, Principal, Query, Request};

/// Reason why a tree is not cached: it is too large, or no request would get it.
pub(super) const NOT_KEPT: Error = Error::TooLarge(MAX_BUFFERED_BYTES);

/// Redacts the response to one request.
pub(super) struct Redaction {
    account: Account,
    /// `None` in audit mode: only the node's accounts are concealed.
    policy: Option<Arc<Policy>>,
    path: MetadataPath,
    /// `None` for a listing.
    format: Option<Format>,
    /// Whether the response comes after a change, perhaps in hours.
    hangs: bool,
    /// Maximum size of a response that needs no room, in bytes.
    small: usize,
    /// Whether the upstream's `ETag` is passed on: the client may send it back, to wait for the next change.
    keeps_etag: bool,
    /// A pod's own accounts are inserted in place of the node's.
    principal: Principal,
    /// `None` if pods have no accounts.
    emails: Option<OwnEmail>,
}

impl Redaction {
    /// `request` has the query as trimmed by the policy. No part of the connection's read buffer is kept, because the
    /// request may wait for a long time.
    pub(super) fn new(
        account: Account,
        policy: Option<Arc<Policy>>,
        request: &Request,
        emails: Option<OwnEmail>,
    ) -> Self {
        let hangs = request.hangs();
        let has_no_seat = hangs || Leaf::is_kept_tree(request);
        // A listing cannot be waited for.
        let keeps_etag =
            request.query.is_recursive() && policy.as_ref().is_none_or(|policy| policy.passes(Param::WaitForChange));
        Self {
            account,
            policy,
            path: request.path.detached(),
            format: format_of(&request.query),
            hangs,
            small: if has_no_seat { SMALL_BYTES_WITHOUT_SEAT } else { SMALL_BYTES },
            keeps_etag,
            principal: request.principal,
            emails,
        }
    }

    /// Redacts the response to a client.
    pub(super) async fn answer(
        self,
        answer: impl Future<Output = Result<Response<Body>, Error>>,
    ) -> Result<Response<Body>, Error> {
        let answer = pin!(answer);
        let (answer, own) = if self.hangs {
            // The pod may have another account by then.
            (answer.await, self.own_entry().await)
        } else {
            tokio::join!(answer, self.own_entry())
        };
        let answer = answer?;
        // Every success may contain values: 200, and also 203 and 206, which some servers may send instead.
        if !answer.status().is_success() {
            // The proxy's own messages name no values.
            return Ok(if reply::is_local(&answer) { answer } else { without_body(&answer) });
        }
        let (mut head, redacted, charge) = self.redacted(answer, own.len() + ",".len()).await?;
        let shown = self.with_entry(redacted, &own);
        self.adjust(&mut head.headers, &shown);
        Ok(Response::from_parts(head, Body::Whole(charged(shown, charge))))
    }

    /// Redacts a tree that is cached, and redacted again for each client. That would judge renumbered items by their
    /// new numbers, so a renumbered tree is not cached.
    pub(super) async fn kept(self, answer: Response<Body>) -> Result<Response<Body>, Error> {
        if !answer.status().is_success() {
            return Ok(answer);
        }
        let redacted = match self.redacted(answer, 0).await {
            Ok((head, redacted, _)) if !redacted.is_renumbered => Response::from_parts(head, redacted.bytes),
            Ok(_) | Err(Error::Concealed(_) | Error::TooLarge(_)) => return Err(NOT_KEPT),
            Err(error) => return Err(error),
        };
        if redacted.body().len() > MAX_BUFFERED_BYTES {
            return Err(NOT_KEPT);
        }
        Ok(redacted.map(|bytes| Body::Whole(bytes.into())))
    }

    /// Redacts a response. `more`: size of the entry to insert, in bytes.
    async fn redacted(&self, answer: Response<Body>, more: usize) -> Result<(Parts, Redacted, Option<Charge>), Error> {
        let (head, body) = answer.into_parts();
        // The room is never larger than this.
        let made = |bytes| (self.max_bytes(bytes) + more).min(self.account.largest());
        let Whole { bytes, charge } = self.account.read(body, self.small, made).await?;
        let redacted = self.redact(&bytes).map_err(|error| self.refusal(error))?;
        Ok((head, redacted, charge))
    }

    /// Maximum size of the redacted response, in bytes, for a response of `bytes`. Text repeats the path before each
    /// value.
    fn max_bytes(&self, bytes: usize) -> usize {
        match self.format {
            None => bytes + "\n".len(),
            Some(Format::Json) => bytes,
            Some(Format::Text) => bytes.saturating_mul(4).min(self.account.largest()),
        }
    }

    fn redact(&self, bytes: &[u8]) -> Result<Redacted, RedactError> {
        let subject = Subject::new(&self.path);
        let directory = subject.as_str();
        let view = View { policy: self.policy.as_deref(), has_accounts: self.principal == Principal::Node };
        match self.format {
            None => {
                let entries = std::str::from_utf8(bytes).map_err(|_| RedactError::Unreadable)?;
                let bytes = redact::listing(view, directory, entries).into_bytes();
                Ok(Redacted { bytes, place: None, is_renumbered: false })
            }
            Some(Format::Json) => redact::json(view, directory, bytes),
            Some(Format::Text) => redact::text(view, directory, bytes, self.max_bytes(bytes.len())),
        }
    }

    /// The entry with the pod's own accounts, or an empty string.
    async fn own_entry(&self) -> String {
        let Some(format) = self.format.filter(|_| self.principal != Principal::Node) else {
            return String::new();
        };
        // Relative to the tree.
        let path =
            if Subject::new(&self.path).as_str().is_empty() { "instance/service-accounts" } else { "service-accounts" };
        let email = match (self.principal, &self.emails) {
            (Principal::Workload(id), Some(email_of)) => email_of(id).await,
            _ => None,
        };
        own_accounts::entry(email.as_deref(), format, path)
    }

    /// Inserts an entry in its place, if the tree has one.
    fn with_entry(&self, redacted: Redacted, entry: &str) -> Vec<u8> {
        let Redacted { mut bytes, place, .. } = redacted;
        let Some(place) = place.filter(|_| !entry.is_empty()) else { return bytes };
        let comma = if self.format == Some(Format::Json) && !place.is_first { "," } else { "" };
        bytes.reserve_exact(comma.len() + entry.len());
        bytes.splice(place.at..place.at, comma.bytes().chain(entry.bytes()));
        bytes
    }

    /// Adapts the headers to the visible part. The `ETag` of the whole tree reveals changes of concealed values, which only a
    /// client that may wait for them learns.
    fn adjust(&self, headers: &mut HeaderMap, shown: &[u8]) {
        headers.insert(header::CONTENT_LENGTH, shown.len().into());
        if self.format == Some(Format::Text) {
            headers.insert(header::CONTENT_TYPE, reply::APPLICATION_TEXT);
        }
        if let Some(etag) = headers.get_mut(header::ETAG).filter(|_| !self.keeps_etag) {
            let text = format!("{:016x}", FixedState::default().hash_one(shown));
            *etag = HeaderValue::try_from(text).expect("hexadecimal digits");
        }
    }

    fn refusal(&self, error: RedactError) -> Error {
        match (error, &self.policy) {
            (RedactError::Unreadable, Some(policy)) => {
                Concealed::new(policy, &self.path, &Query::default(), Cause::Unreadable).into()
            }
            (RedactError::Unreadable, None) => Error::IncludesAccounts,
            (RedactError::TooLarge, _) => Error::TooLarge(self.account.largest()),
        }
    }
}

/// The format of the tree that a query requests. `None` if it requests a listing.
fn format_of(query: &Query) -> Option<Format> {
    let format = if query.value(Param::Alt) == Some("text") { Format::Text } else { Format::Json };
    query.is_recursive().then_some(format)
}

/// Attaches the charge to a redacted response, reduced to the size of that response.
fn charged(mut redacted: Vec<u8>, charge: Option<Charge>) -> Bytes {
    let Some(mut charge) = charge else { return redacted.into() };
    redacted.shrink_to_fit();
    charge.reduce_to(Amount { sent: 0, made: redacted.len() });
    charge.hold(redacted)
}

/// Replaces the body of an unsuccessful response by a message. The body is not a tree, so values in it would not be
/// found. Clients do not need it: the status says everything that the server's error pages say.
fn without_body(answer: &Response<Body>) -> Response<Body> {
    let status = answer.status();
    let sentence = format!(
        "The metadata server answered {}. Its text is left out, because the policy redacts this directory.\n",
        status.as_u16()
    );
    let mut without = reply::sentence(status, sentence);
    let retry_after = answer.headers().get(header::RETRY_AFTER).filter(|seconds| is_number(seconds));
    if let Some(seconds) = retry_after {
        without.headers_mut().insert(header::RETRY_AFTER, seconds.clone());
    }
    without
}

/// Whether a header is a number of seconds, which cannot contain a concealed value.
fn is_number(value: &HeaderValue) -> bool {
    value.len() <= 6 && value.as_bytes().iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use base::hook::Hook;

    use super::*;
    use crate::room::Room;

    #[test]
    fn a_redacted_response_holds_only_the_room_of_its_own_size() {
        let room = Room::new(10_000, Hook::new(Arc::new(|_| false)));
        let charge = room.account(None).try_take(Amount { sent: 2_000, made: 2_000 });
        let redacted = charged(vec![b'x'; 100], charge);
        assert_eq!(room.used(), redacted.len());
    }
}
