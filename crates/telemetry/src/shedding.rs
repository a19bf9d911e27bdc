//! [`Shedding`]: counts and logs requests and connections that are refused, closed or delayed under overload.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::IntCounter;
use tokio::time::Instant;

use super::labels::Label;
use super::latency::RequestOutcome;
use super::moment::Moment;
use super::registry::{Counters, Registry};
use super::table;
use super::talkers::{Talker, Talkers};
use crate::labels;

labels! {
    /// The reason for a refusal or closure.
    Shed {
        /// A request was refused, because all seats are taken.
        InFlight = "in_flight",
        /// A hanging request was refused or ended, because the number of watches is limited.
        Hanging = "hanging",
        /// A connection was dropped, because its client had gone before it was accepted.
        Door = "door",
        /// A connection was made to wait for over 100 ms, because its client uses more than its share of the processor.
        CpuShare = "cpu_share",
        /// A new connection was refused, because no other could be closed for it.
        Connections = "connections",
        /// A connection that made no progress was closed for another.
        IdleConnection = "idle_connection",
        /// A request in flight of the client with the most was cut for another client.
        FairShare = "fair_share",
        /// A response was cut because its client did not read it.
        UnreadAnswer = "unread_answer",
        /// A request with a large response was refused, because the memory for large responses is in use.
        LargeAnswers = "large_answers",
        /// A token request was refused, because its client requests too many different tokens.
        Tokens = "tokens",
        /// A connection was closed or reset because memory is short.
        Memory = "memory",
    }
}

/// Interval between log lines about one kind of overload. An overload ends when nothing was shed for this long.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Number of clients shown in a log line.
const LOGGED_TALKERS: usize = 3;

/// An overload of one kind, from the first shed to a minute without any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Overload {
    began: Instant,
    /// Time of the last shed.
    last: Instant,
    logged: Instant,
    /// Sheds since the last log line.
    unlogged: u64,
    total: u64,
}

/// Counts and logs requests and connections that are refused, closed or delayed under overload.
#[derive(Debug)]
pub struct Shedding {
    /// Whose listener it is, for the log.
    listener: &'static str,
    sheds: Counters<Shed>,
    resets: IntCounter,
    overloads: Mutex<[Option<Overload>; Shed::ALL.len()]>,
    talkers: Arc<Talkers>,
}

impl Shedding {
    /// Registers its metrics. Log lines name the busiest of these clients.
    pub fn new(registry: &Registry, talkers: Arc<Talkers>) -> Self {
        Self {
            listener: "pods",
            sheds: registry.counters(&table::SHEDS),
            resets: registry.counter(&table::RESETS),
            overloads: Mutex::new([None; Shed::ALL.len()]),
            talkers,
        }
    }

    /// Of the listener for operators: only logs.
    pub fn of_operators() -> Self {
        Self { listener: "operators", ..Self::default() }
    }

    /// Counts a shed, and logs it at most once a minute for each reason.
    pub fn shed(&self, reason: Shed, peer: Option<SocketAddr>) {
        self.shed_all(reason, 1, peer);
    }

    /// Counts the turns that connections waited because their client uses more than its share of the processor.
    pub fn delayed(&self, turns: u64) {
        if turns > 0 {
            self.shed_all(Shed::CpuShare, turns, None);
        }
    }

    fn shed_all(&self, reason: Shed, number: u64, peer: Option<SocketAddr>) {
        self.sheds.of(reason).inc_by(number);
        let now = Instant::now();
        let due = Overload::goes_on(&mut self.overloads.lock()[reason.index()], number, now);
        let Some(count) = due else { return };
        let talkers = self.talkers.top(LOGGED_TALKERS, Moment::now());
        let described =
            |talker: &Talker| format!("{}: {} requests, {} shed", talker.address, talker.number(), talker.sheds);
        let talkers: Vec<String> = talkers.iter().map(described).collect();
        let what = match reason {
            Shed::CpuShare => {
                "turns of connections come late, because their client uses more than its share of the processor"
            }
            _ => "shedding requests or connections",
        };
        tracing::warn!(
            listener = self.listener,
            reason = reason.label(),
            count,
            peer = peer.map(tracing::field::display),
            last_minute = talkers.join("; "),
            "overloaded: {what}"
        );
    }

    /// Logs the overloads that are over. Must be called every few seconds.
    pub fn end_overloads(&self, now: Instant) {
        let over = Shed::ALL.map(|reason| Overload::ends(&mut self.overloads.lock()[reason.index()], now));
        for (reason, overload) in Shed::ALL.into_iter().zip(over) {
            let Some(Overload { began, last, unlogged, total, .. }) = overload else { continue };
            let seconds = last.saturating_duration_since(began).as_secs();
            let (listener, reason, count) = (self.listener, reason.label(), unlogged);
            tracing::info!(listener, reason, count, total, seconds, "overload is over: nothing was shed for a minute");
        }
    }

    /// Counts a connection that was closed, and notes its client for operators.
    pub fn closed(&self, reason: Shed, peer: SocketAddr) {
        self.talkers.note(peer.ip(), RequestOutcome::Shed, Moment::now());
        self.shed(reason, Some(peer));
    }

    /// Counts a connection that was reset instead of answered.
    pub fn reset(&self) {
        self.resets.inc();
    }

    /// Number of sheds so far for this reason.
    pub fn count(&self, reason: Shed) -> u64 {
        self.sheds.of(reason).get()
    }

    /// Numbers of sheds so far, by reason.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.sheds.all()
    }
}

impl Overload {
    /// Records sheds. If a log line is due, returns the number of sheds since the last one.
    fn goes_on(overload: &mut Option<Self>, number: u64, now: Instant) -> Option<u64> {
        let Some(known) = overload else {
            *overload = Some(Self { began: now, last: now, logged: now, unlogged: 0, total: number });
            return Some(number);
        };
        known.last = now;
        known.total += number;
        known.unlogged += number;
        if now < known.logged + LOG_INTERVAL {
            return None;
        }
        known.logged = now;
        Some(std::mem::take(&mut known.unlogged))
    }

    /// Takes the overload if it is over now.
    fn ends(overload: &mut Option<Self>, now: Instant) -> Option<Self> {
        overload.take_if(|known| now >= known.last + LOG_INTERVAL)
    }
}

/// Not registered anywhere.
impl Default for Shedding {
    fn default() -> Self {
        Self::new(&Registry::default(), Arc::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overload_is_logged_once_a_minute_and_its_end_with_what_was_not_logged_yet() {
        let (mut overload, start) = (None, Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(Overload::goes_on(&mut overload, 1, start), Some(1));
        assert_eq!(Overload::goes_on(&mut overload, 5, after(59)), None);
        assert_eq!(Overload::goes_on(&mut overload, 2, after(60)), Some(7));
        assert_eq!(Overload::goes_on(&mut overload, 3, after(70)), None);
        assert_eq!(Overload::ends(&mut overload, after(129)), None);
        let over = Overload::ends(&mut overload, after(130)).expect("nothing was shed for a minute");
        assert_eq!((over.unlogged, over.total, over.last), (3, 11, after(70)));
        assert_eq!(Overload::ends(&mut overload, after(190)), None, "once");
        assert_eq!(Overload::goes_on(&mut overload, 1, after(200)), Some(1), "another one");
    }
}
