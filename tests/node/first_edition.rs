//! A node on which the first edition of the redirect is installed, which sent pods to 127.0.0.1.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::closed::fails;
use crate::namespace::Namespace;
use crate::process::Process;
use crate::refusing::{Picky, after};
use crate::support::needs::{Test, tests};
use crate::world::{KUBE_ENV, SERVER, TOKEN, World, eventually, is_open, is_protected, redirect, succeeds};

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    nft_replaces_it_without_a_gap,
    iptables_replaces_it_without_a_gap,
    the_other_tool_replaces_it,
    loopback_stays_guarded_until_it_is_closed,
    a_redirect_waits_for_its_proxy,
    a_redirect_does_not_wait_for_ever,
    attempts_that_are_refused_wait_once_together,
    an_address_of_others_is_not_closed_to_them_meanwhile,
];

/// As containers have /proc/sys unless they are privileged. `ip netns exec` has mounts of its own.
const READ_ONLY: &str = "mount --bind /proc/sys /proc/sys; mount -o remount,ro,bind /proc/sys; exec";

const ON_LOOPBACK: [&str; 3] = ["--addr=127.0.0.1:988", "--metrics-addr=127.0.0.1:0", "--reuse-port"];

/// What it installed with nft, but for the comments.
const NFT: &str = r#"
table inet gce_metadata_proxy {
	set new_connections {
		type ipv4_addr
		size 16384
		flags dynamic,timeout
		timeout 60s
	}
	chain no_flood {
		type filter hook prerouting priority -115; policy accept;
		iifname "eth0" return comment "from outside the node, not from a pod [11111111]"
		ip daddr 169.254.169.254 tcp dport 80 ct state new fib saddr . iif oif exists update @new_connections { ip saddr limit rate over 500/second burst 5000 packets } counter drop comment "more new connections than a pod may open [11111111]"
	}
	chain no_spoofing {
		type filter hook prerouting priority -120; policy accept;
	}
	chain to_proxy {
		type nat hook prerouting priority -110; policy accept;
		iifname "eth0" return comment "from outside the node, not from a pod [11111111]"
		ip daddr 169.254.169.254 tcp dport 80 dnat ip to 127.0.0.1:988 comment "requests for metadata go to the proxy [11111111]"
	}
	chain no_bypass {
		type filter hook forward priority -10; policy accept;
		ip daddr 169.254.169.254 tcp dport != { 53 } reject with tcp reset comment "no way round the proxy [11111111]"
		ip saddr 169.254.169.254 tcp sport != { 53 } reject with tcp reset comment "no answer on connections older than the redirect [11111111]"
		ip6 daddr fd20:ce::254 tcp dport != { 53 } reject with tcp reset comment "no way round the proxy by IPv6 [11111111]"
		ip6 saddr fd20:ce::254 tcp sport != { 53 } reject with tcp reset comment "no answer by IPv6 on connections older than the redirect [11111111]"
	}
	chain guard {
		type filter hook input priority -10; policy accept;
		iifname "lo" return comment "from the node itself [11111111]"
		ct status dnat ct original ip daddr 169.254.169.254 return comment "from a pod by the redirect [11111111]"
		ip daddr 127.0.0.1 tcp dport 988 drop comment "nobody else reaches the proxy [11111111]"
		ct state established,related return comment "answers to the node itself [11111111]"
		ct status dnat return comment "to something else, by rules of others [11111111]"
		ip daddr 127.0.0.0/8 drop comment "loopback is for the node alone [11111111]"
	}
	chain opened_loopback {
	}
}
"#;

/// The same with iptables, for IPv4.
const IPTABLES: &str = "
*mangle
:GCE-METADATA-PROXY-SPOOF - [0:0]
-I PREROUTING 1 -j GCE-METADATA-PROXY-SPOOF
COMMIT
*filter
:GCE-METADATA-PROXY-BYPASS - [0:0]
:GCE-METADATA-PROXY-GUARD - [0:0]
:GCE-METADATA-PROXY-LOOPBACK - [0:0]
-A GCE-METADATA-PROXY-BYPASS -d 169.254.169.254 -p tcp -m multiport ! --dports 53 -j REJECT --reject-with tcp-reset
-A GCE-METADATA-PROXY-BYPASS -s 169.254.169.254 -p tcp -m multiport ! --sports 53 -j REJECT --reject-with tcp-reset
-I FORWARD 1 -j GCE-METADATA-PROXY-BYPASS
-A GCE-METADATA-PROXY-GUARD -i lo -j RETURN
-A GCE-METADATA-PROXY-GUARD -m conntrack --ctstate DNAT --ctorigdst 169.254.169.254 -j RETURN
-A GCE-METADATA-PROXY-GUARD -d 127.0.0.1 -p tcp -m tcp --dport 988 -j DROP
-A GCE-METADATA-PROXY-GUARD -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
-A GCE-METADATA-PROXY-GUARD -m conntrack --ctstate DNAT -j RETURN
-A GCE-METADATA-PROXY-GUARD -d 127.0.0.0/8 -j DROP
-I INPUT 1 -j GCE-METADATA-PROXY-GUARD
COMMIT
*nat
:GCE-METADATA-PROXY-REDIRECT - [0:0]
-A GCE-METADATA-PROXY-REDIRECT -i eth0 -j RETURN
-A GCE-METADATA-PROXY-REDIRECT -d 169.254.169.254 -p tcp -m tcp --dport 80 -j DNAT --to-destination 127.0.0.1:988
-I PREROUTING 1 -j GCE-METADATA-PROXY-REDIRECT
COMMIT
";

