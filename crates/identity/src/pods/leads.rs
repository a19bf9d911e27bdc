//! [`Leads`]: the pods that the node's interfaces lead to.
//!
//! On most nodes each pod has a veth of its own: one end is in the pod's network, the other in the node's. The kernel keeps
//! with each connection the interface that the last packet of its handshake came in by. That packet acknowledges a sequence
//! number that only the receiver of the packet before it knows. So the connection comes from the network at the other end of the
//! interface, whatever its address is, and even if pods have started since the last scan.
//!
//! Which pod is at the other end is learned from a connection that a scan has attributed, once the pod has run for some
//! seconds: before, the connection may be of the pod that had its address before, and have waited to be accepted. A lead ends
//! when the kernel reports that its interface has changed or is gone. It does so before another interface gets the index.
//! An interface that several pods may share, such as a bridge, leads to none.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZeroU32;
use std::{fs, io};

use parking_lot::Mutex;

use super::sandbox::Sandbox;
use super::scanner::SETTLED;
use base::clock::BootTime;
use base::links::{self, Change, Changes, Lost};
use base::routes::{self, Route};

/// Maximum number of interfaces that are remembered. Beyond it, all are learned again, except that those which have been gone for
/// long are forgotten first.
const MAX_INTERFACES: usize = 1024;

/// Bits of the sysctl `tcp_fastopen`: servers accept data with the first packet, even those that did not ask for it.
const FAST_OPEN_OF_SERVERS: u32 = 0x402;

/// Bit of the sysctl `flowlabel_reflect`: the kernel keeps the first packet of a handshake.
const REFLECTS: u32 = 1;

/// The pods that the node's interfaces lead to.
#[derive(Debug)]
pub struct Leads {
    state: Mutex<State>,
    /// `None` if the kernel cannot be asked, or keeps another interface: then no interface leads anywhere.
    kernel: Option<Kernel>,
}

#[derive(Debug)]
struct State {
    interfaces: HashMap<NonZeroU32, Interface>,
    /// Interfaces that are not remembered may have been gone until this moment.
    began: BootTime,
}

/// What is known of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interface {
    /// A connection of this pod came in by it. Whether those of others can is not known yet.
    By(Sandbox),
    /// It leads to the network of this pod.
    To(Sandbox),
    /// Several pods may be behind it.
    Shared,
    /// It changed or was gone at this moment at the latest. Another one may have its index now.
    Changed(BootTime),
}

/// The node's interfaces, as the kernel reports them.
#[derive(Debug)]
struct Kernel {
    /// `None` in tests.
    changes: Option<Changes>,
    /// Whether only one pod can be behind an interface. Blocks while any interface of the machine is added or removed.
    is_of_one: fn(NonZeroU32, &[Route]) -> io::Result<bool>,
}

impl Leads {
    /// Those of this network namespace.
    pub(super) fn of_node() -> Self {
        let changes = Changes::subscribe().inspect_err(|error| {
            tracing::warn!("changes of interfaces cannot be followed: {error}; each new connection waits for a scan");
        });
        let is_trusted = is_trusted();
        if !is_trusted {
            tracing::info!(
                "with the sysctls tcp_fastopen (0x402) or flowlabel_reflect (1), each new connection waits for a scan"
            );
        }
        let kernel = changes.ok().filter(|_| is_trusted).map(|changes| Kernel { changes: Some(changes), is_of_one });
        Self { state: Mutex::new(State::new(BootTime::now())), kernel }
    }

