//! [`Leads`]: the pods that the node's interfaces lead to.
//!
//! On most nodes each pod has a veth of its own: one end is in the pod's network, the other in the node's. The kernel keeps
//! with each connection by which interface the last packet of its handshake came in. Who sent that packet had read the one
//! before it, so the connection is of the network at the other end, whatever address it claims and whoever has begun since
//! the last scan.
//!
//! Which pod is at the other end is learned from a connection that a scan has attributed, once the pod has run for some seconds:
//! before, the connection may be of the pod that had its address before, and have waited to be accepted. It stays so: an index is not given to
//! another interface, and the end in the pod's network goes with that network. An interface that several pods are behind, such
//! as a bridge, leads to none.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZeroU32;

use parking_lot::Mutex;

use super::sandboxes::Sandbox;
use base::links;

/// Maximum number of interfaces that are remembered. Beyond it, all are learned again.
const MAX_INTERFACES: usize = 1024;

/// The pods that the node's interfaces lead to.
#[derive(Debug)]
pub struct Leads {
    leads: Mutex<HashMap<NonZeroU32, Lead>>,
    /// Whether an interface can lead to one pod's network only.
    is_of_one: fn(NonZeroU32) -> bool,
}

/// What an interface leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lead {
    /// The network of this pod.
    To(Sandbox),
    /// Several pods, perhaps.
    Shared,
}

impl Leads {
    /// `is_of_one`: whether an interface can lead to one pod's network only.
    pub(super) fn new(is_of_one: fn(NonZeroU32) -> bool) -> Self {
        Self { leads: Mutex::default(), is_of_one }
    }

    /// The pod that an interface leads to.
    pub fn to(&self, interface: NonZeroU32) -> Option<Sandbox> {
        match self.leads.lock().get(&interface)? {
            Lead::To(sandbox) => Some(*sandbox),
            Lead::Shared => None,
        }
    }

    /// Learns that a connection of this pod came in by an interface. `sandbox`: by a scan that began after the connection was
    /// accepted.
    pub fn learn(&self, interface: NonZeroU32, sandbox: Sandbox) {
        let mut leads = self.leads.lock();
        if leads.len() >= MAX_INTERFACES && !leads.contains_key(&interface) {
            *leads = HashMap::new();
        }
        match leads.entry(interface) {
            Entry::Vacant(lead) => {
                lead.insert(if (self.is_of_one)(interface) { Lead::To(sandbox) } else { Lead::Shared });
            }
            Entry::Occupied(mut lead) if *lead.get() != Lead::To(sandbox) => {
                lead.insert(Lead::Shared);
            }
            Entry::Occupied(_) => {}
        }
    }
}

/// Whether it is a veth whose other end is in another network, and no bridge takes its packets.
pub(super) fn is_veth_of_another_network(interface: NonZeroU32) -> bool {
    links::of_index(interface.get())
        .is_ok_and(|link| link.kind == "veth" && link.master.is_none() && link.leads_elsewhere)
}

#[cfg(test)]
mod tests {
    use super::super::PodUid;
    use super::*;
    use base::clock::BootTime;

    fn sandbox(number: u8, began: u64) -> Sandbox {
        let uid = PodUid::parse(&format!("{number:032x}")).expect("32 digits");
        Sandbox { uid, began: BootTime::from_nanos(began) }
    }

    fn index(number: u32) -> NonZeroU32 {
        NonZeroU32::new(number).expect("not 0")
    }

    #[test]
    fn an_interface_with_several_pods_leads_to_none() {
        let leads = Leads::new(|_| true);
        assert_eq!(leads.to(index(7)), None);
        leads.learn(index(7), sandbox(1, 50));
        leads.learn(index(8), sandbox(2, 50));
        leads.learn(index(7), sandbox(1, 50));
        assert_eq!([7, 8].map(|at| leads.to(index(at))), [Some(sandbox(1, 50)), Some(sandbox(2, 50))]);
        // Another sandbox of the same pod would have another interface.
        leads.learn(index(7), sandbox(1, 60));
        leads.learn(index(7), sandbox(1, 60));
        assert_eq!([7, 8].map(|at| leads.to(index(at))), [None, Some(sandbox(2, 50))]);
    }

    #[test]
    fn an_interface_that_is_no_pods_own_leads_to_none() {
        let leads = Leads::new(|interface| interface.get() == 8);
        leads.learn(index(7), sandbox(1, 50));
        leads.learn(index(8), sandbox(1, 50));
        assert_eq!([7, 8].map(|at| leads.to(index(at))), [None, Some(sandbox(1, 50))]);
        assert!(!is_veth_of_another_network(index(1)), "lo");
    }

    #[test]
    fn the_number_of_interfaces_is_bounded() {
        let leads = Leads::new(|_| true);
        for at in 1..=3000 {
            leads.learn(index(at), sandbox(1, at.into()));
            assert_eq!(leads.to(index(at)), Some(sandbox(1, at.into())));
        }
        assert!(leads.leads.lock().len() <= MAX_INTERFACES);
    }
}
