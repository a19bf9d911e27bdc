//! The keeper: the task of a cache entry, and the only one that fetches its token.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::cached_token::{Kept, Token};
use super::entry::Entry;
use super::freshness::{self, Freshness, IDENTITY, UNUSED};
use super::known::{Found, Known, Remembered};
use super::metrics::{FlightCause, FlightOutcome};
use super::store::Store;
use crate::clock::{BootTime, sleep_until};
use crate::error::Overload;
use crate::failure::TokenFailure;
use crate::metadata::token::TokenError;
use crate::tokens::{Fetched, NoToken, TokenKind, TokenSource};

/// An unknown account is asked about again after this.
const UNKNOWN_ACCOUNT: Duration = Duration::from_secs(10);

/// Any other refusal, which may be over at any moment, is passed on this long.
const REFUSAL: Duration = Duration::from_secs(1);

/// A failure is the answer for this long, in milliseconds: under a second, so that recovery is seen within one.
const FAILURE: std::ops::Range<u64> = 600..900;

/// The server was not asked at all, in milliseconds: it costs nothing to try again soon, and the time until then adds to
/// that of the failure which made us leave it alone.
const RESTING: std::ops::Range<u64> = 100..200;

/// An entry that has no token, only a failure that is over, is let go after this if nobody asks. No failure is the answer
/// for longer.
const WITHOUT_TOKEN: Duration = Duration::from_secs(60);

/// An account that does not exist, for tokens that are looked for whether anybody asks or not: the server is asked again
/// after this. A machine gets an account only while it is stopped.
const NO_ACCOUNT: Duration = Duration::from_secs(60);

/// What came of a flight, and when it began.
struct Landed {
    asked: BootTime,
    outcome: Result<Fetched, NoToken>,
}

/// What the keeper does next.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Next {
    /// Looks for a new token, since the one it has will not last.
    Look(BootTime),
    /// Waits to be asked, since it has nothing to keep fresh.
    Wait,
    /// Ends: the entry was evicted, or nobody uses it.
    End,
}

/// Keeps one entry for as long as it is used: fetches its token, and looks for the next in time.
pub(super) struct Keeper<T> {
    pub(super) entry: Arc<Entry>,
    pub(super) store: Arc<Store>,
    pub(super) source: Arc<T>,
}

impl<T: TokenSource> Keeper<T> {
    pub(super) async fn run(self) {
        let mut failures = 0;
        let mut next = Next::Wait;
        loop {
            let cause = match self.wait(next).await {
                Next::Wait => FlightCause::Demand,
                Next::Look(_) => FlightCause::Refresh,
                Next::End => break,
            };
            let Some(landed) = self.fetch(cause).await else {
                if !self.entry.is_own() {
                    break;
                }
                self.entry.landed();
                next = Next::Look(BootTime::now() + freshness::back_off(1, fastrand::f64()));
                continue;
            };
            let outcome;
            (next, outcome) = self.publish(landed, &mut failures);
            self.store.reweigh(&self.entry);
            self.store.metrics.flights.of(cause, outcome).inc();
        }
        self.store.let_go(&self.entry);
    }

    /// Fetches the token, once it is its turn. Nothing if it is not wanted any more by then: the entry was evicted, or all
    /// who waited have left.
    async fn fetch(&self, cause: FlightCause) -> Option<Landed> {
        let flown = async {
            let client = self.entry.flies_for();
            let flight = self.store.flights(cause).begin(client, Arc::clone(&self.entry) as _).await;
            if cause == FlightCause::Demand && !self.entry.is_waited_for() {
                return None;
            }
            // A token's age is counted from before the server was asked: never more is promised than it meant.
            let asked = BootTime::now();
            let outcome = tokio::select! {
                biased;
                // Boxed, since every entry has a keeper, and few of them fetch anything at any moment.
                outcome = Box::pin(self.source.fetch(&self.entry.key, client)) => outcome,
                () = flight.given_up() => Err(NoToken::Overloaded(Overload::Tokens)),
            };
            Some(Landed { asked, outcome })
        };
        let mut flown = pin!(flown);
        loop {
            tokio::select! {
                biased;
                () = self.entry.evicted.notified() => return None,
                landed = &mut flown => return landed,
                () = self.expiry() => {}
            }
        }
    }

    /// Drops the token when it expires. Never ends where there is none.
    async fn expiry(&self) {
        let expires = self.entry.known.borrow().token.as_ref().map(|kept| kept.expires);
        let Some(expires) = expires else { return pending().await };
        sleep_until(freshness::over(expires)).await;
        let now = BootTime::now();
        // Nobody is told: those who wait do so for a flight.
        self.entry.known.send_if_modified(|known| {
            known.drop_expired(now);
            false
        });
        self.store.reweigh(&self.entry);
    }

