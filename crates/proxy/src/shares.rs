//! [`Shares`]: counts the amount of a limited resource that each client holds, and decides who gives way.
//!
//! Connections, seats, watches, token flights, cached tokens and bytes of memory are all limited, and shared
//! between clients by one rule:
//!
//! - While there is room, any client may take more. A single client may take everything.
//! - When there is no room, the client that holds most gives way to a client that holds clearly less.
//! - The client that holds most must give up something of its own, or is refused.
//!
//! [`Shares`] only counts. The owner of the resource defines what "giving way" means: closing a connection, ending a
//! watch, evicting a token, waiting for a seat.

use std::net::IpAddr;

/// A client: an IP address, which identifies a pod, or `None` for the proxy's own requests.
pub type Client = Option<IpAddr>;

/// The amount of a resource that each client holds, in the resource's unit (items or bytes). Clients are pods, by
/// address, or other entities that `T` identifies; `None` is the proxy itself.
#[derive(Debug)]
pub struct Shares<T = IpAddr> {
    limit: usize,
    used: usize,
    /// All clients that hold anything. A list is enough: a node has about a hundred pods, and most hold
    /// nothing at any time.
    holders: Vec<(Option<T>, usize)>,
}

/// Whether a client may take more, and if not, the client that must give something up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Availability<T = IpAddr> {
    /// There is room.
    Free,
    /// No room until this client gives something up: it holds most, and clearly more than the requesting
    /// client.
    From(Option<T>),
    /// No room, and the requesting client holds most: it may only replace something of its own.
    FromItself,
    /// No room, and no client holds clearly more than the requesting one.
    None,
}

impl<T: Copy + PartialEq> Shares<T> {
    /// Creates empty shares with this total limit.
    pub fn new(limit: usize) -> Self {
        Self { limit, used: 0, holders: Vec::new() }
    }

    /// Whether a client may take this amount. Takes nothing.
    ///
    /// "Clearly more" means that the other client still holds at least as much after the transfer, so that
    /// two clients never take the same amount from each other in turn.
    pub fn room_for(&self, client: Option<T>, amount: usize) -> Availability<T> {
        if self.used.saturating_add(amount) <= self.limit {
            return Availability::Free;
        }
        self.room_beside(client, amount, |_| 0)
    }

    /// Like [`Shares::room_for`], with a reserve that must stay free and may depend on whether the client holds most.
    /// Always scans all clients.
    pub fn room_beside(
        &self,
        client: Option<T>,
        amount: usize,
        reserve: impl FnOnce(bool) -> usize,
    ) -> Availability<T> {
        let largest = self.largest();
        let spare = reserve(largest.is_some_and(|(largest, _)| largest == client));
        if self.used.saturating_add(amount).saturating_add(spare) <= self.limit {
            return Availability::Free;
        }
        match largest {
            Some((largest, _)) if largest == client => Availability::FromItself,
            Some((largest, most)) if most >= self.held_by(client).saturating_add(amount.saturating_mul(2)) => {
                Availability::From(largest)
            }
            _ => Availability::None,
        }
    }

    /// Adds this amount to the client's share, whether or not there is room.
    pub fn take(&mut self, client: Option<T>, amount: usize) {
        if amount == 0 {
            return;
        }
        self.used += amount;
        match self.holders.iter_mut().find(|(other, _)| *other == client) {
            Some((_, held)) => *held += amount,
            None => self.holders.push((client, amount)),
        }
    }

    /// Removes this amount from the client's share.
    pub fn give_back(&mut self, client: Option<T>, amount: usize) {
        let Some(place) = self.holders.iter().position(|(other, _)| *other == client) else { return };
        let held = &mut self.holders[place].1;
        let amount = amount.min(*held);
        *held -= amount;
        self.used -= amount;
        if self.holders[place].1 == 0 {
            self.holders.swap_remove(place);
        }
    }

    /// Whether a client holds less than an equal share of the limit among all clients that hold anything. The
    /// share is rounded up.
    pub fn is_below_share(&self, client: Option<T>) -> bool {
        self.held_by(client) < self.limit.div_ceil(self.holders.len().max(1))
    }

    /// The amount that a client holds.
    pub fn held_by(&self, client: Option<T>) -> usize {
        self.holders.iter().find(|(other, _)| *other == client).map_or(0, |(_, held)| *held)
    }

    /// The client that holds most, and its amount.
    pub fn largest(&self) -> Option<(Option<T>, usize)> {
        self.holders.iter().copied().max_by_key(|(_, held)| *held)
    }

    /// The clients that hold anything.
    pub fn clients(&self) -> impl Iterator<Item = Option<T>> {
        self.holders.iter().map(|(client, _)| *client)
    }

    /// The total amount held.
    pub fn used(&self) -> usize {
        self.used
    }

    /// The limit on the total amount.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Number of clients that hold anything.
    pub fn holders(&self) -> usize {
        self.holders.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "clients are options")]
    fn pod(number: u8) -> Client {
        Some([10, 0, 0, number].into())
    }

    #[test]
    fn a_single_client_may_take_everything_and_then_only_replaces_its_own() {
        let mut shares = Shares::new(3);
        for _ in 0..3 {
            assert_eq!(shares.room_for(pod(1), 1), Availability::Free);
            shares.take(pod(1), 1);
        }
        assert_eq!(shares.room_for(pod(1), 1), Availability::FromItself);
    }

    #[test]
    fn the_client_that_holds_most_gives_way_to_one_that_holds_clearly_less() {
        let mut shares = Shares::new(10);
        shares.take(pod(1), 7);
        shares.take(pod(2), 3);
        assert_eq!(shares.room_for(pod(3), 1), Availability::From(pod(1)));
        assert_eq!(shares.room_for(pod(2), 1), Availability::From(pod(1)));
        assert_eq!(shares.room_for(pod(2), 3), Availability::None, "it would hold more than the other afterwards");
    }

    #[test]
    fn no_client_gives_way_if_all_hold_the_same() {
        let mut shares = Shares::new(3);
        (1..=3).for_each(|number| shares.take(pod(number), 1));
        assert_eq!(shares.room_for(pod(4), 1), Availability::None);
    }

    #[test]
    fn a_share_is_an_equal_part_of_the_limit() {
        let mut shares = Shares::new(10);
        shares.take(pod(1), 5);
        assert!(shares.is_below_share(pod(1)), "a single client's share is everything");
        shares.take(pod(2), 1);
        assert!(!shares.is_below_share(pod(1)));
        assert!(shares.is_below_share(pod(2)));
    }

    proptest! {
        /// The rule converges: if all clients request more in any order, the number of transfers is limited, and in the
        /// end the amounts of two clients differ by at most one.
        #[test]
        fn the_number_of_transfers_is_limited(limit in 1..20usize, first in 0..6u8) {
            let mut shares = Shares::new(limit);
            shares.take(pod(first), limit);
            let mut changes = 0;
            for round in 0..limit * 6 {
                let asks = pod(u8::try_from(round % 6).expect("small"));
                if let Availability::From(largest) = shares.room_for(asks, 1) {
                    shares.give_back(largest, 1);
                    shares.take(asks, 1);
                    changes += 1;
                }
                prop_assert_eq!(shares.used(), limit);
            }
            prop_assert!(changes <= limit);
            let held = (0..6).map(|number| shares.held_by(pod(number)));
            prop_assert!(held.clone().max().expect("six") <= held.min().expect("six") + 1);
        }
    }
}
