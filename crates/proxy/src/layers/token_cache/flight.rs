//! [`Keeper`]: the task of a cache entry. Only it fetches the entry's token.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::cached_token::CachedToken;
use super::entry::Entry;
use super::freshness::{self, Freshness, MAX_IDENTITY_AGE, MAX_UNUSED};
use super::known::{Known, Lookup};
use super::metrics::{FlightCause, FlightOutcome};
use super::store::Store;
use crate::error::Overload;
use crate::failure::TokenFailure;
use crate::flights::Waited;
use crate::single_flight::Remembered;
use crate::tokens::{Fetched, NoToken, Token, TokenKey, TokenKind, TokenSource, Urgency};
use base::clock::{BootTime, sleep_until};
use protocol::metadata::Principal;

/// Time for which a 404 (an unknown account) is the answer.
const UNKNOWN_ACCOUNT_TTL: Duration = Duration::from_secs(10);

/// Time for which any other refusal is the answer. The cause may disappear at any moment.
const REFUSAL_TTL: Duration = Duration::from_secs(1);

/// Time for which a failure is the answer, in milliseconds: less than a second, so that recovery is noticed within one.
const FAILURE_TTL_MILLIS: std::ops::Range<u64> = 600..900;

/// The same, in milliseconds, after the circuit breaker let no fetch through, or a step of a workload's exchange
/// failed. Both have delays of their own: a retry costs nothing, and this time adds to their delays.
const RESTING_TTL_MILLIS: std::ops::Range<u64> = 100..200;

/// Time without requests after which an entry without a token is removed. No failure is the answer for longer.
const NO_TOKEN_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time that a request waits for a token: it came at most this long before the token was issued.
const MAX_WAITED: Duration = Duration::from_secs(60);

/// Interval between fetches of the proxy's own token while the account does not exist. A machine gets an account only
/// while it is stopped.
const NO_ACCOUNT_RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// The result of a flight, its cause, and the time of the request to the server.
struct Landed {
    cause: FlightCause,
    asked: BootTime,
    outcome: Result<Fetched, NoToken>,
}

/// The keeper's next step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Next {
    /// Fetch a new token at this time, whether or not it is requested.
    Refresh(BootTime),
    /// Wait for a request, because there is no token to keep fresh.
    Wait,
    /// End: the entry was evicted, or is no longer used.
    End,
}

impl Next {
    /// What a keeper does that has just got this token.
    pub(super) fn after(key: &TokenKey, token: &CachedToken, now: BootTime) -> Self {
        match (key.kind, key.principal) {
            // Each identity token should be used only once, so none is fetched in advance.
            (TokenKind::Identity, _) => Self::Wait,
            (TokenKind::Access, Principal::Node) => {
                Self::Refresh(freshness::next_refresh(token.expires, now, fastrand::f64()))
            }
            (TokenKind::Access, Principal::Workload(_) | Principal::Unknown) => {
                Self::Refresh(freshness::next_renewal(token.since, token.expires, now, fastrand::f64()))
            }
        }
    }
}

/// Maintains one entry while it is in use: fetches its token, and refreshes it before it expires.
pub(super) struct Keeper<T> {
    pub(super) entry: Arc<Entry>,
    pub(super) store: Arc<Store>,
    pub(super) source: Arc<T>,
}

impl<T: TokenSource> Keeper<T> {
    /// Begins with [`Next::Wait`] if the entry has no token.
    pub(super) async fn run(self, mut next: Next) {
        let mut failures = 0;
        loop {
            let cause = match self.wait(next).await {
                Next::Wait => FlightCause::Demand,
                Next::Refresh(_) => FlightCause::Refresh,
                Next::End => break,
            };
            let Some(landed) = self.fetch(cause).await else {
                next = match (self.entry.is_own(), self.entry.known.borrow().token.is_some()) {
                    (true, _) => Next::Refresh(BootTime::now() + freshness::BACK_OFF.wait(1, fastrand::f64())),
                    // It may be wanted while its source fails. An evicted entry ends.
                    (false, true) => Next::Wait,
                    (false, false) => break,
                };
                self.entry.landed();
                continue;
            };
            let cause = landed.cause;
            let outcome;
            (next, outcome) = self.publish(landed, &mut failures);
            self.store.reweigh(&self.entry);
            self.store.metrics.flights.of(cause, outcome).inc();
        }
    }

