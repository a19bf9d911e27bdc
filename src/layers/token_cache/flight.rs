//! The keeper: the one task of an entry, and the only one to fetch its token.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, sleep_until};

use super::freshness::{self, IDENTITY, UNUSED};
use super::store::{Entry, Found, Kept, Remembered, Store, Token};
use crate::telemetry::metrics::{FlightCause, FlightOutcome};
use crate::tokens::{Fetched, NoToken, TokenKind, TokenSource};

/// Most fetches at once, over all keys.
pub const FETCHES: usize = 16;

/// An unknown account is asked about again after this.
const UNKNOWN_ACCOUNT: Duration = Duration::from_secs(10);

/// Any other refusal, which may be over at any moment, is passed on this long.
const REFUSAL: Duration = Duration::from_secs(1);

/// A failure is the answer for this long, in milliseconds: under a second, so that recovery is seen within one.
const FAILURE: std::ops::Range<u64> = 600..900;

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
        let mut cause = FlightCause::Demand;
        loop {
            let landed = self.fetch().await;
            let (next, outcome) = self.publish(landed, &mut failures);
            self.store.metrics.token_flight(cause, outcome).inc();
            cause = match self.wait(next).await {
                Next::Wait => FlightCause::Demand,
                Next::Look(_) => FlightCause::Refresh,
                Next::End => break,
            };
        }
        self.store.let_go(&self.entry);
    }

    async fn fetch(&self) -> Landed {
        // The semaphore is never closed; if it were, one fetch too many would be the smaller harm.
        let _permit = self.store.fetches.acquire().await;
        // A token's age is counted from before the server was asked: never more is promised than it meant.
        let asked = Instant::now();
        Landed { asked, outcome: self.source.fetch(&self.entry.key).await }
    }

    /// Tells everybody what came of a flight.
    fn publish(&self, landed: Landed, failures: &mut u32) -> (Next, FlightOutcome) {
        let now = Instant::now();
        let mut told = (Next::Wait, FlightOutcome::Failed);
        self.entry.known.send_modify(|known| {
            told = match landed.outcome {
                Ok(fetched) => {
                    *failures = 0;
                    known.failure = None;
                    let kept = kept(fetched, landed.asked);
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
            Next::Wait | Next::End => Instant::now() + UNUSED,
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

fn kept(fetched: Fetched, asked: Instant) -> Kept {
    let life = |seconds: u32| Duration::from_secs(seconds.into());
    match fetched {
        Fetched::Access(token, seconds) => Kept::new(Token::Access(token), asked + life(seconds)),
        Fetched::Identity(jwt, seconds) => Kept::new(Token::Identity(jwt), asked + life(seconds).min(IDENTITY)),
    }
}

fn remembered_for(why: &NoToken) -> Duration {
    match why {
        NoToken::Refused(refused) if refused.status == StatusCode::NOT_FOUND => UNKNOWN_ACCOUNT,
        NoToken::Refused(refused) if !refused.status.is_server_error() => REFUSAL,
        NoToken::Refused(_) | NoToken::Failed(_) => Duration::from_millis(fastrand::u64(FAILURE)),
    }
}
