//! [`Refusals`]: the last refusals, for an operator without logs.
//!
//! One entry for each client, reason and rule of the policy, with a count, in a table of fixed size. When it is full, the client with the
//! most entries gives one up, so a client that is refused for every possible reason hides no other. A client that
//! invents addresses has one entry for each. Therefore an entry stays for at least [`HOLD`], and a refusal that finds no
//! place is only counted ([`Refusals::without_place`]). The table takes at most 16 KiB.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use tokio::time::Instant;

use base::hook::Hook;
use protocol::metadata::CallingPod;

/// Maximum number of entries.
pub const MAX_REFUSALS: usize = 20;

/// Minimum time that an entry stays, unless its client has others.
pub const HOLD: Duration = Duration::from_secs(60);

/// Maximum bytes kept of a path. Token paths have about 60.
const MAX_PATH: usize = 120;

/// Maximum bytes kept of what another server said.
const MAX_SAID: usize = 240;

/// The pod that has an address now, if known.
pub type NamePod = Hook<dyn Fn(IpAddr) -> Option<Arc<CallingPod>> + Send + Sync>;

/// The cause of a refusal.
#[derive(Debug, Clone, Copy)]
pub struct Cause<'a> {
    /// A label from a fixed set.
    pub reason: &'static str,
    /// The number of the policy's rule, or 0.
    pub rule: usize,
    pub status: StatusCode,
    /// The path without its query, or the kind of path.
    pub path: &'a str,
    /// What another server said, if the answer is its own, or why the path is not to blame.
    pub said: Option<&'a str>,
}

/// Refusals of one client for one reason, and by one rule.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// An IPv4-mapped IPv6 address is shown as IPv4.
    pub client: IpAddr,
    /// The pod that had the address at the last refusal.
    pub pod: Option<Arc<CallingPod>>,
    /// A label from a fixed set.
    pub reason: &'static str,
    rule: usize,
    /// Status of the last response.
    pub status: StatusCode,
    pub path: Box<str>,
    /// What another server said at the last refusal, why the path is not to blame, or an empty string.
    pub said: Box<str>,
    /// Number of refusals since the first.
    pub count: u64,
    pub first: Instant,
    pub last: Instant,
}

/// The table of refusals.
#[derive(Debug)]
pub struct Refusals {
    name_pod: NamePod,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    entries: Vec<Refusal>,
    without_place: u64,
}

impl Refusals {
    /// Creates an empty table. `name_pod` names the pods.
    pub fn new(name_pod: NamePod) -> Self {
        Self { name_pod, table: Mutex::default() }
    }

    /// Records a refusal, unless another thread is recording one: the request path must not wait here.
    pub fn note(&self, client: IpAddr, cause: Cause<'_>, now: Instant) {
        let client = client.to_canonical();
        let pod = (self.name_pod)(client);
        let Some(mut table) = self.table.try_lock() else { return };
        table.note(client, pod, cause, now);
    }

    /// The entries, the most recent refusal first.
    pub fn last(&self) -> Vec<Refusal> {
        let mut entries = self.table.lock().entries.clone();
        entries.sort_by_key(|refusal| std::cmp::Reverse(refusal.last));
        entries
    }

    /// Refusals since the start that found no place, because all entries were younger than [`HOLD`].
    pub fn without_place(&self) -> u64 {
        self.table.lock().without_place
    }
}

/// A table that knows no pods.
impl Default for Refusals {
    fn default() -> Self {
        Self::new(NamePod::new(Arc::new(|_| None)))
    }
}

impl Table {
    fn note(&mut self, client: IpAddr, pod: Option<Arc<CallingPod>>, cause: Cause<'_>, now: Instant) {
        let Cause { reason, rule, status, path, said } = cause;
        let (path, said) = (shortened(path, MAX_PATH), shortened(said.unwrap_or_default(), MAX_SAID));
        let is_same = |known: &&mut Refusal| (known.client, known.reason, known.rule) == (client, reason, rule);
        if let Some(known) = self.entries.iter_mut().find(is_same) {
            // The address may have another pod by now.
            if known.uid() != pod.as_deref().map(|pod| pod.uid.as_str()) {
                (known.count, known.first) = (0, now);
            }
            known.count += 1;
            (known.pod, known.status, known.last) = (pod, status, now);
            if *known.path != *path {
                known.path = path.into();
            }
            if *known.said != *said {
                known.said = said.into();
            }
            return;
        }
        if self.entries.len() >= MAX_REFUSALS {
            let Some(place) = self.gives_way(client, now) else {
                self.without_place += 1;
                return;
            };
            self.entries.swap_remove(place);
        }
        let (path, said) = (path.into(), said.into());
        self.entries.push(Refusal { client, pod, reason, rule, status, path, said, count: 1, first: now, last: now });
    }

