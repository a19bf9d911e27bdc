//! The rules as data. [`nft`](super::nft) and [`iptables`](super::iptables) translate them, so that both
//! install the same rules.

mod chains;

use std::net::SocketAddr;

use super::rule::{Chain, Name, Rule, When};
use super::uplinks::Uplinks;
use super::{Destination, Mode, Opened, Settings};
use chains::{LOOPBACK, bound, bypass, guard, guard_loopback, guard_port, guard_proxy, guard_with, leaving};

/// Maximum number of source addresses whose new connections are counted. More than a node has pods, because a pod on a
/// bridge can use any address of the bridge's network. Connections of further addresses pass with nft, and are dropped with
/// iptables.
pub(super) const SOURCES: u32 = 16_384;

/// Time that a source address is remembered after its last new connection, in seconds. At least the time in which a whole
/// burst is earned again; otherwise a source would gain by a pause.
pub(super) const SOURCE_SECONDS: u32 = 60;

/// The rules to install.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// In the order of installation.
    pub(super) chains: Vec<Chain>,
    /// Whether the bound on new connections is left out because the tool refused it. This changes the fingerprint, which
    /// distinguishes these rules from those of a redirect without a bound, and from rules whose bound was deleted.
    is_bound_refused: bool,
}

impl Plan {
    /// Builds the rules for these settings. On a node, packets received on the uplinks are not from pods.
    pub(super) fn new(settings: &Settings, uplinks: &Uplinks) -> Self {
        let bypass = bypass(&settings.mode, &settings.opened);
        // A route to the server that stays open is not redirected.
        let to: Vec<SocketAddr> =
            settings.to.addrs().filter(|to| to.is_ipv4() || !settings.opened.routes.ipv6).collect();
        let chains = match settings.mode {
            Mode::DaemonSet { .. } => {
                let bound = settings.opened.max_new_connections.map(|rate| bound(rate, &to, uplinks));
                // With iptables, the chain that is installed last comes first. So spoofed packets are dropped before the
                // bound.
                let others = [
                    chains::spoof(settings, &to, uplinks),
                    chains::redirect_pods(&to, uplinks),
                    bypass,
                    leaving(&settings.opened.routes),
                    // All addresses, because the proxy listens on each, even if a route to the server stays open.
                    guard(&settings.to),
                ];
                bound.into_iter().chain(others).collect()
            }
            // No bound: all packets have the pod's own address, so a flood by one container would only lock out the others.
            // And the proxy that is flooded is the pod's own.
            Mode::Sidecar { proxy_uid } => vec![chains::redirect_own(proxy_uid, &to), bypass],
        };
        Self::of(chains)
    }

    fn of(chains: Vec<Chain>) -> Self {
        Self { chains, is_bound_refused: false }
    }

    /// This plan without the bound on new connections, for a tool that refuses it. `None` if there is no bound.
    pub(super) fn without_bound(&self) -> Option<Self> {
        let (bound, chains): (Vec<Chain>, _) = self.chains.iter().cloned().partition(|chain| chain.name == Name::Bound);
        (!bound.is_empty()).then_some(Self { chains, is_bound_refused: true })
    }

    /// Whether new connections are bounded.
    #[cfg(test)]
    pub(super) fn has_bound(&self) -> bool {
        self.chains.iter().any(|chain| chain.name == Name::Bound)
    }

    /// The plans that close the metadata server to pods without a redirect, from the best to the barest. Some have no guard,
    /// in case it is the chain that cannot be installed. None has one if there is no address to guard.
    pub(super) fn closing(mode: &Mode, opened: &Opened, to: Option<&Destination>) -> Vec<Self> {
        let guard = to.filter(|_| mode.is_node()).map(guard);
        let leaving = mode.is_node().then(|| leaving(&opened.routes));
        let bypass = || bypass(mode, opened);
        let chains = || std::iter::once(bypass()).chain(leaving.clone());
        let guarded = guard.clone().map(|guard| chains().chain([guard]).collect());
        let unguarded = leaving.is_some().then(|| chains().collect());
        // For an `ip6tables` without the table of the chain after routing.
        let without_leaving = guard.map(|guard| vec![bypass(), guard]);
        let plans = guarded.into_iter().chain(unguarded).chain(without_leaving).chain([vec![bypass()]]);
        plans.map(Self::of).collect()
    }

    /// This plan for a node where the first edition turned on `route_localnet`. Unchanged if it has no guard.
    pub(super) fn guarding_loopback(mut self) -> Self {
        for chain in self.chains.iter_mut().filter(|chain| chain.name == Name::Guard) {
            chain.rules.extend(guard_loopback());
        }
        self
    }

    /// The guard of addresses on which no proxy listens yet.
    pub(super) fn meanwhile(to: &Destination) -> Self {
        Self::of(vec![Chain { name: Name::Meanwhile, ..guard(to) }])
    }