    /// Only one pod is behind each interface for which this says so.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn fake(is_of_one: fn(NonZeroU32, &[Route]) -> io::Result<bool>) -> Self {
        let kernel = Kernel { changes: None, is_of_one };
        Self { state: Mutex::new(State::new(BootTime::from_nanos(0))), kernel: Some(kernel) }
    }

    /// The pod that an interface leads to.
    pub fn to(&self, interface: NonZeroU32) -> Option<Sandbox> {
        let state = &mut *self.state.lock();
        self.kernel.as_ref()?.update(state);
        match state.interfaces.get(&interface)? {
            Interface::To(sandbox) => Some(*sandbox),
            _ => None,
        }
    }

    /// Learns that a connection of this pod came in by an interface. `sandbox`: by a scan that began after the connection was
    /// accepted. Takes effect with the next [`check`](Self::check).
    pub fn learn(&self, interface: NonZeroU32, sandbox: Sandbox, accepted: BootTime) {
        // An older connection may be of another pod, or have come by another interface.
        let is_settled = |since: BootTime| accepted.since(since) >= SETTLED;
        let Some(kernel) = self.kernel.as_ref().filter(|_| is_settled(sandbox.began)) else { return };
        let state = &mut *self.state.lock();
        kernel.update(state);
        state.make_room(interface);
        if !is_settled(state.began) {
            return;
        }
        match state.interfaces.entry(interface) {
            Entry::Vacant(vacant) => {
                vacant.insert(Interface::By(sandbox));
            }
            Entry::Occupied(mut known) => match *known.get() {
                Interface::Changed(noticed) if is_settled(noticed) => {
                    known.insert(Interface::By(sandbox));
                }
                Interface::By(other) | Interface::To(other) if other != sandbox => {
                    known.insert(Interface::Shared);
                }
                Interface::By(_) | Interface::To(_) | Interface::Shared | Interface::Changed(_) => {}
            },
        }
    }

    /// Whether an interface leads to this sandbox.
    pub fn has(&self, sandbox: Sandbox) -> bool {
        let state = &mut *self.state.lock();
        self.kernel.as_ref().is_some_and(|kernel| {
            kernel.update(state);
            state.interfaces.values().any(|known| *known == Interface::To(sandbox))
        })
    }

    /// Whether something was learned since the last [`check`](Self::check).
    pub fn has_new(&self) -> bool {
        !self.new_ones().is_empty()
    }

    /// Finds out behind which interfaces only one pod can be. May block: not for the event loop.
    pub fn check(&self) {
        let Some(kernel) = &self.kernel else { return };
        let new = self.new_ones();
        // If something cannot be read, the next check tries again.
        let Ok(routes) = routes::list() else { return };
        for (interface, sandbox) in new {
            let Ok(is_of_one) = (kernel.is_of_one)(interface, &routes) else { continue };
            let state = &mut *self.state.lock();
            kernel.update(state);
            // Unless it has changed meanwhile.
            if let Some(known) = state.interfaces.get_mut(&interface)
                && *known == Interface::By(sandbox)
            {
                *known = if is_of_one { Interface::To(sandbox) } else { Interface::Shared };
            }
        }
    }

    fn new_ones(&self) -> Vec<(NonZeroU32, Sandbox)> {
        let state = &mut *self.state.lock();
        let Some(kernel) = &self.kernel else { return Vec::new() };
        kernel.update(state);
        let new = |(interface, known): (&NonZeroU32, &Interface)| match known {
            Interface::By(sandbox) => Some((*interface, *sandbox)),
            _ => None,
        };
        state.interfaces.iter().filter_map(new).collect()
    }
}

impl Kernel {
    /// Forgets what is known of interfaces that have changed or are gone.
    fn update(&self, state: &mut State) {
        let Some(changes) = &self.changes else { return };
        let mut is_complete = true;
        loop {
            match changes.next() {
                Ok(Some(change)) => state.change(change),
                // Until all reports are read, the kernel may drop more without an error.
                Err(Lost) if is_complete => is_complete = false,
                Ok(None) | Err(Lost) => break,
            }
        }
        if !is_complete {
            state.forget();
        }
    }
}

impl State {
    fn new(began: BootTime) -> Self {
        Self { interfaces: HashMap::new(), began }
    }

    fn change(&mut self, change: Change) {
        let changed = Interface::Changed(BootTime::now());
        match change {
            Change::New(index) => {
                self.interfaces.entry(index).and_modify(|known| *known = changed);
            }
            Change::Gone(index) => {
                self.make_room(index);
                self.interfaces.insert(index, changed);
            }
        }
    }

    fn make_room(&mut self, index: NonZeroU32) {
        if self.interfaces.len() < MAX_INTERFACES || self.interfaces.contains_key(&index) {
            return;
        }
        let Self { interfaces, began } = self;
        let now = BootTime::now();
        interfaces.retain(|_, known| match known {
            Interface::Changed(noticed) if now.since(*noticed) >= SETTLED => {
                *began = (*began).max(*noticed);
                false
            }
            _ => true,
        });
        if interfaces.len() >= MAX_INTERFACES {
            self.forget();
        }
    }

    /// Forgets all interfaces.
    fn forget(&mut self) {
        *self = Self::new(BootTime::now());
    }
}

/// Whether it is a veth whose other end is in another network. If a bridge takes its packets, or a route to more than one address
/// uses it, several pods may share it.
fn is_of_one(interface: NonZeroU32, routes: &[Route]) -> io::Result<bool> {
    let link = links::of_index(interface.get())?;
    let is_to_others = |route: &Route| route.interface == link.name && route.leads_elsewhere() && !route.is_to_host();
    let is_veth = link.kind == "veth" && link.master.is_none() && link.leads_elsewhere;
    Ok(is_veth && !routes.iter().any(is_to_others))
}

/// Whether the kernel keeps the interface of a handshake's last packet. It keeps that of the first one, which shows nothing, where
/// that packet may open a connection, and where its label is reflected. Both are decided when a listener is made.
fn is_trusted() -> bool {
    let number = |file: &str| fs::read_to_string(file).ok()?.trim().parse().ok();
    let has = |file, bits: u32| number(file).map(|number: u32| number & bits == bits);
    has("/proc/sys/net/ipv4/tcp_fastopen", FAST_OPEN_OF_SERVERS) == Some(false)
        // Absent in a kernel without IPv6.
        && has("/proc/sys/net/ipv6/flowlabel_reflect", REFLECTS) != Some(true)
}