    /// The entry to replace with one of this client: the oldest of the client with the most, or one that was held long
    /// enough.
    fn gives_way(&self, newcomer: IpAddr, now: Instant) -> Option<usize> {
        let held = |client: IpAddr| self.entries.iter().filter(|entry| entry.client == client).count();
        let most = self.entries.iter().map(|entry| held(entry.client)).max().unwrap_or(0);
        let is_of_newcomer = held(newcomer) == most;
        let may_go = |entry: &Refusal| {
            if is_of_newcomer { entry.client == newcomer } else { most > 1 && held(entry.client) == most }
        };
        let oldest = |may_go: &dyn Fn(&Refusal) -> bool| {
            let entries = self.entries.iter().enumerate().filter(|(_, entry)| may_go(entry));
            entries.min_by_key(|(_, entry)| entry.last).map(|(place, _)| place)
        };
        oldest(&may_go).or_else(|| oldest(&|entry| now >= entry.first + HOLD))
    }
}

/// The first bytes, at most this many.
fn shortened(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

impl Refusal {
    fn uid(&self) -> Option<&str> {
        self.pod.as_deref().map(|pod| pod.uid.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONCEALED: Cause<'_> =
        Cause { reason: "concealed", rule: 1, status: StatusCode::FORBIDDEN, path: "/kube-env", said: None };

    fn client(number: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + number).to_be_bytes())
    }

    fn because(reason: &'static str) -> Cause<'static> {
        Cause { reason, ..CONCEALED }
    }

    fn shows(refusals: &Refusals, wanted: IpAddr) -> bool {
        refusals.last().iter().any(|refusal| refusal.client == wanted)
    }

    #[test]
    fn refusals_of_a_client_for_a_reason_are_one_entry_with_the_last_path() {
        let refusals = Refusals::default();
        let start = Instant::now();
        refusals.note(client(1), CONCEALED, start);
        refusals.note(client(2), CONCEALED, start);
        let long = "/".to_owned() + &"ä".repeat(MAX_SAID);
        let mapped = "::ffff:10.0.0.1".parse().expect("an address");
        refusals.note(mapped, Cause { path: &long, ..CONCEALED }, start + HOLD);
        refusals.note(client(1), because("no_account"), start);
        refusals.note(client(2), Cause { said: Some(&long), ..CONCEALED }, start);
        let last = refusals.last();
        assert_eq!(last.len(), 3);
        assert_eq!((last[0].client, last[0].count, last[0].last), (client(1), 2, start + HOLD));
        assert!(last[0].path.len() <= MAX_PATH && long.starts_with(&*last[0].path), "{:?}", last[0]);
        let said = &last.iter().find(|refusal| refusal.client == client(2)).expect("it is listed").said;
        assert!((MAX_SAID - 1..=MAX_SAID).contains(&said.len()) && long.starts_with(&**said), "{said}");
    }

    #[test]
    fn a_client_that_is_refused_for_every_reason_hides_no_other() {
        let refusals = Refusals::default();
        let now = Instant::now();
        refusals.note(client(1), CONCEALED, now);
        let reasons: Vec<&'static str> = (0..100).map(|number| &*format!("reason_{number}").leak()).collect();
        for reason in &reasons {
            refusals.note(client(9), because(reason), now + HOLD);
        }
        assert!(shows(&refusals, client(1)));
        refusals.note(client(2), CONCEALED, now + HOLD);
        assert!(shows(&refusals, client(1)) && shows(&refusals, client(2)));
        assert_eq!((refusals.last().len(), refusals.without_place()), (MAX_REFUSALS, 0));
    }

    #[test]
    fn a_client_that_invents_addresses_displaces_nothing_for_a_minute_and_is_counted() {
        let refusals = Refusals::default();
        let start = Instant::now();
        refusals.note(client(1), CONCEALED, start);
        for number in 100..1100 {
            refusals.note(client(number), CONCEALED, start + HOLD / 2);
        }
        assert!(shows(&refusals, client(1)));
        assert_eq!(refusals.without_place(), 1000 - (MAX_REFUSALS as u64 - 1));
        // Nor does it keep others out for longer.
        for number in 100..1100 {
            refusals.note(client(number), CONCEALED, start + HOLD + HOLD / 2 - Duration::from_secs(1));
        }
        refusals.note(client(2), CONCEALED, start + HOLD + HOLD / 2);
        assert!(shows(&refusals, client(2)));
    }

    #[test]
    fn another_pod_with_the_address_is_not_charged_with_the_refusals_of_the_one_before() {
        let pod = |uid: &str| CallingPod {
            namespace: "shop".into(),
            service_account: "app".into(),
            name: uid.into(),
            uid: uid.to_owned(),
            evidence: "kernel",
        };
        let mut table = Table::default();
        let now = Instant::now();
        for (uid, count) in [("one", 1), ("one", 2), ("two", 1)] {
            table.note(client(1), Some(Arc::new(pod(uid))), CONCEALED, now);
            let entry = &table.entries[0];
            assert_eq!((entry.uid(), entry.count), (Some(uid), count));
        }
    }
}
