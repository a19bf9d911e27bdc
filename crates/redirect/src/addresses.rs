//! The proxy's addresses on the node's interface `lo`.
//!
//! Pods on any interface can be redirected to a dedicated address. A loopback address would need the sysctl
//! `route_localnet`, and cannot be used for IPv6. Addresses are added and removed by netlink, rtnetlink(7), because the
//! image of the redirect has no `ip`.
//!
//! Addresses that the redirect added have a mark: their metric, which `ip address` also shows:
//! `inet 169.254.169.252/32 metric 61988`. It has no other effect on an address of one host. The kernel keeps it with the
//! address (since Linux 4.18), so it outlives the rules and the process. Addresses that another program added stay.
//!
//! The addresses are for incoming connections only. Calico's interfaces have no address, so the kernel could choose one of
//! `lo` as the source of a connection to a pod. The scope prevents this for IPv4; for IPv6, the address is deprecated.

use std::io;
use std::net::IpAddr;

use base::netlink::{self, NLM_F_ACK, NLM_F_DUMP, add_attribute, ask, attributes, number};
use base::routes;

/// The index of `lo` in every network namespace.
const LO: u32 = 1;

/// The mark: the proxy's user ID in a sidecar, a number that nobody chooses by chance.
const METRIC: u32 = super::SIDECAR_UID;

/// From `linux/netlink.h`, `linux/rtnetlink.h` and `linux/if_addr.h`.
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_EXCL: u16 = 0x200;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_CACHEINFO: u16 = 6;
const IFA_RT_PRIORITY: u16 = 9;
/// Skips the second in which the kernel checks whether another machine has the address.
const IFA_F_NODAD: u8 = 0x2;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_HOST: u8 = 254;

const EXISTS: i32 = 17;

/// Length of `ifaddrmsg`.
const MESSAGE: usize = 8;

/// An address of this network namespace.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    ip: IpAddr,
    interface: u32,
    metric: u32,
}

impl Address {
    fn is_ours(&self) -> bool {
        self.interface == LO && self.metric == METRIC
    }
}

/// Whether this network namespace has an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// Added by the redirect.
    Ours,
    /// Added by another program.
    Others,
    Absent,
}

pub(super) fn find(ip: IpAddr) -> io::Result<Presence> {
    let found: Vec<Address> = list()?.into_iter().filter(|address| address.ip == ip).collect();
    Ok(match found.iter().any(Address::is_ours) {
        true => Presence::Ours,
        false if found.is_empty() => Presence::Absent,
        false => Presence::Others,
    })
}

/// Whether packets to this address stay on this node.
pub(super) fn is_local(ip: IpAddr) -> io::Result<bool> {
    #[cfg(test)]
    if let Some(listed) = pretended_list() {
        return Ok(listed?.iter().any(|address| address.ip == ip));
    }
    routes::is_local(ip)
}

/// Whether the redirect has added an address.
pub(super) fn has_any() -> io::Result<bool> {
    Ok(list()?.iter().any(Address::is_ours))
}

/// Adds an address to `lo`, unless it exists.
pub(super) fn add(ip: IpAddr) -> io::Result<()> {
    let flags = NLM_F_CREATE | NLM_F_EXCL;
    match change(RTM_NEWADDR, flags, ip) {
        Err(error) if error.raw_os_error() == Some(EXISTS) => Ok(()),
        outcome => outcome,
    }
}

/// Removes the addresses that the redirect added.
pub(super) fn remove() -> io::Result<()> {
    remove_except(&[])
}

/// Removes the addresses that the redirect added, except `kept`. Returns the first error.
pub(super) fn remove_except(kept: &[IpAddr]) -> io::Result<()> {
    let ours = list()?.into_iter().filter(|address| address.is_ours() && !kept.contains(&address.ip));
    let mut outcome = Ok(());
    for address in ours {
        outcome = outcome.and(change(RTM_DELADDR, 0, address.ip));
    }
    outcome
}

