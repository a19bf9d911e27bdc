//! [`Shedding`]: counts and logs requests and connections that are refused or closed under overload.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus::IntCounter;
use tokio::time::Instant;

use super::labels::{Label, labels};
use super::latency::RequestOutcome;
use super::moment::Moment;
use super::registry::{Counters, Registry};
use super::sampled::SampledBy;
use super::table;
use super::talkers::{Talker, Talkers};

labels! {
    /// Why something was refused or closed.
    Shed {
        /// A request was refused, because all seats are taken.
        InFlight = "in_flight",
        /// A hanging request was refused or ended, because the number of watches is limited.
        Hanging = "hanging",
        /// A connection was dropped, because its client had gone before it was accepted.
        Door = "door",
        /// A connection waited for over 100 ms, because its client uses more than its share of the processor.
        CpuShare = "cpu_share",
        /// A new connection was refused, because no other could give way.
        Connections = "connections",
        /// A connection that made no progress gave way to another.
        IdleConnection = "idle_connection",
        /// A request in flight of the client that holds most was cut for another client.
        FairShare = "fair_share",
        /// A response that its client did not read was cut.
        UnreadAnswer = "unread_answer",
        /// A request with a large response was refused, because the memory for them is in use.
        LargeAnswers = "large_answers",
        /// A token request was refused, because its client requests too many different tokens.
        Tokens = "tokens",
        /// A connection was closed or reset because memory is short.
        Memory = "memory",
    }
}

/// Interval between log lines about overload of one kind.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// There are fewer kinds.
const MAX_KINDS: usize = 64;

/// Clients shown in a log line.
const LOGGED_TALKERS: usize = 3;

/// Counts and logs requests and connections that are refused or closed under overload.
#[derive(Debug)]
pub struct Shedding {
    sheds: Counters<Shed>,
    resets: IntCounter,
    log: SampledBy<&'static str>,
    talkers: Arc<Talkers>,
}

impl Shedding {
    /// Registers its metrics. Log lines name the busiest of these clients.
    pub fn new(registry: &Registry, talkers: Arc<Talkers>) -> Self {
        Self {
            sheds: registry.counters(&table::SHEDS),
            resets: registry.counter(&table::RESETS),
            log: SampledBy::new(LOG_INTERVAL, MAX_KINDS),
            talkers,
        }
    }

    /// Counts what was shed, and logs it at most once a minute for each reason.
    pub fn shed(&self, reason: Shed, peer: Option<SocketAddr>) {
        self.shed_all(reason, 1, peer);
    }

    /// Counts the turns for which connections waited because their client uses more than its share of the processor.
    pub fn delayed(&self, turns: u64) {
        if turns > 0 {
            self.shed_all(Shed::CpuShare, turns, None);
        }
    }

    fn shed_all(&self, reason: Shed, number: u64, peer: Option<SocketAddr>) {
        self.sheds.of(reason).inc_by(number);
        let Some(count) = self.log.due(reason.label(), Instant::now()) else { return };
        let talkers = self.talkers.top(LOGGED_TALKERS, Moment::now());
        let described =
            |talker: &Talker| format!("{}: {} requests, {} shed", talker.address, talker.requests, talker.sheds);
        let talkers: Vec<String> = talkers.iter().map(described).collect();
        tracing::warn!(
            reason = reason.label(),
            count,
            peer = peer.map(tracing::field::display),
            last_minute = talkers.join("; "),
            "overloaded: shedding requests or connections"
        );
    }

    /// Counts a connection that is reset instead of being answered.
    pub fn reset(&self) {
        self.resets.inc();
    }

    /// Counts a newcomer that is reset, because no other connection can give way.
    pub fn reset_newcomer(&self, peer: SocketAddr) {
        self.reset();
        self.talkers.note(peer.ip(), RequestOutcome::Shed, Moment::now());
        self.shed(Shed::Connections, Some(peer));
    }

    /// What was shed so far, by reason.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.sheds.all()
    }
}

/// Not registered anywhere.
impl Default for Shedding {
    fn default() -> Self {
        Self::new(&Registry::default(), Arc::default())
    }
}
