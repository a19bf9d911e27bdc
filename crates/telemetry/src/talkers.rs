//! [`Talkers`]: the clients with the most requests in the last minute.
//!
//! During an overload operators want to know which pod causes it, but an address must not be a metric label. So the
//! busiest addresses are kept in a sketch of fixed size (the *space-saving* algorithm of Metwally, Agrawal and El
//! Abbadi): each of [`MAX_TALKERS`] places has an address and its counts. An address without a place takes the place
//! with the fewest requests, and inherits them with their age, so that they expire when they would have without the change. So an
//! address that goes on making more than a 64th of all requests is included, and a count is too high by at most the
//! inherited number. With at most 64 active pods, which is typical of a node, all counts are exact.
//!
//! Counting a request takes about 20 ns and does not allocate. If another thread is counting at the same time, the
//! request is not counted, because the request path must not wait here.

use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::latency::RequestOutcome;
use super::moment::Moment;

/// Maximum number of addresses.
pub const MAX_TALKERS: usize = 64;

/// The last minute is divided into slices, which expire one by one.
const SLICES: usize = 6;
const SLICE: Duration = Duration::from_secs(10);

/// An address and its requests in the last minute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Talker {
    /// An IPv4-mapped IPv6 address is shown as IPv4.
    pub address: IpAddr,
    /// All requests, plus connections that were closed under overload.
    pub requests: u64,
    /// Maximum by which `requests` is too high.
    pub inherited: u64,
    /// Requests and connections that were shed.
    pub sheds: u64,
    /// Requests that were refused by the rules.
    pub refusals: u64,
}

impl Talker {
    /// The requests that are certainly its own.
    pub fn certain(&self) -> u64 {
        self.requests - self.inherited
    }

    /// The number of its requests in words.
    pub fn number(&self) -> String {
        let certain = self.certain();
        if self.inherited == 0 { certain.to_string() } else { format!("at least {certain}") }
    }
}

/// The state of [`Talkers`].
#[derive(Debug)]
pub struct Talkers {
    began: Moment,
    sketch: Mutex<Sketch>,
}

#[derive(Debug, Default)]
struct Sketch {
    /// Number of the current slice, counted from the beginning.
    slice: u64,
    /// Addresses as IPv6, because one instruction compares two of them.
    addresses: Vec<u128>,
    counts: Vec<Counts>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    requests: [u32; SLICES],
    inherited: [u32; SLICES],
    sheds: [u32; SLICES],
    refusals: [u32; SLICES],
}

impl Default for Talkers {
    fn default() -> Self {
        Self { began: Moment::now(), sketch: Mutex::default() }
    }
}

impl Talkers {
    /// Counts a request from an address, by its outcome.
    pub fn note(&self, address: IpAddr, outcome: RequestOutcome, now: Moment) {
        let Some(mut sketch) = self.sketch.try_lock() else { return };
        sketch.move_on(self.slice(now));
        sketch.note(address, outcome);
    }

    /// The addresses with the most requests in the last minute, at most `max`, the busiest first.
    pub fn top(&self, max: usize, now: Moment) -> Vec<Talker> {
        let mut sketch = self.sketch.lock();
        sketch.move_on(self.slice(now));
        let mut talkers: Vec<Talker> =
            sketch.addresses.iter().zip(&sketch.counts).map(|(address, counts)| counts.talker(*address)).collect();
        drop(sketch);
        // What was inherited would put an address first that made a single request.
        talkers.sort_by_key(|talker| (std::cmp::Reverse(talker.certain()), talker.address));
        talkers.truncate(max);
        talkers
    }

    fn slice(&self, now: Moment) -> u64 {
        now.saturating_duration_since(self.began).as_secs() / SLICE.as_secs()
    }
}

impl Sketch {
    /// Removes counts that are older than a minute.
    fn move_on(&mut self, slice: u64) {
        if slice <= self.slice {
            return;
        }
        for passed in (self.slice + 1..=slice).take(SLICES) {
            let at = column(passed);
            self.counts.iter_mut().for_each(|counts| counts.forget(at));
        }
        self.slice = slice;
        for place in (0..self.addresses.len()).rev() {
            if self.counts[place].total() == 0 {
                self.addresses.swap_remove(place);
                self.counts.swap_remove(place);
            }
        }
    }

    fn note(&mut self, address: IpAddr, outcome: RequestOutcome) {
        let address = bits(address);
        let place = self.addresses.iter().position(|known| *known == address);
        let place = place.unwrap_or_else(|| self.make_place(address));
        let (at, counts) = (column(self.slice), &mut self.counts[place]);
        counts.requests[at] += 1;
        counts.sheds[at] += u32::from(outcome == RequestOutcome::Shed);
        counts.refusals[at] += u32::from(outcome == RequestOutcome::Refused);
    }

