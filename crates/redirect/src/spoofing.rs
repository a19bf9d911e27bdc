//! [`DropSpoofed`]: whether packets from addresses that are not the pod's own are dropped.
//!
//! The rule is a strict reverse-path check: a packet must arrive on the interface that routes to its source. That is right
//! where each pod has an interface of its own with a route, and where pods share a bridge with a route, on which it cannot
//! tell them apart. Where pods' packets arrive on one interface and are sent by another, as with Cilium, it would drop them
//! all. The node's interfaces show which of these it is: those of pods are veth, and a bridge takes the place of its ports.
//! The check is safe if each of them has a route.
//!
//! The interface of a new pod is there a moment before its route. So the keeper follows a change only if two checks in a row
//! find it, and until then the rules of either decision count as installed.

use std::collections::HashSet;
use std::fs;
use std::io;

use strum::Display;

use super::netlink::{NLM_F_DUMP, ask, attributes, number};
use super::uplinks::{ROUTES, ROUTES_V6};

/// Whether to drop packets that arrive on an interface other than the one that routes to their source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Display)]
#[strum(serialize_all = "lowercase")]
pub enum DropSpoofed {
    /// Where the node's interfaces show that it is safe.
    #[default]
    Auto,
    True,
    False,
}

/// How packets between the node and its pods pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Paths {
    /// To pods by the interfaces that their packets arrive on.
    Symmetric,
    /// There is no route by this interface, on which pods' packets may arrive.
    NoRoute(String),
    /// No pod has an interface yet.
    NoPods,
    /// The interfaces cannot be listed.
    Unknown(String),
}

impl Paths {
    /// Why spoofed packets are not dropped. `None` if they are.
    pub(super) fn doubt(&self) -> Option<String> {
        let why = match self {
            Self::Symmetric => return None,
            Self::NoRoute(interface) => {
                format!(
                    "no route leads to pods by the interface {interface}, so it might drop packets of honest pods, too"
                )
            }
            Self::NoPods => {
                "no pod has an interface on this node yet; 'redirect install --keep' looks again".to_owned()
            }
            Self::Unknown(why) => format!("the node's interfaces cannot be listed: {why}"),
        };
        Some(why)
    }
}

/// From `linux/rtnetlink.h`, `linux/if_link.h` and `linux/if.h`.
const RTM_GETLINK: u16 = 18;
const IFLA_IFNAME: u16 = 3;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFF_UP: u32 = 1;

/// Length of `ifinfomsg`.
const MESSAGE: usize = 16;

/// Flags of routes that lead to the node itself or nowhere: `RTF_LOCAL`, `RTF_ANYCAST`, `RTF_REJECT`.
const NO_PODS: u32 = 0x8010_0200;

/// An interface.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Link {
    index: u32,
    name: String,
    is_up: bool,
    /// Empty for hardware.
    kind: String,
    /// The index of the bridge or of another interface that takes its packets.
    master: Option<u32>,
}

/// Finds out how pods' packets pass. No pod is behind an uplink.
pub(super) fn paths(uplinks: &[String]) -> Paths {
    match links() {
        Ok(links) => {
            let table = |path| fs::read_to_string(path).unwrap_or_default();
            judge(&links, uplinks, &routed(&table(ROUTES), &table(ROUTES_V6)))
        }
        Err(error) => Paths::Unknown(error.to_string()),
    }
}

fn judge(links: &[Link], uplinks: &[String], routed: &HashSet<String>) -> Paths {
    let pods = || links.iter().filter(|link| link.is_up && link.kind == "veth" && !uplinks.contains(&link.name));
    let mut entries = HashSet::new();
    for pod in pods() {
        match pod.master {
            None => entries.insert(pod),
            Some(master) => match links.iter().find(|link| link.index == master) {
                Some(bridge) if bridge.kind == "bridge" && bridge.is_up && !uplinks.contains(&bridge.name) => {
                    entries.insert(bridge)
                }
                // Of Open vSwitch and others: the packets arrive on interfaces of theirs, which they give a route.
                _ => continue,
            },
        };
    }
    let mut without: Vec<&String> =
        entries.iter().map(|link| &link.name).filter(|name| !routed.contains(*name)).collect();
    without.sort();
    match without.first() {
        Some(name) => Paths::NoRoute((*name).clone()),
        None if pods().next().is_none() => Paths::NoPods,
        None => Paths::Symmetric,
    }
}

fn links() -> io::Result<Vec<Link>> {
    let any = [0; MESSAGE];
    Ok(ask(RTM_GETLINK, NLM_F_DUMP, &any)?.iter().filter_map(|message| read(message)).collect())
}

