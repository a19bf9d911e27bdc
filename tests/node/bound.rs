//! The limit on new connections: a pod that opens too many, and others beside it.

use std::net::TcpStream;
use std::time::Duration;

use crate::namespace::Namespace;
use crate::process::{BINARY, Process};
use crate::refusing::{Picky, after};
use crate::support::needs::{Test, tests};
use crate::world::{SERVER, TOKEN, World, is_protected, redirect, server, succeeds};

/// The tests of this module.
pub const TESTS: &[Test] = tests![
    what_was_dropped_is_counted_and_logged,
    rules_do_not_wait_for_the_keeper_s_port,
    nft_s_bound_comes_back,
    iptables_bound_comes_back,
    a_tool_that_refuses_the_bound_installs_the_rest,
    a_keeper_adds_the_bound_when_it_is_no_longer_refused,
    a_bound_that_only_a_dry_run_accepts_is_tried_once,
    addresses_that_are_not_a_pod_s_own_take_no_room,
];

/// These count connections that succeed within a short time.
pub const ALONE: &[Test] = tests![
    nft_drops_a_flood_of_one_pod_alone,
    iptables_drops_a_flood_of_one_pod_alone,
    pods_that_start_at_once_lose_nothing,
    a_rate_of_0_is_no_bound
];

/// Connections of a flood that nothing stops.
const FLOOD: usize = 300;

/// The lowest rate: one connection per second.
const LEAST: &str = "--redirect-max-new-connections 1";

/// Connections that may be opened at once at the lowest rate.
const BURST: usize = 10;

/// Maximum pods on a node.
const PODS: usize = 110;

/// Connections that each pod opens at once.
const AT_ONCE: usize = 4;

/// Shorter than the second after which the kernel sends a lost packet again.
const LOST: Duration = Duration::from_millis(900);

/// Opens at most this many connections, one after another, until one is not accepted at once. Returns how many were
/// opened.
fn open(pod: &Namespace, most: usize) -> usize {
    let open = move || (0..most).take_while(|_| TcpStream::connect_timeout(&server(), LOST).is_ok()).count();
    pod.spawn(open).join().expect("no panic")
}

fn flood(pod: &Namespace) -> usize {
    open(pod, FLOOD)
}

/// Number of dropped packets according to `redirect check`.
fn dropped(node: &Namespace, flags: &str) -> usize {
    let check = redirect(node, &format!("check {flags}"));
    succeeds(&check);
    let said = check.stdout.split_once("since the rules were installed: ");
    let (_, rest) = said.unwrap_or_else(|| panic!("nothing about packets: {check:?}"));
    rest.lines().next().and_then(|packets| packets.parse().ok()).expect("a number")
}

/// On a machine that pauses, a few more are opened than the burst.
fn is_bounded(opened: usize) {
    assert!((BURST..FLOOD).contains(&opened), "{opened} of {FLOOD} were opened");
}

fn a_flood_of_one_pod_is_dropped(tool: &str) {
    let world = World::new();
    let _proxy = world.proxy(&[]);
    let flags = format!("--tool {tool} {LEAST}");
    succeeds(&redirect(&world.node, &format!("install {flags}")));
    assert_eq!(dropped(&world.node, &flags), 0);
    let [pod, other] = &world.pods;
    is_bounded(flood(pod));
    assert!(dropped(&world.node, &flags) > 0);
    // If a packet of theirs were dropped, it would be sent again only after this timeout.
    assert_eq!(open(other, BURST), BURST, "{tool}: another pod");
    assert_eq!(other.curl(&format!("{SERVER}{TOKEN}")).status, 200);
    succeeds(&redirect(&world.node, "remove"));
    let left = World::state_of(&world.node);
    assert!(!left.contains("hashlimit") && !left.contains("new_connections"), "{left}");
}

fn nft_drops_a_flood_of_one_pod_alone() {
    a_flood_of_one_pod_is_dropped("nft");
}

fn iptables_drops_a_flood_of_one_pod_alone() {
    a_flood_of_one_pod_is_dropped("iptables");
}

/// The addresses of one namespace stand for pods: the rules see only addresses. At the lowest rate, a limit on all pods
/// together would drop most of the connections.
fn pods_that_start_at_once_lose_nothing() {
    let world = World::new();
    let _proxy = world.proxy(&[]);
    let pod = &world.pods[0];
    let addresses: Vec<String> = (0..PODS).map(|number| format!("10.8.1.{}", 100 + number)).collect();
    for address in &addresses {
        pod.ip(&format!("addr add {address}/24 dev eth0"));
    }
    let asked = format!(" -o /dev/null {SERVER}{TOKEN}").repeat(AT_ONCE);
    let herd = format!(
        "for address in {}; do
            curl -s -Z --parallel-immediate --max-time 20 --interface $address -w '%{{http_code}}\\n' \
                -H 'Metadata-Flavor: Google' {asked} &
        done; wait",
        addresses.join(" ")
    );
    for flags in ["", "--tool iptables", LEAST, "--tool iptables --redirect-max-new-connections 1"] {
        succeeds(&redirect(&world.node, &format!("install {flags}")));
        let answers = pod.sh(&herd);
        assert_eq!(answers.lines().filter(|status| *status == "200").count(), PODS * AT_ONCE, "{flags}: {answers}");
        assert_eq!(dropped(&world.node, flags), 0, "{flags}");
    }
}