    /// Fetches the token as soon as the flight may begin. Returns `None` if it is no longer needed by then: the entry
    /// was evicted, or no request waits for it.
    async fn fetch(&self, cause: FlightCause) -> Option<Landed> {
        let mut flown = pin!(self.fly(cause));
        loop {
            tokio::select! {
                biased;
                () = self.entry.evicted.notified() => {
                    // For `wait`: the proxy's own entries go on without a flight.
                    self.entry.evicted.notify_one();
                    return None;
                }
                landed = &mut flown => return landed,
                () = self.expiry() => {}
            }
        }
    }

    /// A refresh becomes a demand when a client finds no token: refreshes have time, and wait for much else.
    async fn fly(&self, mut cause: FlightCause) -> Option<Landed> {
        loop {
            let (client, principal) = (self.entry.flies_for(), self.entry.key.principal);
            let flight = tokio::select! {
                biased;
                flight = self.store.flights(cause, principal).begin(client, Arc::clone(&self.entry) as _) => flight,
                () = self.demanded(cause) => {
                    cause = FlightCause::Demand;
                    continue;
                }
            };
            if cause == FlightCause::Demand && !self.entry.is_waited_for() {
                return None;
            }
            // The lifetime counts from before the request, so that it is never overestimated.
            let asked = BootTime::now();
            let urgency = match cause {
                FlightCause::Demand => Urgency::Demanded,
                FlightCause::Refresh if self.is_needed_soon(asked) => Urgency::Soon,
                FlightCause::Refresh => Urgency::Background,
            };
            let outcome = tokio::select! {
                biased;
                // Boxed, because every entry has a keeper, and few of them are fetching at any moment.
                outcome = Box::pin(self.source.fetch(&self.entry.key, client, urgency)) => outcome,
                () = flight.given_up() => {
                    if !self.entry.no_other_client_waits(client) {
                        // It joined after that was decided.
                        continue;
                    }
                    Err(NoToken::Overloaded(Overload::Tokens))
                }
                // The metadata server is asked at once, however urgent it is, and is not asked again.
                () = self.demanded(cause), if principal != Principal::Node => {
                    cause = FlightCause::Demand;
                    continue;
                }
            };
            return Some(Landed { cause, asked, outcome });
        }
    }

    /// Resolves when a client waits for a flight that is a refresh. While there is a token, no client waits.
    async fn demanded(&self, cause: FlightCause) {
        match cause {
            FlightCause::Demand => pending().await,
            FlightCause::Refresh => self.entry.demand.notified().await,
        }
    }

    /// Whether the token ends soon, and was requested since it was issued: clients are about to request the next one.
    fn is_needed_soon(&self, now: BootTime) -> bool {
        let known = self.entry.known.borrow();
        known.token.as_ref().is_some_and(|token| {
            let ends_soon = token.expires <= now + freshness::REFRESH_BEFORE_EXPIRY;
            ends_soon && self.entry.unused_for(now) < now.since(token.since) + MAX_WAITED
        })
    }

    /// Drops the token when it expires. Never resolves if there is none.
    async fn expiry(&self) {
        let expires = self.entry.known.borrow().token.as_ref().map(|token| token.expires);
        let Some(expires) = expires else { return pending().await };
        sleep_until(freshness::expired_at(expires)).await;
        let now = BootTime::now();
        // Receivers are not notified, because they wait for a flight.
        self.entry.known.send_if_modified(|known| {
            known.drop_expired(now);
            false
        });
        self.store.reweigh(&self.entry);
    }

    /// Publishes the result of a flight to all waiting requests.
    fn publish(&self, landed: Landed, failures: &mut u32) -> (Next, FlightOutcome) {
        let now = BootTime::now();
        let mut result = (Next::Wait, FlightOutcome::Failed);
        self.entry.known.send_modify(|known| {
            result = match landed.outcome.and_then(|fetched| cached(fetched, landed.asked, now)) {
                Ok(token) => {
                    *failures = 0;
                    self.succeeded(known, token, now)
                }
                Err(why) => {
                    *failures = failures.saturating_add(1);
                    self.failed(known, why, *failures, now)
                }
            };
        });
        self.entry.landed();
        result
    }

    /// Stores a fetched token.
    fn succeeded(&self, known: &mut Known, token: CachedToken, now: BootTime) -> (Next, FlightOutcome) {
        let is_same = known.token.as_ref().is_some_and(|old| old.token == token.token);
        let next = Next::after(&self.entry.key, &token, now);
        *known = Known { token: Some(Arc::new(token)), ..Known::default() };
        (next, if is_same { FlightOutcome::Same } else { FlightOutcome::New })
    }

