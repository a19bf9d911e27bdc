//! [`TurnedAway`]: clients that recently gave way to others or were refused.
//!
//! With more clients than places, each client that lost its place could immediately take another's. A pod with hundreds
//! of addresses would keep the proxy busy with nothing else, and each attempt costs a search through all connections.
//! So for a while such a client gets free places only.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::shares::Client;

/// Time in which a client does not take another's place after its only request in flight gave way.
pub(super) const AFTER_GIVING_WAY: Duration = Duration::from_secs(5);

/// The same after a client that already holds something was refused more. Client libraries retry after about a second.
pub(super) const AFTER_REFUSAL: Duration = Duration::from_secs(1);

/// Maximum number of remembered clients (64 KiB). Others may take places as before.
const MAX_CLIENTS: usize = 1024;

/// Time until which each client gets free places only.
#[derive(Debug, Default)]
pub(super) struct TurnedAway(HashMap<Client, Instant>);

impl TurnedAway {
    /// Records that this client gave way or was refused.
    pub(super) fn add(&mut self, client: Client, now: Instant, duration: Duration) {
        if self.0.len() >= MAX_CLIENTS && !self.0.contains_key(&client) {
            self.0.retain(|_, until| *until > now);
            if self.0.len() >= MAX_CLIENTS {
                return;
            }
        }
        let until = self.0.entry(client).or_insert(now);
        *until = (now + duration).max(*until);
    }

    /// Whether this client gets free places only.
    pub(super) fn includes(&self, client: Client, now: Instant) -> bool {
        self.0.get(&client).is_some_and(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn pod(number: u32) -> IpAddr {
        Ipv4Addr::from(number).into()
    }

    #[tokio::test(start_paused = true)]
    async fn the_longer_time_counts_and_then_passes() {
        let (mut turned_away, now) = (TurnedAway::default(), Instant::now());
        turned_away.add(Some(pod(1)), now, AFTER_GIVING_WAY);
        turned_away.add(Some(pod(1)), now, AFTER_REFUSAL);
        assert!(turned_away.includes(Some(pod(1)), now + AFTER_REFUSAL));
        assert!(!turned_away.includes(Some(pod(1)), now + AFTER_GIVING_WAY));
        assert!(!turned_away.includes(Some(pod(2)), now));
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_remembered_clients_is_limited() {
        let (mut turned_away, now) = (TurnedAway::default(), Instant::now());
        for number in 0..2 * u32::try_from(MAX_CLIENTS).expect("small") {
            turned_away.add(Some(pod(number)), now, AFTER_REFUSAL);
        }
        assert_eq!(turned_away.0.len(), MAX_CLIENTS);
        turned_away.add(Some(pod(u32::MAX)), now + AFTER_REFUSAL, AFTER_REFUSAL);
        assert_eq!(turned_away.0.len(), 1, "those whose time has passed make room");
    }
}
