//! [`Breaker`]: a circuit breaker for a server that does not respond: the metadata server, or a server of the exchange
//! for a pod's own token.
//!
//! Each key backs off by itself, but many keys still send many requests to a failing server. On the other hand, a key
//! may fail for a reason of its own, and one pod may request many such keys. So failures of one pod's fetches affect
//! only that pod, and the server counts as down only if the fetches of several pods fail:
//!
//! | condition | paused clients | probes |
//! |---|---|---|
//! | [`TOLERATED_FAILURES`] consecutive fetches of one client failed | that client | one per [`PROBE_INTERVAL`] |
//! | since the last success of any client, [`TOLERATED_FAILURES`] fetches failed, counting at most [`MAX_COUNTED_FAILURES`] of each client | all | one per [`PROBE_INTERVAL`] and client, and one per shared interval in total |
//!
//! A fetch that is not let through fails immediately. The proxy's own fetches (which have no client) count as
//! evidence too, but always go through: they are few, and each backs off by itself. Any success, of any
//! client, proves that the server is up. The pause is shorter than any key's own back-off, so with one key
//! the breaker has no effect.
//!
//! A refusal counts as a success: a server that refuses is up.

use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Consecutive failures that are tolerated.
const TOLERATED_FAILURES: u32 = 5;

/// Maximum failures of one client that count against the server.
const MAX_COUNTED_FAILURES: u32 = 3;

/// Interval between probes of one client.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);

/// Interval between probes of different clients, for a server that fails or answers quickly. Much shorter than
/// [`PROBE_INTERVAL`], so that a client that probes as often as it may does not exclude others.
pub(super) const SHARED_PROBE_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum number of remembered clients. A node has about a hundred pods. The client that failed longest ago is
/// forgotten.
const MAX_CLIENTS: usize = 256;

/// `T` identifies a client; `None` is the proxy itself.
#[derive(Debug)]
pub struct Breaker<T = IpAddr> {
    shared_interval: Duration,
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    /// Clients whose last fetch failed, the most recent failure last.
    failing: Vec<Streak<T>>,
    /// Time when a fetch was last let through while the server counted as down.
    probed: Option<Instant>,
}

#[derive(Debug)]
struct Streak<T> {
    client: Option<T>,
    /// Failures since the client's own last success.
    own: u32,
    /// Failures since the last success of any client.
    unrefuted: u32,
    /// Time when a fetch of this client was last let through while it was paused.
    probed: Option<Instant>,
}

impl<T: Copy + PartialEq> Breaker<T> {
    /// Creates a breaker. While the server counts as down, it lets a probe of any client through at `shared_interval`.
    pub fn new(shared_interval: Duration) -> Self {
        Self { shared_interval, state: Mutex::new(State { failing: Vec::new(), probed: None }) }
    }

    /// Whether a fetch of this client may be sent now.
    pub fn lets_through(&self, client: Option<T>, now: Instant) -> bool {
        if client.is_none() {
            return true;
        }
        let mut state = self.state.lock();
        let is_down = state.is_down();
        let State { failing, probed } = &mut *state;
        let streak = failing.iter_mut().find(|streak| streak.client == client);
        let rests = is_down || streak.as_ref().is_some_and(|streak| streak.own >= TOLERATED_FAILURES);
        if !rests {
            return true;
        }
        let too_soon = |probed: Option<Instant>, pause| probed.is_some_and(|probed| now < probed + pause);
        if (is_down && too_soon(*probed, self.shared_interval))
            || streak.as_ref().is_some_and(|streak| too_soon(streak.probed, PROBE_INTERVAL))
        {
            return false;
        }
        if let Some(streak) = streak {
            streak.probed = Some(now);
        }
        *probed = Some(now);
        true
    }

    /// Records that a request of this client succeeded.
    pub fn succeeded(&self, client: Option<T>) {
        let mut state = self.state.lock();
        state.failing.retain(|streak| streak.client != client);
        for streak in &mut state.failing {
            streak.unrefuted = 0;
        }
    }

    /// Records that a request of this client failed.
    pub fn failed(&self, client: Option<T>, now: Instant) {
        let mut state = self.state.lock();
        let known = state.failing.iter().position(|streak| streak.client == client);
        let mut streak = match known {
            Some(place) => state.failing.remove(place),
            None => Streak { client, own: 0, unrefuted: 0, probed: None },
        };
        streak.own = streak.own.saturating_add(1);
        streak.unrefuted = streak.unrefuted.saturating_add(1);
        // The failure that pauses a client counts as its first probe.
        streak.probed = streak.probed.or((streak.own >= TOLERATED_FAILURES).then_some(now));
        if state.failing.len() == MAX_CLIENTS {
            state.failing.remove(0);
        }
        state.failing.push(streak);
    }
}

