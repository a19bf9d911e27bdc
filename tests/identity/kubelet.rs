//! [`Kubelet`]: begins and ends pods as fast as it can, in every possible order of steps.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::time::Instant;

use crate::kube::{Client, NODE, pause};
use crate::pod::Pod;
use crate::reporter::{Event, Reporter};
use crate::sandbox::{Address, Node};
use crate::tally::Tally;

/// Accounts of the node's pods, two in each namespace.
pub const ACCOUNTS: usize = 10;

/// Maximum delay of a report to the API server.
const LATE: Duration = Duration::from_secs(10);

/// Maximum time for which a terminating pod keeps running.
const GRACE: Duration = Duration::from_secs(3);

/// Maximum time for which a pod's processes, or its object, outlive its network.
const RELIC: Duration = Duration::from_secs(5);

/// One in this number of pods has a process that claims another's address.
const IMPOSTORS: usize = 8;

/// One in this number of pods gives another's address to its own network.
const SQUATTERS: usize = 40;

/// State shared by all threads of a kubelet.
pub struct Kubelet {
    pub node: Arc<Node>,
    pub reporter: Reporter,
    pub tally: Arc<Tally>,
    /// Average life of a pod.
    pub life: Duration,
    /// Average pause between two requests of a pod.
    pub gap: Duration,
    /// Whether pods request tokens, too.
    pub has_tokens: bool,
    /// Number of pods so far.
    pub begun: AtomicUsize,
    /// All clients that ever sent requests.
    pub clients: Mutex<Vec<JoinHandle<()>>>,
}

/// An address, and its pod.
struct Slot {
    pod: Arc<Pod>,
    next: Instant,
    is_terminating: bool,
}

/// A namespace and an account in it.
pub fn account(number: usize) -> (String, String) {
    let account = number % ACCOUNTS;
    (format!("team-{}", account / 2), format!("app-{account}"))
}

impl Kubelet {
    /// Keeps a pod at each of these addresses until the clients have sent enough requests. A free address is given to
    /// the next pod at once.
    pub fn work(&self, api: &mut Client, addresses: &[Address]) {
        let mut slots: Vec<Slot> =
            addresses.iter().map(|address| self.slot(self.begin(api, *address, addresses))).collect();
        while !self.tally.is_complete() {
            let slot = slots.iter_mut().min_by_key(|slot| slot.next).expect("there are addresses");
            let wait = slot.next.saturating_duration_since(Instant::now());
            if !wait.is_zero() {
                pause(wait.min(Duration::from_millis(100)));
            } else if !slot.is_terminating && fastrand::bool() {
                api.delete_pod(&slot.pod.object, 30);
                slot.is_terminating = true;
                slot.next = Instant::now() + random(GRACE);
            } else {
                self.free(api, slot);
                let next = self.slot(self.begin(api, slot.pod.address, addresses));
                let old = std::mem::replace(slot, next);
                old.pod.stop_asking();
            }
        }
        for slot in &slots {
            slot.pod.stop_asking();
        }
    }

    fn slot(&self, pod: Arc<Pod>) -> Slot {
        let life = Duration::from_millis(500) + random(self.life * 2);
        Slot { next: pod.began + life, pod, is_terminating: false }
    }

    fn begin(&self, api: &mut Client, address: Address, others: &[Address]) -> Arc<Pod> {
        let number = self.begun.fetch_add(1, Relaxed);
        let (namespace, account) = account(fastrand::usize(..ACCOUNTS));
        let object = api.create_pod(&namespace, &format!("pod-{number}"), &account, NODE);
        let pod = Pod::start(&self.node, object, address);
        // One in four is never reported.
        if fastrand::u8(..4) > 0 {
            self.reporter.after(random(LATE), Event::Addresses, &pod);
        }
        let client = pod.live(self.gap, self.has_tokens, &self.tally);
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).push(client);
        let victim = others[fastrand::usize(..others.len())];
        if number.is_multiple_of(IMPOSTORS) && victim != address {
            pod.sandbox().claim(victim);
        }
        if number.is_multiple_of(SQUATTERS) && victim != address {
            pod.sandbox().squat(victim);
        }
        pod
    }

    /// Takes a pod's address away, in one of the possible orders of steps.
    fn free(&self, api: &mut Client, slot: &Slot) {
        let pod = &slot.pod;
        // Its processes end before its sandbox, or not.
        if fastrand::bool() {
            pod.stop_asking();
        }
        match fastrand::u8(..3) {
            0 => {
                pod.kill();
                pod.unplug();
            }
            1 => {
                pod.unplug();
                self.reporter.after(random(RELIC), Event::Killed, pod);
            }
            // The address is free, but its network still has it.
            _ => {
                if !slot.is_terminating {
                    api.delete_pod(&pod.object, 30);
                }
                pod.stick();
                self.reporter.after(random(RELIC), Event::Killed, pod);
            }
        }
        if !slot.is_terminating && fastrand::bool() {
            self.reporter.after(Duration::ZERO, Event::Ended, pod);
        }
        self.reporter.after(random(RELIC), Event::Gone, pod);
    }
}

fn random(most: Duration) -> Duration {
    most.mul_f64(fastrand::f64())
}