    /// Stores a failure.
    fn failed(&self, known: &mut Known, why: NoToken, failures: u32, now: BootTime) -> (Next, FlightOutcome) {
        known.drop_expired(now);
        let has_token = known.token.is_some();
        let is_unknown = matches!(&why, NoToken::Refused(refused) if refused.status == StatusCode::NOT_FOUND);
        let until = match &why {
            // It was given up for another client's, which says nothing to those who ask later.
            NoToken::Overloaded(_) => now,
            _ => now + remembered_for(&why),
        };
        let back_off = freshness::BACK_OFF.wait(failures, fastrand::f64());
        let is_identity = self.entry.key.kind == TokenKind::Identity;
        // An old identity token is served only during an outage, so only then is the next one fetched in advance.
        let is_renewed = has_token && (!is_identity || why.is_outage());
        let next = match (is_renewed, self.entry.is_own()) {
            (true, _) => Next::Refresh(now + back_off),
            (false, true) if is_unknown => Next::Refresh(now + NO_ACCOUNT_RETRY_INTERVAL),
            // Not while the failure is still the answer to requests.
            (false, true) => Next::Refresh(until + back_off),
            (false, false) => Next::Wait,
        };
        let outcome = match why {
            NoToken::Refused(_) => FlightOutcome::Refused,
            NoToken::Failed(_) | NoToken::Overloaded(_) => FlightOutcome::Failed,
        };
        known.failure = Some(Remembered::until(why, until));
        (next, outcome)
    }

    /// Waits until there is a reason for another flight, or to end. Drops a token that expires meanwhile.
    async fn wait(&self, next: Next) -> Next {
        let mut until = match next {
            Next::Refresh(at) => at,
            // A workload's identity token is kept until it expires, in case its source fails.
            Next::Wait | Next::End => {
                let until = BootTime::now() + NO_TOKEN_TIMEOUT;
                self.entry.known.borrow().token.as_ref().map_or(until, |token| until.max(token.expires))
            }
        };
        loop {
            tokio::select! {
                biased;
                () = self.entry.demand.notified() => {
                    // The last flight may have met the demand, or the request arrived during a back-off.
                    if matches!(self.entry.known.borrow().find(BootTime::now()), Lookup::Nothing) {
                        return Next::Wait;
                    }
                }
                () = self.entry.evicted.notified() => return Next::End,
                () = self.expiry() => {}
                () = sleep_until(until) => {
                    match next {
                        Next::Refresh(_) if self.entry.is_own() || self.entry.unused_for(until) < MAX_UNUSED => return next,
                        Next::Wait if self.entry.is_own() => until = BootTime::now() + NO_TOKEN_TIMEOUT,
                        _ => return Next::End,
                    }
                }
            }
        }
    }
}

/// However it ends: without a keeper, an entry would never answer again, also after a panic in the source.
impl<T> Drop for Keeper<T> {
    fn drop(&mut self) {
        self.store.forget(&self.entry);
    }
}

/// The fetched token with its expiry. Fails if the token has already expired, so that not every request begins another
/// flight.
fn cached(fetched: Fetched, asked: BootTime, now: BootTime) -> Result<CachedToken, NoToken> {
    let life = |seconds: u32| Duration::from_secs(seconds.into());
    let token = match fetched {
        Fetched::Access(token, seconds) => CachedToken::new(Token::Access(token), asked, asked + life(seconds)),
        Fetched::Identity(jwt, seconds) => {
            CachedToken::new(Token::Identity(jwt), asked, asked + life(seconds).min(MAX_IDENTITY_AGE))
        }
        Fetched::Own { token: token @ Token::Access(_), asked, expires } => CachedToken::new(token, asked, expires),
        // Google's servers are farther away than the node's, and an old token is better than none.
        Fetched::Own { token: token @ Token::Identity(_), asked, expires } => {
            CachedToken::new(token, asked, expires).good_until(asked + MAX_IDENTITY_AGE)
        }
    };
    match freshness::judge(token.expires, now) {
        Freshness::Expired => Err(TokenFailure::Expired.into()),
        Freshness::Fresh(_) | Freshness::Stale(_) => Ok(token),
    }
}

fn remembered_for(why: &NoToken) -> Duration {
    match why {
        NoToken::Refused(refused) if refused.status == StatusCode::NOT_FOUND => UNKNOWN_ACCOUNT_TTL,
        NoToken::Refused(refused) if !refused.status.is_server_error() => REFUSAL_TTL,
        NoToken::Failed(failure) if matches!(**failure, TokenFailure::Resting | TokenFailure::Exchange(..)) => {
            Duration::from_millis(fastrand::u64(RESTING_TTL_MILLIS))
        }
        NoToken::Refused(_) | NoToken::Failed(_) | NoToken::Overloaded(_) => {
            Duration::from_millis(fastrand::u64(FAILURE_TTL_MILLIS))
        }
    }
}