    /// Tells everybody what came of a flight.
    fn publish(&self, landed: Landed, failures: &mut u32) -> (Next, FlightOutcome) {
        let now = BootTime::now();
        let mut told = (Next::Wait, FlightOutcome::Failed);
        self.entry.known.send_modify(|known| {
            told = match landed.outcome.and_then(|fetched| kept(fetched, landed.asked, now)) {
                Ok(kept) => {
                    *failures = 0;
                    self.learnt(known, kept, now)
                }
                Err(why) => {
                    *failures = failures.saturating_add(1);
                    self.failed(known, why, *failures, now)
                }
            };
        });
        self.entry.landed();
        told
    }

    fn learnt(&self, known: &mut Known, kept: Kept, now: BootTime) -> (Next, FlightOutcome) {
        let next = match self.entry.key.kind {
            TokenKind::Access => Next::Look(freshness::next_look(kept.expires, now, fastrand::f64())),
            // Each should be used once, so none is fetched before it is wanted.
            TokenKind::Identity => Next::Wait,
        };
        let is_same = known.token.as_ref().is_some_and(|old| old.token == kept.token);
        *known = Known { token: Some(Arc::new(kept)), ..Known::default() };
        (next, if is_same { FlightOutcome::Same } else { FlightOutcome::New })
    }

    fn failed(&self, known: &mut Known, why: NoToken, failures: u32, now: BootTime) -> (Next, FlightOutcome) {
        known.drop_expired(now);
        let has_token = known.token.is_some();
        let is_unknown = matches!(&why, NoToken::Refused(refused) if refused.status == StatusCode::NOT_FOUND);
        // A token that the server says cannot be is not lost.
        known.is_lost &= !is_unknown;
        let until = now + remembered_for(&why);
        let back_off = freshness::back_off(failures, fastrand::f64());
        let next = match (has_token, self.entry.is_own()) {
            (true, _) => Next::Look(now + back_off),
            (false, true) if is_unknown => Next::Look(now + NO_ACCOUNT),
            // Not before the failure is over for those who ask.
            (false, true) => Next::Look(until + back_off),
            (false, false) => Next::Wait,
        };
        let outcome = match why {
            NoToken::Refused(_) => FlightOutcome::Refused,
            NoToken::Failed(_) | NoToken::Overloaded(_) => FlightOutcome::Failed,
        };
        known.failure = Some(Remembered { why, until });
        (next, outcome)
    }

    /// Until there is reason for another flight, or for the end. A token that expires meanwhile is dropped.
    async fn wait(&self, next: Next) -> Next {
        let mut until = match next {
            Next::Look(at) => at,
            Next::Wait | Next::End => BootTime::now() + WITHOUT_TOKEN,
        };
        loop {
            tokio::select! {
                biased;
                () = self.entry.demand.notified() => {
                    // It may have been met by the flight that it waited for, or come within a back-off.
                    if matches!(self.entry.known.borrow().find(BootTime::now()), Found::Nothing) {
                        return Next::Wait;
                    }
                }
                () = self.entry.evicted.notified() => return Next::End,
                () = self.expiry() => {}
                () = sleep_until(until) => {
                    match next {
                        Next::Look(_) if self.entry.is_own() || self.entry.unused_for(until) < UNUSED => return next,
                        Next::Wait if self.entry.is_own() => until = BootTime::now() + WITHOUT_TOKEN,
                        _ => return Next::End,
                    }
                }
            }
        }
    }
}

/// What was fetched, with its end; a failure if that has come already, lest everybody who asks began another flight.
fn kept(fetched: Fetched, asked: BootTime, now: BootTime) -> Result<Kept, NoToken> {
    let life = |seconds: u32| Duration::from_secs(seconds.into());
    let kept = match fetched {
        Fetched::Access(token, seconds) => Kept::new(Token::Access(token), asked, asked + life(seconds)),
        Fetched::Identity(jwt, seconds) => Kept::new(Token::Identity(jwt), asked, asked + life(seconds).min(IDENTITY)),
    };
    match freshness::judge(kept.expires, now) {
        Freshness::Expired => Err(TokenFailure::from(TokenError::Life).into()),
        Freshness::Fresh(_) | Freshness::Stale(_) => Ok(kept),
    }
}

fn remembered_for(why: &NoToken) -> Duration {
    match why {
        NoToken::Refused(refused) if refused.status == StatusCode::NOT_FOUND => UNKNOWN_ACCOUNT,
        NoToken::Refused(refused) if !refused.status.is_server_error() => REFUSAL,
        NoToken::Failed(failure) if matches!(**failure, TokenFailure::Resting) => {
            Duration::from_millis(fastrand::u64(RESTING))
        }
        NoToken::Refused(_) | NoToken::Failed(_) | NoToken::Overloaded(_) => {
            Duration::from_millis(fastrand::u64(FAILURE))
        }
    }
}