/// Reads an `ifinfomsg` and its attributes.
fn read(message: &[u8]) -> Option<Link> {
    let (index, flags) = (number(message, 4)?, number(message, 8)?);
    let (mut name, mut kind, mut master) = (None, String::new(), None);
    for (attribute, value) in attributes(message.get(MESSAGE..)?) {
        match attribute {
            IFLA_IFNAME => name = text(value),
            IFLA_MASTER => master = number(value, 0),
            IFLA_LINKINFO => {
                let found = attributes(value).find(|(attribute, _)| *attribute == IFLA_INFO_KIND);
                kind = found.and_then(|(_, value)| text(value)).unwrap_or_default();
            }
            _ => {}
        }
    }
    Some(Link { index, name: name?, is_up: flags & IFF_UP != 0, kind, master })
}

/// A text that may end with a zero.
fn text(value: &[u8]) -> Option<String> {
    std::str::from_utf8(value).ok().map(|text| text.trim_end_matches('\0').to_owned())
}

/// The interfaces that a route of IPv4 or IPv6 leads to, other than those that each interface has by itself.
fn routed(v4: &str, v6: &str) -> HashSet<String> {
    let v4 = v4.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let flags = u32::from_str_radix(fields.get(3)?, 16).ok()?;
        (flags & NO_PODS == 0).then(|| fields[0].to_owned())
    });
    let v6 = v6.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [to, .., flags, interface] = fields[..] else { return None };
        let flags = u32::from_str_radix(flags, 16).ok()?;
        // Link-local addresses and multicast.
        let is_own = to.starts_with("fe8") || to.starts_with("ff");
        (flags & NO_PODS == 0 && !is_own).then(|| interface.to_owned())
    });
    v4.chain(v6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, kind: &str, master: Option<u32>) -> Link {
        Link { index, name: name.to_owned(), is_up: true, kind: kind.to_owned(), master }
    }

    #[test]
    fn spoofed_packets_are_dropped_where_each_entry_of_pods_has_a_route() {
        let no_route = |name: &str| Paths::NoRoute(name.to_owned());
        for (what, links, routed, expected) in [
            ("a link for each pod", vec![link(3, "cali1", "veth", None)], vec!["cali1"], Paths::Symmetric),
            ("one without a route", vec![link(3, "lxc1", "veth", None)], vec!["cilium_host"], no_route("lxc1")),
            (
                "a bridge",
                vec![link(3, "cni0", "bridge", None), link(4, "veth1", "veth", Some(3))],
                vec!["cni0"],
                Paths::Symmetric,
            ),
            (
                "a bridge without a route",
                vec![link(3, "br0", "bridge", None), link(4, "veth1", "veth", Some(3))],
                vec![],
                no_route("br0"),
            ),
            (
                "Open vSwitch",
                vec![link(3, "ovs-system", "openvswitch", None), link(4, "veth1", "veth", Some(3))],
                vec!["antrea-gw0"],
                Paths::Symmetric,
            ),
            ("an uplink", vec![link(2, "eth0", "veth", None)], vec![], Paths::NoPods),
            ("no pods", vec![link(3, "docker0", "bridge", None), link(4, "ens4", "", None)], vec![], Paths::NoPods),
        ] {
            let routed = routed.into_iter().map(str::to_owned).collect();
            assert_eq!(judge(&links, &["eth0".to_owned()], &routed), expected, "{what}");
        }
    }

    #[test]
    fn an_interface_that_is_down_brings_no_packets() {
        let down = Link { is_up: false, ..link(3, "left", "veth", None) };
        let links = [down, link(4, "cali1", "veth", None)];
        assert_eq!(judge(&links, &[], &HashSet::from(["cali1".to_owned()])), Paths::Symmetric);
    }

    #[test]
    fn routes_that_each_interface_has_lead_to_no_pod() {
        let v4 = "Iface\tDestination\tGateway\tFlags\tRefCnt\nens4\t00000000\t0100800A\t0003\t0\ncali1\t0201080A\t00000000\t0005\t0\n";
        let none = "00000000000000000000000000000000";
        let v6 = |to: &str, flags: &str, interface: &str| {
            format!("{to} 40 {none} 00 {none} 00000100 00000001 00000000 {flags} {interface}\n")
        };
        let pod = "fd00000b000100000000000000000002";
        let table = [
            v6("fe800000000000000000000000000000", "00000001", "lxc1"),
            v6("ff000000000000000000000000000000", "00000001", "lxc1"),
            v6(pod, "80200001", "lxc1"),
            v6(pod, "00000001", "cali2"),
        ];
        let expected = ["ens4", "cali1", "cali2"].map(str::to_owned);
        assert_eq!(routed(v4, &table.concat()), HashSet::from(expected));
    }
}