fn a_rate_of_0_is_no_bound() {
    let world = World::new();
    let _proxy = world.proxy(&[]);
    for tool in ["nft", "iptables"] {
        let flags = format!("--tool {tool} --redirect-max-new-connections 0");
        succeeds(&redirect(&world.node, &format!("install --tool {tool} {LEAST}")));
        assert_eq!(redirect(&world.node, &format!("check {flags}")).code, Some(1), "{tool}: a bound is in the way");
        succeeds(&redirect(&world.node, &format!("install {flags}")));
        assert_eq!(flood(&world.pods[0]), FLOOD, "{tool}");
        let check = redirect(&world.node, &format!("check {flags}"));
        succeeds(&check);
        assert!(!check.stdout.contains("bound"), "{check:?}");
        assert_eq!(redirect(&world.node, &format!("check --tool {tool}")).code, Some(1), "{tool}: no bound is noticed");
    }
}

/// The value of the metric at this address on the node.
fn metric(node: &Namespace, addr: &str) -> usize {
    let page = node.curl(&format!("http://{addr}/metrics")).text;
    let value = page.lines().find_map(|line| line.strip_prefix("metadata_proxy_redirect_dropped_packets_total "));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no such metric: {page}"))
}

/// Both by the proxy with `--redirect` and by `redirect install --keep`.
fn what_was_dropped_is_counted_and_logged() {
    const KEEPER: &str = "127.0.0.1:1990";
    let world = World::new();
    let proxy = world.proxy(&["--redirect", "--redirect-max-new-connections=1"]);
    let mut keep: Vec<&str> = "redirect install --keep --keeper-metrics-addr".split(' ').collect();
    keep.extend([KEEPER, "--redirect-max-new-connections=1"]);
    let keeper = Process::start(&world.node, &keep);
    keeper.line("redirect installed");
    assert_eq!((metric(&world.node, KEEPER), metric(&world.node, "127.0.0.1:989")), (0, 0));
    is_bounded(flood(&world.pods[0]));
    let packets = dropped(&world.node, LEAST);
    for process in [&keeper, &proxy] {
        process.line("new connections of a pod were dropped");
    }
    assert!(packets > 0);
    assert_eq!((metric(&world.node, KEEPER), metric(&world.node, "127.0.0.1:989")), (packets, packets));
    assert_eq!(world.node.curl(&format!("http://{KEEPER}/statusz")).status, 404);
}

/// An address that is taken, and one that the node does not have.
fn rules_do_not_wait_for_the_keeper_s_port() {
    let world = World::new();
    let _proxy = world.proxy(&[]);
    for addr in ["127.0.0.1:989", "192.0.2.1:1990"] {
        let keeper = Process::start(&world.node, &["redirect", "install", "--keep", "--keeper-metrics-addr", addr]);
        let mut lines = keeper.line("redirect installed");
        is_protected(&world.pods[0]);
        lines.extend(keeper.written());
        let reports = lines.iter().filter(|line| line.contains(&format!("cannot listen on {addr}")));
        assert_eq!(reports.count(), 1, "{lines:?}");
        if addr == "192.0.2.1:1990" {
            world.node.ip("addr add 192.0.2.1/32 dev lo");
            keeper.line("metrics are on 192.0.2.1:1990 now");
            assert_eq!(metric(&world.node, addr), 0);
        }
        assert_eq!(keeper.terminate().code(), Some(0));
        succeeds(&redirect(&world.node, "remove"));
    }
}

fn the_bound_comes_back(tool: &str, damages: &[&str]) {
    let world = World::new();
    let _proxy = world.proxy(&[]);
    let flags = format!("--tool {tool} {LEAST}");
    let line = format!("redirect install --keep {flags}");
    let keeper = Process::start(&world.node, &line.split(' ').collect::<Vec<_>>());
    keeper.line("redirect installed");
    for damage in damages {
        world.node.sh(damage);
        assert_eq!(redirect(&world.node, &format!("check {flags}")).code, Some(1), "not noticed: {damage}");
        keeper.line("has been restored");
        assert_eq!(redirect(&world.node, &format!("check {flags}")).code, Some(0), "not restored: {damage}");
        is_bounded(flood(&world.pods[0]));
    }
}

fn nft_s_bound_comes_back() {
    let flush = "nft flush chain inet gce_metadata_proxy no_flood";
    the_bound_comes_back("nft", &[flush, "nft delete chain inet gce_metadata_proxy no_flood"]);
}

