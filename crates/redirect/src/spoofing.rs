//! [`DropSpoofed`]: whether packets from addresses that are not the pod's own are dropped.
//!
//! The rule is a strict reverse-path check: a packet must arrive on the interface that routes to its source. That is right
//! where each pod has an interface of its own with a route, and where pods share a bridge with a route, on which it cannot
//! tell them apart. Where pods' packets arrive on one interface and are sent by another, as with Cilium, it would drop them
//! all. The node's interfaces show which of these it is: those of pods are veth, and a bridge takes the place of its ports.
//! The check is safe if each of them has a route.
//!
//! A route for each IP version that is routed to pods at all: on a node with IPv6, a network may give pods IPv4 alone.
//!
//! The interface of a new pod is there a moment before its route. So the keeper changes a decision only if two consecutive scans find
//! the same cause ([`Decision`](super::decision::Decision)), and until then the rules of either decision count as installed.

use std::collections::HashSet;
use std::fmt;

use strum::Display;

use super::decision::Scan;
use super::interfaces;
use base::links::Link;
use base::routes::Route;

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

/// Whether packets from addresses that are not the pods' own are dropped, and why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Spoofed {
    Dropped,
    LetPass(Cause),
}

/// Why these packets are not dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cause {
    /// The flag says so.
    Flag,
    /// Packets of pods may arrive on these interfaces, by which no route leads to pods.
    NoRoute(Vec<Unrouted>),
    /// No pod has an interface yet.
    NoPods,
    /// The interfaces or the routes cannot be listed.
    Unknown(String),
}

/// An interface by which no route of this IP version leads to pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unrouted {
    interface: String,
    version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Display)]
pub(super) enum Version {
    #[strum(serialize = "IPv4")]
    V4,
    #[strum(serialize = "IPv6")]
    V6,
}

/// The metric's label where the interfaces lead to these packets being dropped, but the tool refused the rules.
pub(super) const REFUSED: &str = "refused";

/// Maximum number of interfaces that a message names.
const NAMED: usize = 3;

impl Spoofed {
    /// All values of the metric's label.
    pub(super) const LABELS: [&str; 6] = ["dropped", "flag", "no_route", "no_pods", "unknown", REFUSED];

    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Dropped => "dropped",
            Self::LetPass(Cause::Flag) => "flag",
            Self::LetPass(Cause::NoRoute(_)) => "no_route",
            Self::LetPass(Cause::NoPods) => "no_pods",
            Self::LetPass(Cause::Unknown(_)) => "unknown",
        }
    }

    pub(super) fn is_dropped(&self) -> bool {
        *self == Self::Dropped
    }

    /// The text for the log and `redirect check`. `None` if these packets are dropped.
    pub(super) fn doubt(&self) -> Option<String> {
        match self {
            Self::Dropped => None,
            Self::LetPass(cause) => Some(format!("packets with spoofed source addresses are not dropped: {cause}")),
        }
    }
}

impl Scan for Spoofed {
    fn is_transient(&self) -> bool {
        matches!(self, Self::LetPass(Cause::NoRoute(_) | Cause::Unknown(_)))
    }

    /// While there are no pods, either decision is right. What cannot be listed may be as it was.
    fn says_nothing(&self) -> bool {
        matches!(self, Self::LetPass(Cause::NoPods | Cause::Unknown(_)))
    }

    /// Different pods that are being started are not the same cause.
    fn agreed(&self, later: &Self) -> Option<Self> {
        match (self, later) {
            (Self::LetPass(Cause::NoRoute(before)), Self::LetPass(Cause::NoRoute(now))) => {
                let both: Vec<_> = now.iter().filter(|unrouted| before.contains(unrouted)).cloned().collect();
                (!both.is_empty()).then_some(Self::LetPass(Cause::NoRoute(both)))
            }
            _ => (self.label() == later.label()).then(|| later.clone()),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => write!(f, "as --redirect-drop-spoofed=false wants"),
            Self::NoRoute(unrouted) => {
                let named = unrouted.iter().take(NAMED);
                let named: Vec<_> = named.map(|it| format!("{} ({})", it.interface, it.version)).collect();
                write!(f, "no route leads to pods by the interface {}", named.join(", "))?;
                if let Some(more @ 1..) = unrouted.len().checked_sub(NAMED) {
                    write!(f, " and {more} more")?;
                }
                write!(
                    f,
                    ", so it might drop packets of honest pods, too. If no pod is behind an interface any more, delete the interface"
                )
            }
            Self::NoPods => {
                write!(f, "no pod has an interface on this node yet; 'redirect install --keep' scans again")
            }
            Self::Unknown(why) => write!(f, "the node's interfaces or routes cannot be listed: {why}"),
        }
    }
}

