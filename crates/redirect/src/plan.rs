//! The rules as data. [`nft`](super::nft) and [`iptables`](super::iptables) translate them, so that both
//! install the same rules.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::destination::{self, METADATA_V4, METADATA_V6};
use super::rule::{Chain, Hook, Hosts, Name, Rule, Then, When};
use super::uplinks::Uplinks;
use super::{Destination, DropSpoofed, Mode, Opened, Rate, Routes, Settings};

const SERVER_V4: Hosts = Hosts { addr: IpAddr::V4(METADATA_V4), prefix: 32 };
const SERVER_V6: Hosts = Hosts { addr: IpAddr::V6(METADATA_V6), prefix: 128 };
const LOOPBACK: Hosts = Hosts { addr: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), prefix: 8 };

/// The metadata server's address is also that of the DNS resolver, which pods may use.
const DNS: u16 = 53;

const HTTP: u16 = 80;

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
                    Chain { name: Name::Spoof, hook: Hook::Prerouting, rules: drop_spoofed(settings, &to, uplinks) },
                    Chain { name: Name::Redirect, hook: Hook::Prerouting, rules: redirect_pods(&to, uplinks) },
                    bypass,
                    leaving(&settings.opened.routes),
                    // All addresses, because the proxy listens on each, even if a route to the server stays open.
                    guard(&settings.to.addrs().collect::<Vec<_>>()),
                ];
                bound.into_iter().chain(others).collect()
            }
            // No bound: all packets have the pod's own address, so a flood by one container would only lock out the others.
            // And the proxy that is flooded is the pod's own.
            Mode::Sidecar { proxy_uid } => {
                let redirect = std::iter::once(leave_proxy(proxy_uid)).chain(to.into_iter().map(send_to)).collect();
                vec![Chain { name: Name::Redirect, hook: Hook::Output, rules: redirect }, bypass]
            }
        };
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
        let to = to.filter(|_| matches!(mode, Mode::DaemonSet { .. }));
        let guard = to.map(|to| guard(&to.addrs().collect::<Vec<_>>()));
        let of = |chains| Self { chains, is_bound_refused: false };
        let barest = of(vec![bypass(mode, opened)]);
        let leaving = match mode {
            Mode::DaemonSet { .. } => Some(leaving(&opened.routes)),
            Mode::Sidecar { .. } => None,
        };
        let chains = || std::iter::once(bypass(mode, opened)).chain(leaving.clone());
        let guarded = guard.clone().map(|guard| of(chains().chain([guard]).collect()));
        let unguarded = leaving.is_some().then(|| of(chains().collect()));
        // For an `ip6tables` without the table of the chain after routing.
        let without_leaving = guard.map(|guard| of(vec![bypass(mode, opened), guard]));
        guarded.into_iter().chain(unguarded).chain(without_leaving).chain([barest]).collect()
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
        let guard = Chain { name: Name::Meanwhile, ..guard(&to.addrs().collect::<Vec<_>>()) };
        Self { chains: vec![guard], is_bound_refused: false }
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
        let from_node = Rule { when: vec![When::From("lo".to_owned())], then: Then::Leave, why: FROM_NODE };
        let rules = std::iter::once(from_node).chain(guard_loopback()).collect();
        Self { chains: vec![Chain { name: Name::Guard, hook: Hook::Input, rules }], is_bound_refused: false }
    }

    /// Whether these rules guard loopback, so that the kernel may route packets to it.
    pub(super) fn guards_loopback(&self) -> bool {
        self.chains.iter().flat_map(|chain| &chain.rules).any(|rule| rule.when.contains(&When::To(LOOPBACK)))
    }

    /// Whether these rules drop spoofed packets.
    pub(super) fn drops_spoofed(&self) -> bool {
        self.chains.iter().any(|chain| chain.name == Name::Spoof && !chain.rules.is_empty())
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

/// The proxy distinguishes pods by their source addresses. If this is off, the chain is installed without rules, so that it
/// replaces an earlier one.
fn drop_spoofed(settings: &Settings, to: &[SocketAddr], uplinks: &Uplinks) -> Vec<Rule> {
    if settings.opened.drop_spoofed != DropSpoofed::True {
        return Vec::new();
    }
    let spoofed = to.iter().map(|to| Rule {
        when: vec![When::To(server(*to)), When::Spoofed],
        then: Then::Drop,
        why: "from an address that is not the pods own",
    });
    leave_outside(to, uplinks).chain(spoofed).collect()
}

/// Drops new connections of a source beyond the rate, before conntrack or the proxy knows them. They are dropped, not reset:
/// the kernel of an honest client tries again after a second, and a flood gets no responses. Only sources that are routed
/// back to the same interface are counted. Otherwise a pod that sends from random addresses, which opens no connection
/// anyway, could fill the table of sources.
fn bound(rate: Rate, to: &[SocketAddr], uplinks: &Uplinks) -> Chain {
    let excess = to.iter().map(|to| Rule {
        when: vec![When::To(server(*to)), When::Port(HTTP), When::New, When::RoutedBack, When::Above(rate)],
        then: Then::DropCounted,
        why: "more new connections than a pod may open",
    });
    Chain { name: Name::Bound, hook: Hook::Prerouting, rules: leave_outside(to, uplinks).chain(excess).collect() }
}

fn redirect_pods(to: &[SocketAddr], uplinks: &Uplinks) -> Vec<Rule> {
    leave_outside(to, uplinks).chain(to.iter().copied().map(send_to)).collect()
}

/// The metadata server's address of the same IP version.
fn server(to: SocketAddr) -> Hosts {
    if to.is_ipv4() { SERVER_V4 } else { SERVER_V6 }
}

fn leave_outside(to: &[SocketAddr], uplinks: &Uplinks) -> impl Iterator<Item = Rule> {
    to.iter().flat_map(|to| {
        uplinks.towards(*to).iter().map(|uplink| Rule {
            when: vec![When::From(uplink.clone()), When::To(server(*to))],
            then: Then::Leave,
            why: "from outside the node, not from a pod",
        })
    })
}

fn send_to(to: SocketAddr) -> Rule {
    Rule {
        when: vec![When::To(server(to)), When::Port(HTTP)],
        then: Then::SendTo(to),
        why: "requests for metadata go to the proxy",
    }
}

/// Lets packets of the proxy in a sidecar pass.
fn leave_proxy(uid: u32) -> Rule {
    Rule { when: vec![When::Uid(uid)], then: Then::Leave, why: "from the proxy itself" }
}

/// Redirected packets do not match in this chain: on a node they are not forwarded, and in a pod they already have another
/// destination. So any packet to the metadata server bypasses the proxy, by another port or on a connection opened before
/// the redirect; or there is no redirect.
fn bypass(mode: &Mode, opened: &Opened) -> Chain {
    let (hook, rules) = match *mode {
        Mode::DaemonSet { .. } => (Hook::Forward, close(&opened.routes, true)),
        Mode::Sidecar { proxy_uid } => {
            (Hook::Output, std::iter::once(leave_proxy(proxy_uid)).chain(close(&opened.routes, false)).collect())
        }
    };
    Chain { name: Name::Bypass, hook, rules }
}

fn close(open: &Routes, answers_too: bool) -> Vec<Rule> {
    let ports: Vec<u16> = std::iter::once(DNS).chain(open.ports.iter().copied()).collect();
    let mut rules = vec![Rule {
        when: vec![When::To(SERVER_V4), When::PortsBut(ports.clone())],
        then: Then::Reset,
        why: "no way round the proxy",
    }];
    if answers_too {
        // A pod in a hanging GET sends nothing until the response arrives, so block the response too.
        rules.push(Rule {
            when: vec![When::By(SERVER_V4), When::SourcePortsBut(ports)],
            then: Then::Reset,
            why: "no answer on connections older than the redirect",
        });
    }
    if !open.ipv6 {
        rules.push(Rule {
            when: vec![When::To(SERVER_V6), When::PortsBut(vec![DNS])],
            then: Then::Reset,
            why: "no way round the proxy by IPv6",
        });
        if answers_too {
            rules.push(Rule {
                when: vec![When::By(SERVER_V6), When::SourcePortsBut(vec![DNS])],
                then: Then::Reset,
                why: "no answer by IPv6 on connections older than the redirect",
            });
        }
    }
    rules
}

/// This is the last hook that a packet passes, after all other programs' rules. Some packets of pods do not pass *bypass*:
/// those that IPVS or `dup` sends, which count as the node's own, and those whose header changes after it, by a source
/// route. And with iptables, another program's rule that accepts a packet before *bypass* ends the table `filter`, but not
/// the table of this chain.
///
/// A destination is rewritten once, by the first rule that matches. If that is not the redirect, another server would answer
/// pods, or the proxy, in the metadata server's name. Packets of such a connection are dropped.
fn leaving(open: &Routes) -> Chain {
    let v4 = std::iter::once(DNS).chain(open.ports.iter().copied()).collect();
    let rules = leaving_for(SERVER_V4, v4).into_iter();
    let v6 = (!open.ipv6).then(|| leaving_for(SERVER_V6, vec![DNS]));
    Chain { name: Name::Leaving, hook: Hook::Postrouting, rules: rules.chain(v6.into_iter().flatten()).collect() }
}

/// The node's own packets to the server may leave. Packets from the server to the node do not pass this hook.
fn leaving_for(server: Hosts, ports: Vec<u16>) -> [Rule; 3] {
    [
        Rule {
            when: vec![When::To(server), When::PortsBut(ports.clone()), When::NoReset, When::Foreign],
            then: Then::Drop,
            why: "no way round the proxy that others opened",
        },
        Rule {
            when: vec![When::By(server), When::SourcePortsBut(ports), When::NoReset],
            then: Then::Drop,
            why: "no answer that others let pass",
        },
        Rule { when: vec![When::Diverted(server)], then: Then::Drop, why: "nobody answers in the servers name" },
    ]
}

const FROM_NODE: &str = "from the node itself";

fn guard(to: &[SocketAddr]) -> Chain {
    let from_node = Rule { when: vec![When::From("lo".to_owned())], then: Then::Leave, why: FROM_NODE };
    let redirected = to.iter().map(|to| Rule {
        when: vec![When::Redirected(server(*to))],
        then: Then::Leave,
        why: "from a pod by the redirect",
    });
    let rules = std::iter::once(from_node).chain(redirected).chain(to.iter().copied().map(guard_proxy)).collect();
    Chain { name: Name::Guard, hook: Hook::Input, rules }
}

/// At an address that the redirect added, only redirected pods and the node reach any port. Otherwise servers that listen on
/// all of the node's addresses could be reached there, past other programs' rules, which know only the node's other
/// addresses.
fn guard_proxy(to: SocketAddr) -> Rule {
    if destination::is_added(to.ip()) {
        return Rule { when: vec![to_proxy(to)], then: Then::Drop, why: "nobody else reaches the proxys address" };
    }
    guard_port(to)
}

/// At another address only the proxy's port is guarded.
fn guard_port(to: SocketAddr) -> Rule {
    Rule { when: vec![to_proxy(to), When::Port(to.port())], then: Then::Drop, why: "nobody else reaches the proxy" }
}

fn to_proxy(to: SocketAddr) -> When {
    When::To(Hosts { addr: to.ip(), prefix: if to.is_ipv4() { 32 } else { 128 } })
}

/// kube-proxy, which also needs `route_localnet`, guards loopback with the same three rules. They come after the guard of
/// the proxy. Otherwise a Service whose endpoint is the proxy's address would open it to the network.
fn guard_loopback() -> [Rule; 3] {
    [
        Rule { when: vec![When::Established], then: Then::Leave, why: "answers to the node itself" },
        Rule { when: vec![When::Rewritten], then: Then::Leave, why: "to something else, by rules of others" },
        Rule { when: vec![When::To(LOOPBACK)], then: Then::Drop, why: "loopback is for the node alone" },
    ]
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A node's plan, with one port left open.
    pub(in super::super) fn node() -> Plan {
        Plan::new(&node_settings(&destination::PROXY), &Uplinks::named(&["ens4".to_owned()]))
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
        let off = Plan::new(&off, &Uplinks::named(&["ens4".to_owned()]));
        assert_eq!((&off.chains, off.without_bound()), (&without.chains, None));
        for other in [off, node()] {
            assert!(!without.marks().iter().any(|mark| other.marks().contains(mark)), "{:?}", without.marks());
        }
    }

    #[test]
    fn only_a_node_s_rules_drop_spoofed_packets_unless_that_is_off() {
        let mut off = node_settings(&destination::PROXY);
        off.opened.drop_spoofed = DropSpoofed::False;
        let off = Plan::new(&off, &Uplinks::named(&["ens4".to_owned()]));
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
