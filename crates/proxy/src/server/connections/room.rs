//! Makes room for a connection or its memory: which other connection is closed for it, and when it is to ask again.

use std::time::Duration;

use tokio::time::Instant;

use super::open::{Asker, Asks, Open, Resource};
use super::turned_away::{AFTER_GIVING_WAY, AFTER_REFUSAL};
use super::{Connections, MIN_CLOSE_AGE, WaitFor};
use crate::shares::Availability;
use telemetry::shedding::Shed;

/// A newcomer without patience waits for a turn of the event loop only if the last one is longer ago than this.
/// Otherwise each newcomer of a flood would take a turn, and the queue would grow.
pub(super) const MIN_READING_INTERVAL: Duration = Duration::from_millis(5);

/// Why there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum NoRoom {
    /// Only a very recent connection could give way: try again shortly.
    Later,
    /// No connection gives way.
    Refused,
}

impl Connections {
    /// Closes other connections until there is room, by the rule of the module [`connections`](super).
    pub(super) fn make_room(
        &self,
        open: &mut Open,
        resource: Resource,
        asks: Asks,
        amount: usize,
        wait_for: WaitFor,
    ) -> Result<(), NoRoom> {
        let mut freed = 0;
        let is_newcomer = asks.number().is_none();
        loop {
            let room = open.room(resource, asks, amount);
            let victim = match room {
                Availability::None if is_newcomer && open.turned_away.includes(asks.client, Instant::now()) => {
                    return Err(NoRoom::Refused);
                }
                Availability::Free => return Ok(()),
                // This amount was taken from the other client. The part that newcomers leave free need not be restored
                // as well: after a flood, dozens of connections would be cut for the first one.
                Availability::From(_) if freed >= amount => return Ok(()),
                Availability::From(largest) => open.victim_of(largest),
                Availability::FromItself => open.useless_but(asks.number(), Some(asks.client)),
                Availability::None => open.victim_among_equals(asks),
            };
            let Some(victim) = victim else { return Err(Self::without_victim(open, room, asks, wait_for)) };
            // A request takes precedence over a connection of the largest client that has sent none. A newcomer waits
            // only until bytes that have arrived are read: it cannot wait until the largest client is silent.
            let takes = matches!(room, Availability::From(_));
            let is_urgent = takes && !is_newcomer;
            let is_young = !takes && !victim.is_useless && victim.since.elapsed() < MIN_CLOSE_AGE;
            let must_wait = match wait_for {
                WaitFor::Silence if is_young => true,
                _ if is_young => return Err(NoRoom::Refused),
                WaitFor::Silence if takes || !victim.is_useless => victim.since > open.read_until,
                WaitFor::Silence => victim.since + open.protection > open.read_until,
                WaitFor::Reading => victim.since > open.read_until && open.read_until.elapsed() > MIN_READING_INTERVAL,
                WaitFor::Nothing => false,
            };
            if must_wait && !is_urgent {
                return Err(NoRoom::Later);
            }
            freed += victim.holds(resource);
            self.cut(open, victim.number, Some(if victim.is_useless { Shed::IdleConnection } else { Shed::FairShare }));
            if room == Availability::None && !victim.is_useless {
                open.turned_away.add(victim.client, Instant::now(), AFTER_GIVING_WAY);
            }
        }
    }

    /// What an asker gets if no connection can be closed for it.
    fn without_victim(open: &mut Open, room: Availability, asks: Asks, wait_for: WaitFor) -> NoRoom {
        let Asker::Newcomer(arrived) = asks.by else { return NoRoom::Refused };
        // Bytes from the client's own connections are read first. Then some of these connections end, or can be
        // closed. A client without connections waits until another's can be closed.
        let holds_nothing = open.holds_nothing_else(asks);
        let waits_for_turns = open.awaits_turn(asks.client) && wait_for != WaitFor::Nothing;
        if waits_for_turns || holds_nothing && wait_for == WaitFor::Silence {
            return NoRoom::Later;
        }
        if room == Availability::None && !holds_nothing {
            // A throttled process may see a client's next connection before the end of the last one.
            let must_read = match wait_for {
                WaitFor::Silence => arrived > open.read_until,
                WaitFor::Reading => open.read_until.elapsed() > MIN_READING_INTERVAL,
                WaitFor::Nothing => false,
            };
            if must_read {
                return NoRoom::Later;
            }
            open.turned_away.add(asks.client, Instant::now(), AFTER_REFUSAL);
        }
        NoRoom::Refused
    }

    pub(super) fn make_memory(&self, open: &mut Open, asks: Asks, bytes: usize) -> bool {
        self.make_room(open, Resource::Memory, asks, bytes, WaitFor::Silence).is_ok()
    }
}