    /// This plan for addresses that another program added: only the proxy's port is closed to others.
    pub(super) fn sharing(mut self, shared: &[SocketAddr]) -> Self {
        let guards = self.chains.iter_mut().filter(|chain| matches!(chain.name, Name::Guard | Name::Meanwhile));
        for rule in guards.flat_map(|chain| &mut chain.rules) {
            if let Some(to) = shared.iter().find(|to| *rule == guard_proxy(**to)) {
                *rule = guard_port(*to);
            }
        }
        self
    }

    /// Only the guard of loopback.
    pub(super) fn loopback_alone() -> Self {
        Self::of(vec![guard_with(guard_loopback().into_iter())])
    }

    /// Whether these rules guard loopback, so that the kernel may route packets to it.
    pub(super) fn guards_loopback(&self) -> bool {
        self.chains.iter().flat_map(|chain| &chain.rules).any(|rule| rule.when.contains(&When::To(LOOPBACK)))
    }

    /// Whether these rules drop spoofed packets.
    pub(super) fn drops_spoofed(&self) -> bool {
        self.chains.iter().any(|chain| chain.name == Name::Spoof && !chain.rules.is_empty())
    }

    /// The chains that close the metadata server to pods whatever else is installed.
    pub(super) fn closing_chains(&self) -> impl Iterator<Item = &Chain> {
        self.chains.iter().filter(|chain| chain.name == Name::Bypass)
    }

    /// The marks of all rules, which identify them in listings.
    pub(super) fn marks(&self) -> Vec<String> {
        self.chains.iter().flat_map(|chain| &chain.rules).map(|rule| self.mark(rule)).collect()
    }

    /// The comment of a rule: its reason and the fingerprint of the plan, which distinguishes the rule from
    /// those of other settings or releases.
    pub(super) fn mark(&self, rule: &Rule) -> String {
        format!("{} [{:08x}]", rule.why, self.fingerprint())
    }

