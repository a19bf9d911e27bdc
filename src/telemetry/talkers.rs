//! [`Talkers`]: who asks most, over the last minute.
//!
//! Under overload the first question is which pod it is, and an address must not be a metric's label. So the addresses that
//! ask most are kept in a sketch of fixed size (the *space-saving* algorithm of Metwally, Agrawal and El Abbadi): each of
//! [`TALKERS`] places has an address and its counts; when an address comes that has no place, it takes that of the address
//! with the fewest requests and inherits their number. So whoever made more than a 64th of all requests is surely here, and
//! a number is too high by what was inherited, at most. A node has rarely more than 64 pods that talk at once, and then every
//! number is exact.
//!
//! Noting a request takes about 20 ns and no memory. Where another thread is noting at this very moment, it is left out:
//! nobody waits here.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Duration;

use serde::Serialize;

use super::latency::RequestOutcome;
use super::moment::Moment;

/// Most addresses that are kept.
pub const TALKERS: usize = 64;

/// The last minute, in slices that are forgotten one by one.
const SLICES: usize = 6;
const SLICE: Duration = Duration::from_secs(10);

/// What an address did in the last minute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Talker {
    /// An IPv4 address that came by IPv6 is shown as the former.
    pub address: IpAddr,
    /// Requests, whatever became of them, and connections that were reset for want of room.
    pub requests: u64,
    /// By how many at the most the number of requests is too high.
    pub inherited: u64,
    /// Of them, those for which there was no room.
    pub sheds: u64,
    /// Of them, those that were refused by the rules.
    pub refusals: u64,
}

/// The sketch.
#[derive(Debug)]
pub struct Talkers {
    began: Moment,
    sketch: Mutex<Sketch>,
}

#[derive(Debug, Default)]
struct Sketch {
    /// Number of the current slice since the beginning.
    slice: u64,
    /// Addresses as IPv6 has them, since comparing those is one instruction.
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
    /// An address made a request, and this became of it.
    pub fn note(&self, address: IpAddr, outcome: RequestOutcome, now: Moment) {
        let mut sketch = match self.sketch.try_lock() {
            Ok(sketch) => sketch,
            // Numbers are added one by one, so a panic elsewhere leaves them whole.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        sketch.move_on(self.slice(now));
        sketch.note(address, outcome);
    }

    /// Those with the most requests in the last minute, at most so many, the busiest first.
    pub fn top(&self, most: usize, now: Moment) -> Vec<Talker> {
        let mut sketch = self.sketch.lock().unwrap_or_else(PoisonError::into_inner);
        sketch.move_on(self.slice(now));
        let mut talkers: Vec<Talker> =
            sketch.addresses.iter().zip(&sketch.counts).map(|(address, counts)| counts.talker(*address)).collect();
        drop(sketch);
        talkers.sort_by_key(|talker| (std::cmp::Reverse(talker.requests), talker.address));
        talkers.truncate(most);
        talkers
    }

    fn slice(&self, now: Moment) -> u64 {
        now.saturating_duration_since(self.began).as_secs() / SLICE.as_secs()
    }
}

impl Sketch {
    /// Forgets what is older than a minute.
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
        if self.addresses.len() < TALKERS {
            self.addresses.push(address);
            self.counts.push(Counts::default());
            return self.addresses.len() - 1;
        }
        let (place, counts) = self
            .counts
            .iter_mut()
            .enumerate()
            .min_by_key(|(_, counts)| counts.total())
            .expect("all places are taken, so there are some");
        let at = column(self.slice);
        let inherited = u32::try_from(counts.total()).unwrap_or(u32::MAX);
        *counts = Counts::default();
        counts.requests[at] = inherited;
        counts.inherited[at] = inherited;
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
    fn the_busiest_come_first_with_what_became_of_their_requests() {
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
    fn a_minute_is_remembered_and_no_more() {
        let talkers = Talkers::default();
        let start = Moment::now();
        note(&talkers, 1, 1, start);
        note(&talkers, 1, 2, start + SLICE);
        let seen = |after: Duration| talkers.top(1, start + after).first().map_or(0, |talker| talker.requests);
        assert_eq!(seen(Duration::from_secs(50)), 3);
        assert_eq!(seen(Duration::from_secs(61)), 2);
        assert_eq!(seen(Duration::from_secs(71)), 0);
        note(&talkers, 2, 1, start + Duration::from_secs(3600));
        assert_eq!(talkers.top(9, start + Duration::from_secs(3600)).len(), 1, "long silence forgets all");
    }

    #[test]
    fn whoever_asks_much_is_found_among_any_number_of_others() {
        let talkers = Talkers::default();
        let now = Moment::now();
        for number in 1000..20_000 {
            note(&talkers, number, 1, now);
            if number % 20 == 0 {
                note(&talkers, 7, 1, now);
            }
        }
        let top = talkers.top(1000, now);
        assert_eq!(top.len(), TALKERS);
        let found = top.iter().find(|talker| talker.address == pod(7)).expect("it made a twentieth of all requests");
        assert!(found.requests >= 950 && found.requests - found.inherited <= 950, "{found:?}");
    }
}