    fn make_place(&mut self, address: u128) -> usize {
        if self.addresses.len() < MAX_TALKERS {
            self.addresses.push(address);
            self.counts.push(Counts::default());
            return self.addresses.len() - 1;
        }
        let (place, counts) = self
            .counts
            .iter_mut()
            .enumerate()
            .min_by_key(|(_, counts)| counts.total())
            .expect("all places are taken, and there is at least one");
        // Each slice keeps its own: counted as of now, what is passed on within a minute would never expire.
        let requests = counts.requests;
        *counts = Counts { requests, inherited: requests, ..Counts::default() };
        self.addresses[place] = address;
        place
    }
}

impl Counts {
    fn total(&self) -> u64 {
        sum(&self.requests)
    }

    fn forget(&mut self, at: usize) {
        for row in [&mut self.requests, &mut self.inherited, &mut self.sheds, &mut self.refusals] {
            row[at] = 0;
        }
    }

    fn talker(&self, address: u128) -> Talker {
        Talker {
            address: std::net::Ipv6Addr::from_bits(address).to_canonical(),
            requests: self.total(),
            inherited: sum(&self.inherited),
            sheds: sum(&self.sheds),
            refusals: sum(&self.refusals),
        }
    }
}

fn sum(row: &[u32; SLICES]) -> u64 {
    row.iter().copied().map(u64::from).sum()
}

fn column(slice: u64) -> usize {
    usize::try_from(slice % SLICES as u64).expect("less than SLICES")
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(number: u16) -> IpAddr {
        let [high, low] = number.to_be_bytes();
        [10, 0, high, low].into()
    }

    fn note(talkers: &Talkers, number: u16, times: usize, now: Moment) {
        for _ in 0..times {
            talkers.note(pod(number), RequestOutcome::Passed, now);
        }
    }

    #[test]
    fn the_busiest_come_first_with_the_outcomes_of_their_requests() {
        let talkers = Talkers::default();
        let now = Moment::now();
        note(&talkers, 1, 3, now);
        note(&talkers, 2, 5, now);
        talkers.note(pod(1), RequestOutcome::Shed, now);
        talkers.note(pod(1), RequestOutcome::Refused, now);
        talkers.note("::ffff:10.0.0.2".parse().expect("an address"), RequestOutcome::Failed, now);
        let busiest = Talker { address: pod(2), requests: 6, inherited: 0, sheds: 0, refusals: 0 };
        let other = Talker { address: pod(1), requests: 5, inherited: 0, sheds: 1, refusals: 1 };
        assert_eq!(talkers.top(9, now), [busiest, other]);
        assert_eq!(talkers.top(1, now).len(), 1);
    }

    #[test]
    fn counts_expire_after_a_minute() {
        let talkers = Talkers::default();
        let start = Moment::now();
        note(&talkers, 1, 1, start);
        note(&talkers, 1, 2, start + SLICE);
        let seen = |after: Duration| talkers.top(1, start + after).first().map_or(0, |talker| talker.requests);
        assert_eq!(seen(Duration::from_secs(50)), 3);
        assert_eq!(seen(Duration::from_secs(61)), 2);
        assert_eq!(seen(Duration::from_secs(71)), 0);
        note(&talkers, 2, 1, start + Duration::from_secs(3600));
        assert_eq!(talkers.top(9, start + Duration::from_secs(3600)).len(), 1, "a long pause removes all counts");
    }

    #[test]
    fn a_busy_address_is_found_among_any_number_of_others() {
        let talkers = Talkers::default();
        let now = Moment::now();
        for number in 1000..20_000 {
            note(&talkers, number, 1, now);
            if number % 20 == 0 {
                note(&talkers, 7, 1, now);
            }
        }
        let top = talkers.top(1000, now);
        assert_eq!(top.len(), MAX_TALKERS);
        let [found, other, ..] = &top[..] else { panic!("all places are taken") };
        assert_eq!((found.address, found.number().as_str()), (pod(7), "950"), "it made a twentieth of all requests");
        assert!(other.requests > 200 && other.number() == "at least 1", "{other:?}");
    }

    #[test]
    fn what_is_inherited_expires_although_places_change_hands_in_each_slice() {
        let (talkers, start) = (Talkers::default(), Moment::now());
        for slice in 0..60 {
            let now = start + SLICE * slice;
            for number in 0..110 {
                note(&talkers, number, 1, now);
            }
            // All requests of a minute, shared between the places, and those of the address itself.
            let max = 660 / MAX_TALKERS as u64 + 6;
            for talker in talkers.top(MAX_TALKERS, now) {
                assert!(talker.requests <= max && talker.certain() <= 6, "{slice}: {talker:?}");
            }
        }
    }
}