    /// FNV-1a over the rules.
    fn fingerprint(&self) -> u32 {
        format!("{self:?}").bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::IpAddr;

    use super::super::rule::{Hosts, Then};
    use super::super::{DropSpoofed, Rate, Routes, destination};
    use super::chains::{DNS, SERVER_V4, leave_proxy};
    use super::*;

    /// A node's plan, with one port left open.
    pub(in super::super) fn node() -> Plan {
        Plan::new(&node_settings(&destination::PROXY), &Uplinks::named(vec!["ens4".to_owned()]))
    }

    /// A pod's plan, with IPv6 left open.
    pub(in super::super) fn pod() -> Plan {
        let settings = Settings {
            mode: Mode::Sidecar { proxy_uid: 10988 },
            to: Destination::new(&[([127, 0, 0, 1], 8988).into()]).expect("one"),
            is_shared: false,
            opened: Opened { routes: Routes { ports: Vec::new(), ipv6: true }, ..Opened::default() },
        };
        Plan::new(&settings, &Uplinks::default())
    }

    fn node_settings(to: &[SocketAddr]) -> Settings {
        Settings {
            mode: Mode::DaemonSet { uplinks: None },
            to: Destination::new(to).expect("one or two"),
            is_shared: false,
            opened: Opened {
                routes: Routes { ports: vec![443], ipv6: false },
                drop_spoofed: DropSpoofed::True,
                ..Opened::default()
            },
        }
    }

    #[test]
    fn rules_of_other_settings_have_other_marks() {
        let (marks, others) =
            (node().marks(), Plan::new(&node_settings(&destination::PROXY), &Uplinks::default()).marks());
        assert!(!marks.iter().any(|mark| others.contains(mark)), "{marks:?}");
        assert_eq!(marks, node().marks());
    }

    /// nft allows 128 bytes, and the tools escape these characters.
    #[test]
    fn marks_are_valid_comments() {
        let elsewhere = Plan::new(&node_settings(&[([10, 128, 0, 2], 988).into()]), &Uplinks::default());
        for mark in [node(), pod(), elsewhere].iter().flat_map(Plan::marks) {
            assert!(mark.len() < 128 && !mark.contains(['"', '\'', '\\']), "{mark}");
        }
    }

    #[test]
    fn a_bound_that_was_refused_differs_from_one_that_is_off_and_from_one_that_was_deleted() {
        let without = node().without_bound().expect("a node has a bound by default");
        assert_eq!((node().has_bound(), without.has_bound(), without.without_bound()), (true, false, None));
        let mut off = node_settings(&destination::PROXY);
        off.opened.max_new_connections = None;
        let off = Plan::new(&off, &Uplinks::named(vec!["ens4".to_owned()]));
        assert_eq!((&off.chains, off.without_bound()), (&without.chains, None));
        for other in [off, node()] {
            assert!(!without.marks().iter().any(|mark| other.marks().contains(mark)), "{:?}", without.marks());
        }
    }

    #[test]
    fn only_a_node_s_rules_drop_spoofed_packets_unless_that_is_off() {
        let mut off = node_settings(&destination::PROXY);
        off.opened.drop_spoofed = DropSpoofed::False;
        let off = Plan::new(&off, &Uplinks::named(vec!["ens4".to_owned()]));
        assert_eq!([node(), off, pod()].map(|plan| plan.drops_spoofed()), [true, false, false]);
    }

    #[test]
    fn a_pause_does_not_make_room_for_another_burst() {
        let rate = Rate::DEFAULT;
        assert!(rate.burst() <= rate.per_second() * SOURCE_SECONDS);
    }

    #[test]
    fn a_sidecar_and_closed_pods_have_no_bound() {
        let Settings { mode, to, opened, .. } = node_settings(&destination::PROXY);
        assert!(!pod().has_bound() && !Plan::closing(&mode, &opened, Some(&to)).iter().any(Plan::has_bound));
    }

    #[test]
    fn only_redirected_pods_reach_a_network_address() {
        let guard = Plan::new(&node_settings(&[([10, 128, 0, 2], 988).into()]), &Uplinks::default())
            .chains
            .pop()
            .expect("a guard");
        let last = guard.rules.last().expect("rules");
        assert_eq!((guard.name, last.then), (Name::Guard, Then::Drop));
        let to = Hosts { addr: IpAddr::from([10, 128, 0, 2]), prefix: 32 };
        assert_eq!(last.when, [When::To(to), When::Port(988)]);
    }

    #[test]
    fn an_address_of_the_proxy_s_own_leads_to_nothing_else() {
        let guard = node().chains.pop().expect("a guard");
        let dropped: Vec<_> =
            guard.rules.iter().filter(|rule| rule.then == Then::Drop).map(|rule| &rule.when[..]).collect();
        let all_to = |to: SocketAddr, prefix| [When::To(Hosts { addr: to.ip(), prefix })];
        assert_eq!(dropped, [&all_to(destination::PROXY[0], 32)[..], &all_to(destination::PROXY[1], 128)[..]]);
    }

    #[test]
    fn of_an_address_that_others_have_too_the_proxy_s_port_alone_is_closed() {
        let to = Destination::new(&destination::PROXY).expect("one of each");
        for plan in [node(), Plan::meanwhile(&to)] {
            let shared = plan.sharing(&destination::PROXY[..1]).chains.pop().expect("a guard");
            let dropped: Vec<_> = shared.rules.iter().filter(|rule| rule.then == Then::Drop).collect();
            assert_eq!(dropped, [&guard_port(destination::PROXY[0]), &guard_proxy(destination::PROXY[1])]);
        }
        assert_eq!(node().sharing(&[]), node());
    }

    #[test]
    fn loopback_is_guarded_after_the_first_edition_alone() {
        assert!(!node().guards_loopback());
        assert!(node().guarding_loopback().guards_loopback() && Plan::loopback_alone().guards_loopback());
        assert_ne!(node().guarding_loopback().marks(), node().marks());
    }

    #[test]
    fn ipv6_that_stays_open_is_not_redirected() {
        let mut settings = node_settings(&destination::PROXY);
        settings.opened.routes.ipv6 = true;
        let chains = Plan::new(&settings, &Uplinks::default()).chains;
        let with_ipv6 = chains.iter().filter(|chain| chain.rules.iter().any(Rule::is_v6)).map(|chain| chain.name);
        assert_eq!(with_ipv6.collect::<Vec<_>>(), [Name::Guard], "the proxy listens there all the same");
    }

    #[test]
    fn without_a_redirect_everything_but_what_is_opened_is_reset() {
        let Settings { mode, to, opened, .. } = node_settings(&destination::PROXY);
        let names = |plans: Vec<Plan>| -> Vec<Vec<Name>> {
            plans.iter().map(|plan| plan.chains.iter().map(|chain| chain.name).collect()).collect()
        };
        let guarded = vec![Name::Bypass, Name::Leaving, Name::Guard];
        let unguarded = || vec![Name::Bypass, Name::Leaving];
        let barest = || vec![Name::Bypass];
        let without_leaving = vec![Name::Bypass, Name::Guard];
        let expected = [guarded, unguarded(), without_leaving, barest()];
        assert_eq!(names(Plan::closing(&mode, &opened, Some(&to))), expected);
        assert_eq!(names(Plan::closing(&mode, &opened, None)), [unguarded(), barest()]);
        let sidecar = Mode::Sidecar { proxy_uid: 10988 };
        let plans = Plan::closing(&sidecar, &opened, Some(&to));
        assert_eq!(plans[0].chains[0].rules[0], leave_proxy(10988));
        assert_eq!(plans[0].chains[0].rules[1].when, [When::To(SERVER_V4), When::PortsBut(vec![DNS, 443])]);
        assert_eq!(names(plans), [[Name::Bypass]]);
    }
}
