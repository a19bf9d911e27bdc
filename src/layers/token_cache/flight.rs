//! The keeper: the one task of an entry, and the only one to fetch its token.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, sleep_until};

use super::freshness::{self, Freshness, IDENTITY, UNUSED};
use super::store::{Entry, Found, Kept, Remembered, Store, Token};
use crate::metadata::token::TokenError;
use crate::telemetry::metrics::{FlightCause, FlightOutcome};
use crate::tokens::{Fetched, NoToken, TokenKind, TokenSource};
use crate::upstream::Failure;

/// Most fetches at once, over all keys.
pub const FETCHES: usize = 16;

/// Of these, so many at the most for tokens that somebody waits for: the others are for renewing tokens that are in use,
/// however many new ones are asked for.
pub(super) const DEMANDED: usize = 12;

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

/// What came of a flight, and when it began.
struct Landed {
    asked: Instant,
    outcome: Result<Fetched, NoToken>,
}

/// What the keeper does next.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Next {
    /// Looks for a new token, since the one it has will not last.
    Look(Instant),
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
            let Some(landed) = self.fetch(cause).await else { break };
            let outcome;
            (next, outcome) = self.publish(landed, &mut failures);
            self.store.metrics.token_flight(cause, outcome).inc();
        }
        self.store.let_go(&self.entry);
    }

    /// Fetches the token, once there is room for another fetch. Nothing if it is not wanted any more by then: the entry was
    /// evicted, or all who waited have left.
    async fn fetch(&self, cause: FlightCause) -> Option<Landed> {
        let room = async {
            // The semaphores are never closed; if they were, one fetch too many would be the smaller harm.
            let demanded = match cause {
                FlightCause::Demand => self.store.demanded.acquire().await.ok(),
                FlightCause::Refresh => None,
            };
            (demanded, self.store.fetches.acquire().await.ok())
        };
        let _permits = tokio::select! {
            biased;
            permits = room => permits,
            () = self.entry.evicted.notified() => return None,
        };
        if cause == FlightCause::Demand && self.entry.known.receiver_count() == 0 {
            return None;
        }
        // A token's age is counted from before the server was asked: never more is promised than it meant.
        let asked = Instant::now();
        Some(Landed { asked, outcome: self.source.fetch(&self.entry.key).await })
    }

    /// Tells everybody what came of a flight.
    fn publish(&self, landed: Landed, failures: &mut u32) -> (Next, FlightOutcome) {
        let now = Instant::now();
        let mut told = (Next::Wait, FlightOutcome::Failed);
        self.entry.known.send_modify(|known| {
            told = match landed.outcome.and_then(|fetched| kept(fetched, landed.asked, now)) {
                Ok(kept) => {
                    *failures = 0;
                    known.failure = None;
                    let next = match self.entry.key.kind {
                        TokenKind::Access => Next::Look(freshness::next_look(kept.expires, now, fastrand::f64())),
                        // Each should be used once, so none is fetched before it is wanted.
                        TokenKind::Identity => Next::Wait,
                    };
                    let is_same = known.token.as_ref().is_some_and(|old| old.token == kept.token);
                    known.token = Some(Arc::new(kept));
                    (next, if is_same { FlightOutcome::Same } else { FlightOutcome::New })
                }
                Err(why) => {
                    *failures += 1;
                    let has_token = matches!(known.find(now), Found::Token(..));
                    let refused = matches!(why, NoToken::Refused(_));
                    known.failure = Some(Remembered { until: now + remembered_for(&why), why });
                    let next = Next::Look(now + freshness::back_off(*failures, fastrand::f64()));
                    (
                        if has_token { next } else { Next::Wait },
                        if refused { FlightOutcome::Refused } else { FlightOutcome::Failed },
                    )
                }
            };
        });
        self.entry.landed();
        told
    }

    /// Until there is reason for another flight, or for the end.
    async fn wait(&self, next: Next) -> Next {
        let until = match next {
            Next::Look(at) => at,
            Next::Wait | Next::End => Instant::now() + WITHOUT_TOKEN,
        };
        loop {
            tokio::select! {
                biased;
                () = self.entry.demand.notified() => {
                    // It may have been met by the flight that it waited for, or come within a back-off.
                    if matches!(self.entry.known.borrow().find(Instant::now()), Found::Nothing) {
                        return Next::Wait;
                    }
                }
                () = self.entry.evicted.notified() => return Next::End,
                () = sleep_until(until) => {
                    let is_used = self.entry.unused_for(until) < UNUSED;
                    return if is_used && next != Next::Wait { next } else { Next::End };
                }
            }
        }
    }
}

/// What was fetched, with its end; a failure if that has come already, lest everybody who asks began another flight.
fn kept(fetched: Fetched, asked: Instant, now: Instant) -> Result<Kept, NoToken> {
    let life = |seconds: u32| Duration::from_secs(seconds.into());
    let kept = match fetched {
        Fetched::Access(token, seconds) => Kept::new(Token::Access(token), asked, asked + life(seconds)),
        Fetched::Identity(jwt, seconds) => Kept::new(Token::Identity(jwt), asked, asked + life(seconds).min(IDENTITY)),
    };
    match freshness::judge(kept.expires, now) {
        Freshness::Expired => Err(Failure::NotAToken(TokenError::Life).into()),
        Freshness::Fresh(_) | Freshness::Stale(_) => Ok(kept),
    }
}

fn remembered_for(why: &NoToken) -> Duration {
    match why {
        NoToken::Refused(refused) if refused.status == StatusCode::NOT_FOUND => UNKNOWN_ACCOUNT,
        NoToken::Refused(refused) if !refused.status.is_server_error() => REFUSAL,
        NoToken::Failed(failure) if matches!(**failure, Failure::Resting) => {
            Duration::from_millis(fastrand::u64(RESTING))
        }
        NoToken::Refused(_) | NoToken::Failed(_) => Duration::from_millis(fastrand::u64(FAILURE)),
    }
}