#[cfg(test)]
mod tests {
    use super::super::PodUid;
    use super::*;

    fn sandbox(number: u8, began: u64) -> Sandbox {
        let uid = PodUid::parse(&format!("{number:032x}")).expect("32 digits");
        Sandbox { uid, began: at(began) }
    }

    /// A number of seconds after boot.
    fn at(seconds: u64) -> BootTime {
        BootTime::from_nanos(seconds * 1_000_000_000)
    }

    fn index(number: u32) -> NonZeroU32 {
        NonZeroU32::new(number).expect("not 0")
    }

    /// Learns, and checks what was learned.
    fn learn(leads: &Leads, interface: u32, sandbox: Sandbox) {
        leads.learn(index(interface), sandbox, sandbox.began + SETTLED);
        leads.check();
    }

    fn to(leads: &Leads, interfaces: [u32; 2]) -> [Option<Sandbox>; 2] {
        interfaces.map(|interface| leads.to(index(interface)))
    }

    #[test]
    fn an_interface_with_several_pods_leads_to_none() {
        let leads = Leads::fake(|_, _| Ok(true));
        assert_eq!(to(&leads, [7, 8]), [None; 2]);
        for (interface, pod) in [(7, 1), (8, 2), (7, 1)] {
            learn(&leads, interface, sandbox(pod, 50));
        }
        assert_eq!(to(&leads, [7, 8]), [Some(sandbox(1, 50)), Some(sandbox(2, 50))]);
        // Another sandbox of the same pod.
        for _ in 0..2 {
            learn(&leads, 7, sandbox(1, 60));
        }
        assert_eq!(to(&leads, [7, 8]), [None, Some(sandbox(2, 50))]);
    }

    #[test]
    fn an_interface_that_is_no_pods_own_leads_to_none() {
        let leads = Leads::fake(|interface, _| Ok(interface.get() == 8));
        leads.learn(index(8), sandbox(1, 50), at(60));
        assert_eq!(to(&leads, [7, 8]), [None; 2], "not checked yet");
        learn(&leads, 7, sandbox(1, 50));
        assert_eq!(to(&leads, [7, 8]), [None, Some(sandbox(1, 50))]);
        assert!(!is_of_one(index(1), &[]).expect("it exists"), "lo");
    }

    #[test]
    fn an_interface_that_has_changed_or_was_gone_is_learned_again_from_later_connections() {
        let leads = Leads::fake(|_, _| Ok(true));
        let learned = |interface, accepted| {
            leads.learn(index(interface), sandbox(1, 50), accepted);
            leads.check();
            leads.to(index(interface)).is_some()
        };
        assert!(learned(7, at(60)) && learned(8, at(60)));
        leads.state.lock().change(Change::New(index(7)));
        leads.state.lock().change(Change::Gone(index(8)));
        assert_eq!(to(&leads, [7, 8]), [None; 2]);
        leads.state.lock().change(Change::New(index(8)));
        let now = BootTime::now();
        for interface in [7, 8] {
            assert!(!learned(interface, at(60)) && !learned(interface, now + SETTLED / 2));
            assert!(learned(interface, now + 2 * SETTLED));
        }
        leads.state.lock().forget();
        assert!(!learned(7, now + SETTLED / 2), "it may have been gone");
        assert!(learned(7, now + 2 * SETTLED));
    }

    #[test]
    fn an_interface_that_cannot_be_asked_about_is_asked_about_again() {
        let leads = Leads::fake(|_, _| Err(io::ErrorKind::OutOfMemory.into()));
        learn(&leads, 7, sandbox(1, 50));
        assert_eq!((leads.to(index(7)), leads.has_new()), (None, true));
    }

    #[test]
    fn the_number_of_interfaces_is_bounded() {
        let leads = Leads::fake(|_, _| Ok(true));
        for at in 1..=3000 {
            leads.state.lock().change(Change::Gone(index(at)));
        }
        assert!(leads.state.lock().interfaces.len() <= MAX_INTERFACES);
        learn(&leads, 4000, sandbox(1, 50));
        assert_eq!(leads.to(index(4000)), None);
    }

    #[test]
    fn interfaces_that_changed_long_ago_make_room_and_stay_unknown_to_older_connections() {
        let leads = Leads::fake(|_, _| Ok(true));
        let old = (1..1024).map(|at| (index(at), Interface::Changed(self::at(at.into()))));
        leads.state.lock().interfaces.extend(old);
        learn(&leads, 3000, sandbox(1, 50));
        assert_eq!(leads.to(index(3000)), Some(sandbox(1, 50)));
        leads.state.lock().change(Change::Gone(index(3001)));
        let state = leads.state.lock();
        assert_eq!((state.began, state.interfaces.len()), (at(1023), 2));
    }
}