/// Installs it, with the switch of the kernel that it turned on.
fn first_edition(node: &Namespace, tool: &str) {
    let (rules, command) = if tool == "nft" { (NFT, "nft -f -") } else { (IPTABLES, "iptables-restore --noflush") };
    node.sh(&format!("echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet; {command} <<'RULES'\n{rules}\nRULES"));
}

fn is_loopback_routed(node: &Namespace) -> bool {
    node.sh("cat /proc/sys/net/ipv4/conf/all/route_localnet").trim() == "1"
}

/// A pod that asks all the time, on new connections, for what only the server itself has, and for a token.
struct Asking {
    enough: Arc<AtomicBool>,
    asking: JoinHandle<usize>,
}

impl Asking {
    fn begin(pod: &Namespace) -> Self {
        let enough = Arc::new(AtomicBool::new(false));
        let mut curl = [pod.command("curl"), pod.command("curl")];
        for (curl, path) in curl.iter_mut().zip([KUBE_ENV, TOKEN]) {
            curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "-m", "5", "-H", "Metadata-Flavor: Google"]);
            curl.arg(format!("{SERVER}{path}"));
        }
        let has_enough = Arc::clone(&enough);
        let asking = std::thread::spawn(move || {
            let mut asked = 0;
            while !has_enough.load(Relaxed) {
                for (curl, expected) in curl.iter_mut().zip(["403", "200"]) {
                    let answer = curl.output().expect("curl is here");
                    assert_eq!(String::from_utf8_lossy(&answer.stdout), expected, "after {asked} requests");
                    asked += 1;
                }
            }
            asked
        });
        Self { enough, asking }
    }

    fn end(self) {
        self.enough.store(true, Relaxed);
        let asked = self.asking.join().expect("each request is answered by the proxy");
        assert!(asked > 10, "only {asked} requests");
    }
}

/// In a rolling update: the new redirect comes first, then the new proxy, then the old proxy ends.
fn it_is_replaced_without_a_gap(before: &str, tool: &str) {
    let world = World::new();
    let [pod, other] = &world.pods;
    let old = world.proxy(&ON_LOOPBACK);
    first_edition(&world.node, before);
    assert_eq!(pod.curl(&format!("{SERVER}{TOKEN}")).status, 200);
    let mut kept = pod.connect(crate::world::server());
    let asking = Asking::begin(other);

    let keeper = Process::start(&world.node, &["redirect", "install", "--keep", "--tool", tool]);
    keeper.line("an earlier redirect stays until the proxy listens there");
    assert!(kept.ask(TOKEN).is_ok_and(|answer| answer.contains(" 200 ")));
    let new = world.proxy(&["--metrics-addr=127.0.0.1:0", "--reuse-port"]);
    keeper.line("redirect installed");
    assert!(kept.ask(TOKEN).is_ok_and(|answer| answer.contains(" 200 ")), "a connection to the old proxy lives");
    assert_eq!(old.terminate().code(), Some(0));
    is_protected(pod);
    succeeds(&redirect(&world.node, &format!("check --tool {tool}")));
    asking.end();
    assert_eq!(keeper.terminate().code(), Some(0));

    let rules = World::state_of(&world.node);
    assert!(!rules.contains("127.0.0.1:988"), "{rules}");
    succeeds(&redirect(&world.node, "remove"));
    assert!(!is_loopback_routed(&world.node), "the first edition had turned it on");
    let rules = World::state_of(&world.node);
    assert!(!rules.contains("gce_metadata_proxy") && !rules.contains("GCE-METADATA-PROXY"), "{rules}");
    is_open(pod, SERVER);
    drop(new);
}

fn nft_replaces_it_without_a_gap() {
    it_is_replaced_without_a_gap("nft", "nft");
}

fn iptables_replaces_it_without_a_gap() {
    it_is_replaced_without_a_gap("iptables", "iptables");
}

fn the_other_tool_replaces_it() {
    it_is_replaced_without_a_gap("iptables", "nft");
    it_is_replaced_without_a_gap("nft", "iptables");
}