/// The interfaces that a route leads to, other than those that each interface has by itself.
#[derive(Debug, Default)]
struct Routed {
    v4: HashSet<String>,
    v6: HashSet<String>,
}

impl Routed {
    fn by(&self, version: Version) -> &HashSet<String> {
        match version {
            Version::V4 => &self.v4,
            Version::V6 => &self.v6,
        }
    }
}

/// Scans the node's interfaces. No pod is behind an uplink.
pub(super) fn scan(uplinks: &[String]) -> Spoofed {
    match interfaces::links().and_then(|links| Ok((links, interfaces::routes()?))) {
        Ok((links, routes)) => judge(&links, uplinks, &routed(routes)),
        Err(error) => Spoofed::LetPass(Cause::Unknown(error.to_string())),
    }
}

fn judge(links: &[Link], uplinks: &[String], routed: &Routed) -> Spoofed {
    let pods = || links.iter().filter(|link| link.is_up && link.kind == "veth" && !uplinks.contains(&link.name));
    let mut entries = HashSet::new();
    for pod in pods() {
        match pod.master {
            None => entries.insert(pod),
            Some(master) => match links.iter().find(|link| link.index == master) {
                Some(bridge) if bridge.kind == "bridge" && bridge.is_up && !uplinks.contains(&bridge.name) => {
                    entries.insert(bridge)
                }
                // Open vSwitch and others: packets arrive on interfaces of their own, for which they add routes.
                _ => continue,
            },
        };
    }
    if entries.is_empty() && pods().next().is_none() {
        return Spoofed::LetPass(Cause::NoPods);
    }
    let mut without = Vec::new();
    for version in versions(links, uplinks, routed) {
        let unrouted = entries.iter().filter(|link| !routed.by(version).contains(&link.name));
        without.extend(unrouted.map(|link| Unrouted { interface: link.name.clone(), version }));
    }
    without.sort();
    if without.is_empty() { Spoofed::Dropped } else { Spoofed::LetPass(Cause::NoRoute(without)) }
}

/// The IP versions of pods: those with a route by an interface that is neither hardware nor an uplink. All, if there is none.
fn versions(links: &[Link], uplinks: &[String], routed: &Routed) -> Vec<Version> {
    let may_be_of_pods = |name: &String| {
        let is_hardware = links.iter().any(|link| link.name == *name && link.kind.is_empty());
        !is_hardware && !uplinks.contains(name)
    };
    let all = vec![Version::V4, Version::V6];
    let used: Vec<_> = all.iter().copied().filter(|version| routed.by(*version).iter().any(may_be_of_pods)).collect();
    if used.is_empty() { all } else { used }
}

