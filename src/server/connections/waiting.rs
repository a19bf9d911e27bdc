//! [`Waiting`]: requests that wait for memory, and which is next.

use std::collections::VecDeque;
use std::task::Waker;

use crate::shares::Client;

/// Connections whose request waits for memory. Clients take turns, so one with many connections delays others by one.
#[derive(Debug, Default)]
pub(super) struct Waiting(VecDeque<Queue>);

/// The connections of a client, in their order. Never empty.
#[derive(Debug)]
struct Queue {
    client: Client,
    connections: VecDeque<(u64, Waker)>,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a connection with the waker of its task, or replaces the waker.
    pub(super) fn add(&mut self, client: Client, number: u64, waker: &Waker) {
        let Some(queue) = self.0.iter_mut().find(|queue| queue.client == client) else {
            return self.0.push_back(Queue { client, connections: VecDeque::from([(number, waker.clone())]) });
        };
        match queue.connections.iter_mut().find(|(other, _)| *other == number) {
            Some((_, known)) => known.clone_from(waker),
            None => queue.connections.push_back((number, waker.clone())),
        }
    }

    /// Removes a connection, if it waits.
    pub(super) fn leave(&mut self, client: Client, number: u64) {
        let Some(place) = self.0.iter().position(|queue| queue.client == client) else { return };
        self.0[place].connections.retain(|(other, _)| *other != number);
        if self.0[place].connections.is_empty() {
            self.0.remove(place);
        }
    }

    /// The connection that is next among those which may have the memory.
    pub(super) fn next(&self, may_have: impl Fn(Client, u64) -> bool) -> Option<(Client, u64)> {
        let mut first = self.0.iter().filter_map(|queue| Some((queue.client, queue.connections.front()?.0)));
        first.find(|(client, number)| may_have(*client, *number))
    }

    /// Wakes a connection that got the memory. Its client's others are behind those of other clients then.
    pub(super) fn serve(&mut self, client: Client, number: u64) {
        let Some(place) = self.0.iter().position(|queue| queue.client == client) else { return };
        let Some(mut queue) = self.0.remove(place) else { return };
        queue.connections.retain(|(other, waker)| {
            if *other == number {
                waker.wake_by_ref();
            }
            *other != number
        });
        if !queue.connections.is_empty() {
            self.0.push_back(queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "as clients are")]
    fn pod(number: u8) -> Client {
        Some(Ipv4Addr::new(10, 0, 0, number).into())
    }

    #[test]
    fn clients_take_turns() {
        let mut waiting = Waiting::default();
        for (client, number) in [(1, 1), (1, 2), (1, 3), (2, 4), (3, 5)] {
            waiting.add(pod(client), number, Waker::noop());
        }
        waiting.add(pod(1), 2, Waker::noop());
        waiting.leave(pod(3), 5);
        let served = std::iter::from_fn(|| {
            let (client, number) = waiting.next(|_, _| true)?;
            waiting.serve(client, number);
            Some(number)
        });
        assert_eq!(served.collect::<Vec<_>>(), [1, 4, 2, 3]);
    }

    #[test]
    fn a_client_that_may_not_have_it_delays_nobody() {
        let mut waiting = Waiting::default();
        waiting.add(pod(1), 1, Waker::noop());
        waiting.add(pod(2), 2, Waker::noop());
        assert_eq!(waiting.next(|client, _| client != pod(1)), Some((pod(2), 2)));
    }
}