fn change(kind: u16, flags: u16, ip: IpAddr) -> io::Result<()> {
    #[cfg(test)]
    if let Some(changed) = pretended_change(kind, ip) {
        return changed;
    }
    ask(kind, flags | NLM_F_ACK, &addressed(ip)).map(drop)
}

fn list() -> io::Result<Vec<Address>> {
    #[cfg(test)]
    if let Some(listed) = pretended_list() {
        return listed;
    }
    let any = [0; MESSAGE];
    let messages = ask(RTM_GETADDR, NLM_F_DUMP, &any)?;
    Ok(messages.iter().filter_map(|message| read(message)).collect())
}

/// The addresses that a test pretends to have.
#[cfg(test)]
fn pretended_list() -> Option<io::Result<Vec<Address>>> {
    let ours = |ip: &IpAddr| Address { ip: *ip, interface: LO, metric: METRIC };
    super::fake::with_addresses(|addresses| Ok(addresses?.iter().map(ours).collect()))
}

#[cfg(test)]
fn pretended_change(kind: u16, ip: IpAddr) -> Option<io::Result<()>> {
    super::fake::with_addresses(|addresses| {
        let addresses = addresses?;
        addresses.retain(|other| *other != ip);
        addresses.extend((kind == RTM_NEWADDR).then_some(ip));
        Ok(())
    })
}

/// An `ifaddrmsg` and its attributes.
fn addressed(ip: IpAddr) -> Vec<u8> {
    let (family, bytes, prefix) = netlink::parts(ip);
    let scope = if ip.is_ipv4() { RT_SCOPE_HOST } else { RT_SCOPE_UNIVERSE };
    let mut message = vec![family, prefix, IFA_F_NODAD, scope];
    message.extend(LO.to_ne_bytes());
    add_attribute(&mut message, IFA_LOCAL, &bytes);
    add_attribute(&mut message, IFA_ADDRESS, &bytes);
    add_attribute(&mut message, IFA_RT_PRIORITY, &METRIC.to_ne_bytes());
    if ip.is_ipv6() {
        // Deprecated at once, valid for ever, and two times that the kernel sets.
        let lifetimes = [0, u32::MAX, 0, 0].map(u32::to_ne_bytes).concat();
        add_attribute(&mut message, IFA_CACHEINFO, &lifetimes);
    }
    message
}

/// Reads an `ifaddrmsg` and its attributes.
fn read(message: &[u8]) -> Option<Address> {
    let interface = number(message, 4)?;
    let (mut address, mut local, mut metric) = (None, None, 0);
    for (kind, body) in attributes(message.get(MESSAGE..)?) {
        match kind {
            IFA_ADDRESS => address = ip(body),
            // If the interface has a peer, `IFA_ADDRESS` is the peer's address.
            IFA_LOCAL => local = ip(body),
            IFA_RT_PRIORITY => metric = number(body, 0)?,
            _ => {}
        }
    }
    Some(Address { ip: local.or(address)?, interface, metric })
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        for ip in ["169.254.169.252", "fd20:ce::252"].map(|ip| ip.parse().expect("an address")) {
            let found = read(&addressed(ip)).expect("an address");
            assert_eq!(found, Address { ip, interface: LO, metric: METRIC });
            assert!(found.is_ours());
        }
    }

    #[test]
    fn a_message_that_ends_early_is_no_address() {
        let whole = addressed([169, 254, 169, 252].into());
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_none_or(|address| !address.is_ours()), "{length} bytes");
        }
    }

    /// Every network namespace has loopback, and listing needs no privilege.
    #[test]
    fn loopback_is_found_and_is_not_ours() {
        assert_eq!(find([127, 0, 0, 1].into()).expect("the kernel answers"), Presence::Others);
        assert_eq!(find([192, 0, 2, 1].into()).expect("the kernel answers"), Presence::Absent);
    }
}