fn routed(routes: Vec<Route>) -> Routed {
    let (v4, v6): (Vec<_>, Vec<_>) =
        routes.into_iter().filter(Route::leads_elsewhere).partition(|route| route.to.is_ipv4());
    let names = |routes: Vec<Route>| routes.into_iter().map(|route| route.interface).collect();
    Routed { v4: names(v4), v6: names(v6) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use base::routes::{parse_v4, parse_v6};

    pub(in super::super) fn link(index: u32, name: &str, kind: &str, master: Option<u32>) -> Link {
        Link { index, name: name.to_owned(), is_up: true, kind: kind.to_owned(), master, leads_elsewhere: false }
    }

    fn names(names: &[&str]) -> HashSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    pub(in super::super) fn no_route(unrouted: &[(&str, Version)]) -> Spoofed {
        let unrouted =
            unrouted.iter().map(|(name, version)| Unrouted { interface: (*name).to_owned(), version: *version });
        Spoofed::LetPass(Cause::NoRoute(unrouted.collect()))
    }

    pub(in super::super) const NO_PODS_YET: Spoofed = Spoofed::LetPass(Cause::NoPods);

    #[test]
    fn spoofed_packets_are_dropped_where_each_entry_of_pods_has_a_route() {
        for (what, links, routed, expected) in [
            ("a link for each pod", vec![link(3, "cali1", "veth", None)], vec!["cali1"], Spoofed::Dropped),
            (
                "one without a route",
                vec![link(3, "lxc1", "veth", None)],
                vec!["cilium_host"],
                no_route(&[("lxc1", Version::V4)]),
            ),
            (
                "a bridge",
                vec![link(3, "cni0", "bridge", None), link(4, "veth1", "veth", Some(3))],
                vec!["cni0"],
                Spoofed::Dropped,
            ),
            (
                "a bridge without a route",
                vec![link(3, "br0", "bridge", None), link(4, "veth1", "veth", Some(3))],
                vec![],
                no_route(&[("br0", Version::V4), ("br0", Version::V6)]),
            ),
            (
                "Open vSwitch",
                vec![link(3, "ovs-system", "openvswitch", None), link(4, "veth1", "veth", Some(3))],
                vec!["antrea-gw0"],
                Spoofed::Dropped,
            ),
            ("an uplink", vec![link(2, "eth0", "veth", None)], vec![], NO_PODS_YET),
            ("no pods", vec![link(3, "docker0", "bridge", None), link(4, "ens4", "", None)], vec![], NO_PODS_YET),
        ] {
            let routed = Routed { v4: names(&routed), v6: HashSet::new() };
            assert_eq!(judge(&links, &["eth0".to_owned()], &routed), expected, "{what}");
        }
    }

    #[test]
    fn a_route_of_one_ip_version_is_none_of_the_other() {
        let links = [link(2, "ens4", "", None), link(3, "cali1", "veth", None), link(4, "cali2", "veth", None)];
        for (what, v4, v6, expected) in [
            ("both", &["cali1", "cali2"][..], &["cali1", "cali2"][..], Spoofed::Dropped),
            ("pods without IPv6 on a node with it", &["cali1", "cali2"], &["ens4"], Spoofed::Dropped),
            ("pods without IPv4 on a node with it", &["ens4"], &["cali1", "cali2"], Spoofed::Dropped),
            ("one with IPv6 alone", &["cali1"], &["cali1", "cali2"], no_route(&[("cali2", Version::V4)])),
            ("IPv4 by another interface", &["tunnel"], &["cali1", "cali2"], {
                no_route(&[("cali1", Version::V4), ("cali2", Version::V4)])
            }),
        ] {
            let routed = Routed { v4: names(v4), v6: names(v6) };
            assert_eq!(judge(&links, &[], &routed), expected, "{what}");
        }
    }

    #[test]
    fn a_message_names_a_few_interfaces() {
        let named = no_route(&["a", "b", "c", "d", "e"].map(|name| (name, Version::V6))).doubt().expect("let pass");
        assert!(named.contains("by the interface a (IPv6), b (IPv6), c (IPv6) and 2 more, so it"), "{named}");
        let named = no_route(&["a", "b", "c"].map(|name| (name, Version::V6))).doubt().expect("let pass");
        assert!(named.contains("c (IPv6), so it"), "{named}");
    }

    #[test]
    fn each_outcome_has_a_label() {
        let causes = [Cause::Flag, Cause::NoRoute(vec![]), Cause::NoPods, Cause::Unknown(String::new())];
        let outcomes = std::iter::once(Spoofed::Dropped).chain(causes.map(Spoofed::LetPass));
        let labels = outcomes.map(|outcome| outcome.label()).chain([REFUSED]);
        assert_eq!(labels.collect::<Vec<_>>(), Spoofed::LABELS);
    }

    #[test]
    fn an_interface_that_is_down_brings_no_packets() {
        let down = Link { is_up: false, ..link(3, "left", "veth", None) };
        let links = [down, link(4, "cali1", "veth", None)];
        let routed = Routed { v4: names(&["cali1"]), ..Routed::default() };
        assert_eq!(judge(&links, &[], &routed), Spoofed::Dropped);
    }

    #[test]
    fn routes_that_each_interface_has_lead_to_no_pod() {
        let v4 =
            "ens4\t00000000\t0100800A\t0003\t0\t0\t0\t00000000\ncali1\t0201080A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\n";
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
        let found = routed([parse_v4(v4), parse_v6(&table.concat())].concat());
        assert_eq!((found.v4, found.v6), (names(&["ens4", "cali1"]), names(&["cali2"])));
    }
}
