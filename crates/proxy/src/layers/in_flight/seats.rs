//! [`Seats`]: counts requests in flight, and queues requests that wait for a seat.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::shares::{Client, Shares};
use telemetry::{Moment, Registry, table};

/// The peak is that of the current minute and of the one before.
const MINUTE: Duration = Duration::from_secs(60);

/// The seats of the whole process. Each request in flight holds one.
#[derive(Debug)]
pub struct Seats {
    limit: usize,
    count: Mutex<Count>,
    /// One permit for each seat that was handed to the queue. tokio's semaphore is fair, so the request that has waited
    /// longest gets it.
    handed: Semaphore,
}

#[derive(Debug)]
struct Count {
    free: usize,
    /// Minimum of `free` since the peak was last read.
    fewest_free: usize,
    peak: Peak,
    /// Number of waiting requests that have not been handed a seat.
    waiting: usize,
    /// Whether somebody searches for seats on behalf of all that wait.
    is_searched: bool,
    /// Requests in flight and waiting, by client.
    claims: Shares,
}

/// The most seats that were taken at the same time in a minute, by when it was read: no request looks at the clock for it.
/// Reading does not reset it, because there may be several readers.
#[derive(Debug)]
struct Peak {
    /// The beginning of the current minute.
    began: Moment,
    current: usize,
    /// Of the minute before.
    before: usize,
}

/// Permission to be in flight. Released on drop.
#[derive(Debug)]
pub struct Seat {
    client: Client,
    seats: Arc<Seats>,
}

/// The place of a waiting request in the queue. Dropping it without [`Waiting::seat`] cancels the request.
#[derive(Debug)]
struct Waiting {
    client: Client,
    seats: Arc<Seats>,
    is_handed: bool,
}

/// Result of requesting a seat.
#[derive(Debug)]
pub enum Admission {
    /// The request is in flight.
    Seat(Seat),
    /// No seat is free, but the client has less than its share and may wait for the [next](Seats::next_free) one.
    Wait,
    /// No seat is free, and the client has its share.
    Refuse,
}

impl Seats {
    /// Creates this many seats, all free.
    pub fn new(limit: usize) -> Arc<Self> {
        let count = Count {
            free: limit,
            fewest_free: limit,
            peak: Peak::new(),
            waiting: 0,
            is_searched: false,
            claims: Shares::new(limit),
        };
        Arc::new(Self { limit, count: Mutex::new(count), handed: Semaphore::new(0) })
    }

    /// Registers its gauges.
    pub fn observe(self: &Arc<Self>, registry: &Registry) {
        let (limit, taken, peak) = (self.limit, Arc::clone(self), Arc::clone(self));
        registry.observe(&table::IN_FLIGHT, move || Some(taken.taken() as u64));
        registry.observe(&table::IN_FLIGHT_PEAK, move || Some(peak.peak() as u64));
        registry.observe(&table::IN_FLIGHT_LIMIT, move || Some(limit as u64));
    }

    /// Takes a seat if one is free.
    pub fn admit(self: &Arc<Self>, client: Client) -> Admission {
        let mut count = self.count.lock();
        if count.take() {
            count.claims.take(client, 1);
            Admission::Seat(Seat { client, seats: Arc::clone(self) })
        } else if count.claims.is_below_share(client) {
            Admission::Wait
        } else {
            Admission::Refuse
        }
    }

    /// Enters the queue for a seat. The future waits in it.
    pub fn next_free(self: Arc<Self>, client: Client) -> impl Future<Output = Seat> + Send {
        let mut count = self.count.lock();
        count.claims.take(client, 1);
        let has_seat = count.take();
        count.waiting += usize::from(!has_seat);
        drop(count);
        let place = if has_seat {
            Ok(Seat { client, seats: self })
        } else {
            Err(Waiting { client, seats: self, is_handed: false })
        };
        async move {
            if let Err(waiting) = &place {
                waiting.seats.handed.acquire().await.expect("the semaphore is never closed").forget();
            }
            place.unwrap_or_else(Waiting::seat)
        }
    }

    /// Whether the caller is to search for seats until [`Seats::left_to_search`] is zero. Another one does otherwise.
    pub fn begin_search(&self) -> bool {
        !mem::replace(&mut self.count.lock().is_searched, true)
    }

    /// Number of waiting requests to search for. The search is over if it is zero: in one step, so that the next request in the
    /// queue begins another.
    pub fn left_to_search(&self) -> usize {
        let mut count = self.count.lock();
        count.is_searched = count.waiting > 0;
        count.waiting
    }

    /// Number of seats.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Number of waiting requests that have not been handed a seat.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.count.lock().waiting
    }

    /// Number of seats currently taken.
    pub fn taken(&self) -> usize {
        self.limit - self.count.lock().free
    }

    /// Maximum number of seats taken at the same time within this minute and the one before, or since the last call if that was
    /// earlier.
    pub fn peak(&self) -> usize {
        let mut count = self.count.lock();
        let free = count.free;
        let most = self.limit - mem::replace(&mut count.fewest_free, free);
        count.peak.with(most, Moment::now())
    }

    /// Hands a released seat to the queue, or frees it if no request waits.
    fn give_back(&self, count: &mut Count) {
        if count.waiting > 0 {
            count.waiting -= 1;
            self.handed.add_permits(1);
        } else {
            count.free += 1;
        }
    }
}

impl Count {
    /// Takes a free seat. Returns `false` if there is none, which is always the case while a request waits.
    fn take(&mut self) -> bool {
        let Some(free) = self.free.checked_sub(1) else { return false };
        self.free = free;
        self.fewest_free = self.fewest_free.min(free);
        true
    }
}

impl Peak {
    fn new() -> Self {
        Self { began: Moment::now(), current: 0, before: 0 }
    }

    /// The peak, with the most seats that were taken since the last call.
    fn with(&mut self, taken: usize, now: Moment) -> usize {
        let minutes = now.saturating_duration_since(self.began).as_secs() / MINUTE.as_secs();
        if minutes > 0 {
            self.before = if minutes == 1 { self.current } else { 0 };
            self.current = 0;
            self.began += Duration::from_secs(minutes * MINUTE.as_secs());
        }
        self.current = self.current.max(taken);
        self.current.max(self.before)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut count = self.seats.count.lock();
        count.claims.give_back(self.client, 1);
        self.seats.give_back(&mut count);
    }
}

impl Waiting {
    /// The seat that this request was handed.
    fn seat(mut self) -> Seat {
        self.is_handed = true;
        Seat { client: self.client, seats: Arc::clone(&self.seats) }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.is_handed {
            return;
        }
        let mut count = self.seats.count.lock();
        count.claims.give_back(self.client, 1);
        // A seat may have been handed over concurrently: return an unclaimed permit, otherwise leave the queue.
        match self.seats.handed.try_acquire() {
            Ok(unclaimed) => {
                unclaimed.forget();
                self.seats.give_back(&mut count);
            }
            Err(_) => count.waiting -= 1,
        }
    }
}

#[cfg(test)]
mod tests;