/// With `route_localnet` on, a neighbour that routes 127.0.0.0/8 to the node reaches what listens on its loopback
/// (CVE-2020-8558), the admin port included.
fn loopback_stays_guarded_until_it_is_closed() {
    for tool in ["nft", "iptables"] {
        let world = World::new();
        let _proxy = world.proxy(&[]);
        let attacker = &world.pods[1];
        attacker.sh("echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet; ip addr flush dev lo; \
             ip route add 127.0.0.0/8 via 10.8.2.1 src 10.8.2.2");
        let attack = || attacker.curl("http://127.0.0.1:989/healthz").status;
        world.node.sh("echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet");
        assert_eq!(attack(), 200, "an attack that works, were there no guard");
        first_edition(&world.node, tool);
        for command in ["install", "install"] {
            succeeds(&after(&world.node, READ_ONLY, &format!("{command} --tool {tool}")));
            assert!(is_loopback_routed(&world.node));
            assert_eq!(attack(), 0, "{tool}: {command}");
            succeeds(&redirect(&world.node, &format!("check --tool {tool}")));
        }
        let unread = if tool == "nft" {
            Picky::of("nft", &["list table inet"])
        } else {
            // The table of the guard.
            Picky::of("iptables-save", &["-t filter"])
        };
        let unreadable = format!("export {}; {READ_ONLY}", unread.first());
        fails(&after(&world.node, &unreadable, "remove"), &["rules of a redirect may remain"]);
        assert_eq!(attack(), 0, "{tool}: rules that cannot be read may guard it");
        let removed = after(&world.node, READ_ONLY, "remove");
        succeeds(&removed);
        assert!(removed.stderr.contains("route_localnet") || removed.stdout.contains("route_localnet"), "{removed:?}");
        assert_eq!(attack(), 0, "{tool}: nothing turns it off, so it stays guarded");
        is_open(&world.pods[0], SERVER);
        succeeds(&redirect(&world.node, "remove"));
        assert!(!is_loopback_routed(&world.node));
        assert_eq!(attack(), 0, "{tool}");
        let rules = World::state_of(&world.node);
        assert!(!rules.contains("gce_metadata_proxy") && !rules.contains("GCE-METADATA-PROXY"), "{rules}");
    }
}

fn a_redirect_waits_for_its_proxy() {
    let world = World::new();
    first_edition(&world.node, "nft");
    let installing = Process::start(&world.node, &["redirect", "install"]);
    installing.line("an earlier redirect stays");
    assert!(World::state_of(&world.node).contains("127.0.0.1:988"));
    let _proxy = world.proxy(&[]);
    installing.line("redirect installed");
    eventually("pods are redirected", || !World::state_of(&world.node).contains("127.0.0.1:988"));
}

/// As in an init container, which the proxy waits for. Meanwhile the new address leads to nothing.
fn a_redirect_does_not_wait_for_ever() {
    for tool in ["nft", "iptables"] {
        let world = World::new();
        let pod = &world.pods[0];
        let _other = Process::start(&world.node, &["mock", "--addr", "0.0.0.0:8090"]);
        first_edition(&world.node, tool);
        let installing = Process::start(&world.node, &["redirect", "install", "--tool", tool]);
        installing.line("an earlier redirect stays");
        let stranger = format!("http://169.254.169.252:8090{TOKEN}");
        eventually("the address is there and somebody listens", || world.node.curl(&stranger).status == 200);
        assert_eq!(pod.curl(&stranger).status, 0, "{tool}: what listens on all addresses of the node");
        installing.line("replaced all the same");
        installing.line("redirect installed");
        assert!(!World::state_of(&world.node).contains("127.0.0.1:988"));
        let rules = World::state_of(&world.node).to_lowercase();
        assert!(!rules.contains("meanwhile"), "{rules}");
        succeeds(&redirect(&world.node, &format!("check --tool {tool}")));
    }
}

/// A tool that refuses a rule is asked several times.
#[expect(clippy::disallowed_methods, reason = "nothing here is asynchronous")]
fn attempts_that_are_refused_wait_once_together() {
    let world = World::new();
    let picky = Picky::of("nft", &["limit rate"]);
    first_edition(&world.node, "nft");
    let began = Instant::now();
    let install = after(&world.node, &picky.first(), "install --tool nft");
    let took = began.elapsed();
    succeeds(&install);
    assert!(install.stderr.contains("without the bound"), "{install:?}");
    assert!(took > Duration::from_secs(29) && took < Duration::from_secs(55), "{took:?}");
}

/// Others may serve pods at an address that they added. Only the proxy's port is closed, as it will be.
fn an_address_of_others_is_not_closed_to_them_meanwhile() {
    for tool in ["nft", "iptables"] {
        let world = World::new();
        let pod = &world.pods[0];
        world.node.ip("addr add 169.254.169.253/32 dev lo");
        let _other = Process::start(&world.node, &["mock", "--addr", "169.254.169.253:8090"]);
        first_edition(&world.node, tool);
        let words = ["redirect", "install", "--tool", tool, "--to", "169.254.169.253:988"];
        let installing = Process::start(&world.node, &words);
        installing.line("an earlier redirect stays");
        let theirs = format!("http://169.254.169.253:8090{TOKEN}");
        eventually("somebody listens", || world.node.curl(&theirs).status == 200);
        assert_eq!(pod.curl(&theirs).status, 200, "{tool}");
        let rules = World::state_of(&world.node).to_lowercase();
        assert!(rules.contains("meanwhile"), "{rules}");
        assert_eq!(
            pod.curl(&format!("http://169.254.169.253:988{TOKEN}")).code,
            28,
            "{tool}: the proxy's port is guarded"
        );
    }
}