fn iptables_bound_comes_back() {
    let jump = "iptables -t mangle -D PREROUTING -j GCE-METADATA-PROXY-BOUND";
    let remove = format!(
        "{jump}; iptables -t mangle -F GCE-METADATA-PROXY-BOUND; iptables -t mangle -X GCE-METADATA-PROXY-BOUND"
    );
    the_bound_comes_back("iptables", &[jump, &remove]);
}

fn a_tool_that_refuses_the_bound_installs_the_rest() {
    let world = World::new();
    let _proxy = world.proxy(&[]);
    let pod = &world.pods[0];
    for (tool, program, refused) in [("nft", "nft", "limit rate"), ("iptables", "iptables-restore", "hashlimit")] {
        let picky = Picky::of(program, &[refused]);
        let flags = format!("--tool {tool} {LEAST}");
        succeeds(&redirect(&world.node, "remove"));
        for _ in 0..2 {
            let install = after(&world.node, &picky.first(), &format!("install {flags}"));
            succeeds(&install);
            let said = format!("{}{}", install.stdout, install.stderr);
            assert!(
                said.contains("without the bound on new connections") && said.contains("not in this kernel"),
                "{said}"
            );
        }
        is_protected(pod);
        assert_eq!(flood(pod), FLOOD, "{tool}");
        let check = after(&world.node, &picky.first(), &format!("check {flags}"));
        succeeds(&check);
        assert!(
            check.stdout.contains("no bound on new connections") && check.stdout.contains("not in this kernel"),
            "{check:?}"
        );

        succeeds(&redirect(&world.node, &format!("install {flags}")));
        assert_eq!(dropped(&world.node, &flags), 0);
        succeeds(&after(&world.node, &picky.first(), &format!("install {flags}")));
        is_bounded(flood(pod));
    }
}

fn a_keeper_adds_the_bound_when_it_is_no_longer_refused() {
    for (tool, program, refused) in [("nft", "nft", "limit rate"), ("iptables", "iptables-restore", "hashlimit")] {
        let world = World::new();
        let _proxy = world.proxy(&[]);
        let picky = Picky::of(program, &[refused]);
        let line = format!("{} exec {BINARY} redirect install --keep --tool {tool} {LEAST}", picky.first());
        let keeper = Process::spawn(world.node.command("sh").args(["-c", &line]));
        keeper.line("without the bound on new connections");
        assert_eq!(flood(&world.pods[0]), FLOOD, "{tool}");
        drop(picky);
        let before = keeper.line("the bound on new connections, which was refused before, is installed now");
        assert!(!before.iter().any(|line| line.contains("missing") || line.contains("restored")), "{before:?}");
        assert_eq!(dropped(&world.node, &format!("--tool {tool} {LEAST}")), 0);
        is_bounded(flood(&world.pods[0]));
        assert_eq!(keeper.terminate().code(), Some(0));
    }
}

/// As on a kernel without the module, which a dry run does not notice.
fn a_bound_that_only_a_dry_run_accepts_is_tried_once() {
    let world = World::new();
    let _proxy = world.proxy(&[]);
    let picky = Picky::except_for("iptables-restore", &["hashlimit"], "--test");
    let line = format!("{} exec {BINARY} redirect install --keep --tool iptables {LEAST}", picky.first());
    let keeper = Process::spawn(world.node.command("sh").args(["-c", &line]));
    keeper.line("was refused although a dry run accepted it");
    keeper.line("installed without the bound on new connections");
    assert_eq!(flood(&world.pods[0]), FLOOD);
    // Another check of the rules.
    world.node.sh("sleep 35");
    assert_eq!(flood(&world.pods[0]), FLOOD);
    let lines = keeper.written();
    assert!(!lines.iter().any(|line| line.contains("restored") || line.contains("refused")), "{lines:?}");
    assert_eq!(keeper.terminate().code(), Some(0));
}

/// The table of sources is finite, so a pod must not fill it with addresses of its choice.
fn addresses_that_are_not_a_pod_s_own_take_no_room() {
    let world = World::new();
    let _proxy = world.proxy(&[]);
    let attacker = &world.pods[1];
    attacker.ip("addr add 10.8.1.2/32 dev eth0");
    world.node.sh("for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $file; done");
    for (tool, list) in [
        ("nft", "nft list set inet gce_metadata_proxy new_connections"),
        ("iptables", "cat /proc/net/ipt_hashlimit/gce-md-500"),
    ] {
        succeeds(&redirect(&world.node, &format!("install --tool {tool}")));
        let ask = |source: &str| {
            attacker.sh(&format!("curl -s --max-time 1 --interface {source} {SERVER}{TOKEN} || true"));
            world.node.sh(list).contains(source)
        };
        assert!(ask("10.8.2.2"), "{tool}: the pod's own address is not there");
        assert!(!ask("10.8.1.2"), "{tool}: another pod's address is there");
    }
}