impl<T> State<T> {
    fn is_down(&self) -> bool {
        self.failing.iter().map(|streak| streak.unrefuted.min(MAX_COUNTED_FAILURES)).sum::<u32>() >= TOLERATED_FAILURES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shares::Client;

    /// A fetch of this client that succeeded (`Ok`) or failed (`Err`).
    type Fetch = Result<Client, Client>;

    #[expect(clippy::unnecessary_wraps, reason = "the proxy itself is a client, too")]
    fn pod(number: u8) -> Client {
        Some([10, 0, 0, number].into())
    }

    /// A breaker after these failures (`Err`) and successes (`Ok`), and the time of the last one.
    fn after(fetches: &[Fetch]) -> (Breaker, Instant) {
        let (breaker, now) = (Breaker::new(SHARED_PROBE_INTERVAL), Instant::now());
        for fetch in fetches {
            match fetch {
                Ok(client) => breaker.succeeded(*client),
                Err(client) => breaker.failed(*client, now),
            }
        }
        (breaker, now)
    }

    #[test]
    fn clients_are_paused_by_their_own_and_common_failures() {
        let (a, b, own) = (pod(1), pod(2), None);
        let hostile = [Err(a); 100];
        let rests: [(&str, &[Fetch], bool, bool); 11] = [
            ("nothing happened", &[], false, false),
            ("few failures", &[Err(a); 4], false, false),
            ("one pod's keys fail", &[Err(a); 5], true, false),
            ("one pod's keys fail for long", &hostile, true, false),
            ("one of its keys works", &[Err(a), Err(a), Err(a), Err(a), Ok(a), Err(a)], false, false),
            ("another pod's keys work", &[Err(a), Err(a), Err(a), Err(a), Err(a), Ok(b)], true, false),
            ("another pod failed once", &[Err(a), Err(a), Err(a), Err(a), Err(b)], false, false),
            ("two pods fail", &[Err(a), Err(a), Err(a), Err(b), Err(b)], true, true),
            ("a third pod succeeded since", &[Err(a), Err(a), Err(a), Err(b), Err(b), Ok(pod(3))], false, false),
            ("one pod's and the proxy's own fail", &[Err(a), Err(a), Err(a), Err(own), Err(own)], true, true),
            ("only the proxy's own fail", &[Err(own); 9], false, false),
        ];
        for (what, fetches, a_rests, others_rest) in rests {
            let (breaker, now) = after(fetches);
            // While the server counts as down, the first fetch of any client is the probe.
            let now = if others_rest {
                assert!(breaker.lets_through(pod(9), now), "{what}");
                now
            } else {
                now
            };
            assert_eq!(!breaker.lets_through(a, now), a_rests, "{what}: the pod");
            assert_eq!(!breaker.lets_through(b, now), others_rest, "{what}: another pod");
            assert!(breaker.lets_through(own, now), "{what}: the proxy's own fetches always go through");
        }
    }

    #[test]
    fn a_paused_client_may_probe() {
        let (breaker, start) = after(&[Err(pod(1)); 5]);
        assert!(!breaker.lets_through(pod(1), start + PROBE_INTERVAL - Duration::from_millis(1)));
        assert!(breaker.lets_through(pod(1), start + PROBE_INTERVAL), "one probe");
        assert!(!breaker.lets_through(pod(1), start + PROBE_INTERVAL), "only one probe");
        breaker.succeeded(pod(1));
        assert!((0..9).all(|_| breaker.lets_through(pod(1), start + PROBE_INTERVAL)));
    }

    #[test]
    fn a_client_that_probes_constantly_does_not_exclude_others() {
        let failures: Vec<_> = (0..10).map(|at| Err(pod(at % 2))).collect();
        let (breaker, start) = after(&failures);
        let mut probes = [0; 3];
        for at in 0..10_000_u64 {
            let now = start + Duration::from_millis(at);
            for (pod_number, probes) in probes.iter_mut().enumerate().take(if at % 100 == 77 { 3 } else { 2 }) {
                let client = pod(u8::try_from(pod_number).expect("small"));
                if breaker.lets_through(client, now) {
                    *probes += 1;
                    breaker.failed(client, now);
                }
            }
        }
        assert!(probes.iter().sum::<u32>() <= 3 * 20 + 3, "too many probes in 10 s: {probes:?}");
        assert!(probes[2] >= 15, "every client may probe: {probes:?}");
    }

    #[test]
    fn the_number_of_remembered_clients_is_limited() {
        let breaker = Breaker::<IpAddr>::new(SHARED_PROBE_INTERVAL);
        let now = Instant::now();
        for client in 0..1000_u32 {
            breaker.failed(Some(std::net::Ipv4Addr::from(client).into()), now);
        }
        assert_eq!(breaker.state.lock().failing.len(), MAX_CLIENTS);
    }
}
