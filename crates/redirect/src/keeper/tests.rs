use std::cell::Cell;
use std::io;
use std::rc::Rc;

use base::routes::parse_v4;
use prometheus::Opts;

use super::super::spoofing::tests::link;
use super::super::{Cause, Destination, Mode, Opened, PROXY, Settings, Tool, Uplinks, fake};
use super::*;

/// A redirect by IPv6 alone, which does not depend on the machine's addresses.
fn redirect() -> Redirect {
    let settings = Settings {
        mode: Mode::DaemonSet { uplinks: Some(Uplinks::named(vec!["ens4".to_owned()])) },
        to: Destination::new(&PROXY[1..]).expect("one"),
        is_shared: false,
        opened: Opened::default(),
    };
    Redirect { settings, tool: Some(Tool::Iptables) }
}

fn keeper(decided: Spoofed) -> Keeper {
    Keeper::new(redirect(), None, Decision::new(decided), metrics())
}

fn metrics() -> Metrics {
    let of = |label: &str| (Opts::new("name", "text"), [label.to_owned()]);
    let ((spoofed, by_decision), (restored, by_found)) = (of("decision"), of("found"));
    Metrics {
        dropped: IntCounter::new("dropped", "text").expect("a name"),
        spoofed: IntGaugeVec::new(spoofed, &[&by_decision[0]]).expect("a name"),
        restored: IntCounterVec::new(restored, &[&by_found[0]]).expect("a name"),
    }
}

/// iptables changes the rules of one IP version after the other.
#[tokio::test(start_paused = true)]
async fn a_decision_that_ip6tables_alone_refuses_leaves_the_rules_whole() {
    let _tools = fake::pretend(|tool, _, input| {
        let is_refused = tool == "ip6tables-restore" && input.contains("--invert");
        is_refused.then(|| Err(fake::refused()))
    });
    let mut keeper = keeper(Spoofed::Dropped);
    keeper.redirect.install_until(None, false).await.expect("it is accepted without the chain");
    let refusals = || fake::asked().iter().filter(|line| line.starts_with("ip6tables-restore")).count();
    let mut tried = Vec::new();
    for _ in 0..3 {
        let Found { state, is_dropped } = keeper.redirect.found().await.expect("it is found");
        assert_eq!((state, is_dropped), (State::Installed, false));
        keeper.follow(is_dropped).await;
        assert!(keeper.trouble.is_none());
        tried.push(refusals());
    }
    assert_eq!((tried[0], tried[1]), (tried[1], tried[2]), "what was refused is not tried again");
    // The chain may be accepted when the interfaces lead to it another time.
    keeper.decision = Decision::new(Spoofed::LetPass(Cause::Flag));
    keeper.follow(false).await;
    keeper.decision = Decision::new(Spoofed::Dropped);
    keeper.follow(false).await;
    assert!(refusals() > tried[2]);
}

/// The tool refuses the bound, with which the other decision is tried first. The rules stay whole meanwhile.
#[tokio::test(start_paused = true)]
async fn a_decision_is_followed_where_the_bound_is_refused() {
    let _tools = fake::pretend(|tool, _, input| {
        let is_refused = tool.ends_with("-restore") && input.contains("-I PREROUTING 1 -j GCE-METADATA-PROXY-BOUND");
        is_refused.then(|| Err(fake::refused()))
    });
    let mut keeper = keeper(Spoofed::LetPass(Cause::Flag));
    keeper.redirect.install_until(None, true).await.expect("it is accepted without the bound");
    keeper.follow(true).await;
    let Found { state, is_dropped } = keeper.redirect.found().await.expect("it is found");
    assert_eq!((state, is_dropped), (State::Unbounded, false));
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_is_busy_is_asked_again_for_a_decision() {
    let is_busy = Rc::new(Cell::new(false));
    let now = Rc::clone(&is_busy);
    let _tools = fake::pretend(move |tool, _, _| (tool.ends_with("-restore") && now.get()).then(|| Err(fake::busy())));
    let mut keeper = keeper(Spoofed::Dropped);
    keeper.redirect.install_until(None, false).await.expect("it is accepted");
    is_busy.set(true);
    keeper.follow(false).await;
    assert!(keeper.trouble.is_none() && keeper.redirect.is_installed().await);
    is_busy.set(false);
    keeper.follow(false).await;
    assert!(keeper.redirect.found().await.expect("it is found").is_dropped);
}

#[tokio::test(start_paused = true)]
async fn a_bound_that_cannot_be_added_for_a_moment_is_tried_again() {
    let is_change = |line: &str| line.contains("-restore") && !line.contains("--test");
    for (refused, is_tried_again) in [(fake::busy as fn() -> Error, true), (fake::refused, false)] {
        let (log, _logging) = fake::Log::of_this_thread();
        let is_refusing = Rc::new(Cell::new(true));
        let now = Rc::clone(&is_refusing);
        let _tools = fake::pretend(move |tool, args, input| {
            let is_change = tool.ends_with("-restore") && !args.contains(&"--test");
            let is_bound = input.contains("-I PREROUTING 1 -j GCE-METADATA-PROXY-BOUND");
            (is_change && is_bound && now.get()).then(|| Err(refused()))
        });
        let mut keeper = keeper(Spoofed::Dropped);
        keeper.redirect.install_until(None, true).await.expect("it is accepted without the bound");
        keeper.add_bound(true).await;
        let before = fake::asked().len();
        keeper.add_bound(true).await;
        let changes = fake::asked()[before..].iter().filter(|line| is_change(line)).count();
        assert_eq!(changes, usize::from(is_tried_again), "the rules in force are whole");
        assert_eq!(log.count("tried again after a restart"), usize::from(!is_tried_again));
        assert_eq!(log.count("tried again at the next check"), usize::from(is_tried_again));
        is_refusing.set(false);
        keeper.add_bound(true).await;
        let expected = if is_tried_again { State::Installed } else { State::Unbounded };
        assert_eq!(keeper.redirect.state().await.expect("it is found"), expected);
    }
}

/// The sysctl is kube-proxy's, and the other tool's rules cannot be listed.
#[tokio::test(start_paused = true)]
async fn a_decision_is_followed_and_a_bound_added_while_the_other_tool_is_busy() {
    let is_refusing = Rc::new(Cell::new(true));
    let now = Rc::clone(&is_refusing);
    let _tools = fake::pretend(move |tool, _, input| match tool {
        "nft" => Some(Err(fake::busy())),
        _ if input.contains("-I PREROUTING 1 -j GCE-METADATA-PROXY-BOUND") && now.get() => Some(Err(fake::refused())),
        _ => None,
    });
    fake::route_loopback(true);
    let mut keeper = keeper(Spoofed::LetPass(Cause::Flag));
    assert!(keeper.redirect.obstacle().await.is_none(), "the bound would be left out");
    keeper.redirect.install_until(None, true).await.expect("it is accepted without the bound");
    is_refusing.set(false);
    keeper.add_bound(true).await;
    let Found { state, is_dropped } = keeper.redirect.found().await.expect("it is found");
    assert_eq!((state, is_dropped), (State::Installed, true));
    keeper.follow(true).await;
    assert!(!keeper.redirect.found().await.expect("it is found").is_dropped);
}

/// Those that drop honest pods' packets are better than none, and than closed pods.
#[tokio::test(start_paused = true)]
async fn rules_that_stay_whole_are_not_replaced_because_a_decision_is_refused() {
    let is_refusing = Rc::new(Cell::new(false));
    let now = Rc::clone(&is_refusing);
    let _tools =
        fake::pretend(move |tool, _, _| (tool == "iptables-restore" && now.get()).then(|| Err(fake::refused())));
    let mut keeper = keeper(Spoofed::LetPass(Cause::Flag));
    keeper.redirect.install_until(None, true).await.expect("it is accepted");
    is_refusing.set(true);
    keeper.follow(true).await;
    assert!(keeper.trouble.is_none());
    assert_eq!(keeper.redirect.state().await.expect("it is found"), State::Installed);
    is_refusing.set(false);
    keeper.follow(true).await;
    assert!(!keeper.redirect.found().await.expect("it is found").is_dropped, "it is tried again");
}

#[tokio::test(start_paused = true)]
async fn uplinks_that_are_gone_for_a_moment_leave_the_rules_as_they_are() {
    let _tools = fake::pretend(|_, _, _| None);
    let mut keeper = keeper(Spoofed::Dropped);
    let [ens4, ens5] = ["ens4", "ens5"].map(|name| Uplinks::named(vec![name.to_owned()]));
    keeper.uplinks = Some(Decision::new(ens4.clone()));
    keeper.redirect.install_until(None, true).await.expect("it is accepted");
    let unread = || Err(io::ErrorKind::Other.into());
    for found in [Ok(ens4.clone()), unread(), Ok(Uplinks::default()), unread(), Ok(ens4), Ok(ens5.clone())] {
        assert!(!keeper.follow_uplinks(found));
        assert_eq!(keeper.redirect.state().await.expect("it is found"), State::Installed);
    }
    assert!(keeper.follow_uplinks(Ok(ens5)));
    assert!(matches!(keeper.redirect.state().await, Ok(State::Differs(_))), "the keeper replaces them");
}

/// The rules of a proxy with `--redirect`. The route is gone when its keeper begins.
#[tokio::test(start_paused = true)]
async fn a_keeper_begins_with_the_uplinks_that_were_installed() {
    let _tools = fake::pretend(|_, _, _| None);
    let installed = Redirect::install_to_first(&PROXY, Opened::default()).await.expect("it is accepted");
    fake::have_routes(Some(Vec::new()));
    let mut keeper = Keeper::of_installed(installed, metrics());
    assert!(!keeper.follow_uplinks(Uplinks::find()));
    assert_eq!(keeper.redirect.state().await.expect("it is found"), State::Installed);
    fake::have_routes(Some(fake::default_route("ens4")));
    assert!(!keeper.follow_uplinks(Uplinks::find()));
    assert_eq!(keeper.redirect.state().await.expect("it is found"), State::Installed);
}

/// A proxy with `--redirect` starts again while a pod is being started.
#[tokio::test(start_paused = true)]
async fn a_proxy_that_starts_again_drops_spoofed_packets_until_two_scans_agree() {
    let _tools = fake::pretend(|_, _, _| None);
    let routes = |pods: &str| [fake::default_route("ens4"), parse_v4(pods)].concat();
    fake::have_links(vec![link(4, "cali1", "veth", None)]);
    fake::have_routes(Some(routes("Iface\ncali1\t0201080A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0\n")));
    let before = Redirect::install_to_first(&PROXY, Opened::default()).await.expect("it is accepted");
    assert!(before.installed.drops_spoofed);
    fake::have_routes(Some(routes("")));
    let installed = Redirect::install_to_first(&PROXY, Opened::default()).await.expect("it is accepted");
    assert!(installed.installed.drops_spoofed);
    let mut keeper = Keeper::of_installed(installed, metrics());
    keeper.follow(true).await;
    assert!(keeper.redirect.found().await.expect("it is found").is_dropped);
    keeper.decision.update(keeper.redirect.spoofed());
    keeper.follow(true).await;
    assert!(!keeper.redirect.found().await.expect("it is found").is_dropped);
}

/// Rules without uplinks would redirect what neighbours send.
#[tokio::test(start_paused = true)]
async fn routes_that_cannot_be_read_for_a_moment_at_the_start_leave_the_uplinks_in_the_rules() {
    let _tools = fake::pretend(|_, _, _| None);
    let ens4 = Uplinks::find().expect("they are pretended");
    let may_be_read_soon = async || {
        fake::have_routes(None);
        sleep(Duration::from_millis(500)).await;
        fake::have_routes(Some(fake::default_route("ens4")));
    };
    let ((), installed) = tokio::join!(may_be_read_soon(), Redirect::install_to_first(&PROXY, Opened::default()));
    let installed = installed.expect("it is accepted");
    assert_eq!(installed.uplinks.as_ref(), Some(&ens4));
    let unheld = Redirect {
        settings: Settings { mode: Mode::DaemonSet { uplinks: None }, ..installed.redirect.settings.clone() },
        ..installed.redirect
    };
    let ((), keeper) = tokio::join!(may_be_read_soon(), Keeper::begin(unheld, metrics()));
    assert_eq!(keeper.uplinks.as_ref().map(Decision::current), Some(&ens4));
}

/// A program that changes another table leaves the kernel's counter as it was.
#[tokio::test(start_paused = true)]
async fn what_was_dropped_before_rules_are_restored_is_counted() {
    let _tools = fake::pretend(|_, _, _| None);
    let keeper = keeper(Spoofed::Dropped);
    keeper.redirect.install_until(None, true).await.expect("it is accepted");
    fake::meet(5);
    let other = "*filter\n-A GCE-METADATA-PROXY-GUARD -j RETURN\nCOMMIT\n";
    fake::answer("ip6tables-restore", &[], other).expect("it is pretended").expect("it is accepted");
    let (dropped, restored) = (keeper.drops.total().clone(), keeper.restored.clone());
    let once = CHECK_INTERVAL + Duration::from_secs(1);
    tokio::time::timeout(once, keeper.run()).await.expect_err("it does not end");
    assert_eq!(restored.with_label_values(&["changed"]).get(), 1);
    assert_eq!(dropped.get(), 5);
}

/// A warning at each check would hide others.
#[tokio::test(start_paused = true)]
async fn a_decision_that_stays_refused_is_logged_once() {
    for (what, refused) in [("for a moment", fake::busy as fn() -> Error), ("for good", fake::refused)] {
        let (log, _logging) = fake::Log::of_this_thread();
        let warnings = || log.count("lead to another decision");
        let is_refusing = Rc::new(Cell::new(false));
        let now = Rc::clone(&is_refusing);
        let _tools = fake::pretend(move |tool, _, _| (tool.ends_with("-restore") && now.get()).then(|| Err(refused())));
        let mut keeper = keeper(Spoofed::LetPass(Cause::Flag));
        for times in 1..3 {
            is_refusing.set(false);
            keeper.redirect.install_until(None, true).await.expect("it is accepted");
            is_refusing.set(true);
            for _ in 0..3 {
                keeper.follow(true).await;
            }
            assert_eq!(warnings(), times, "{what}");
            is_refusing.set(false);
            keeper.follow(true).await;
            assert!(!keeper.redirect.found().await.expect("it is found").is_dropped, "{what}: it is tried again");
        }
        // The interfaces lead to it another time.
        is_refusing.set(true);
        for decided in [Spoofed::Dropped, Spoofed::LetPass(Cause::Flag), Spoofed::Dropped] {
            keeper.decision = Decision::new(decided);
            keeper.follow(false).await;
        }
        assert_eq!(warnings(), 4, "{what}");
        assert_eq!(log.count("refused the rules"), 0, "{what}: a tool may only be busy");
    }
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_is_refused_before_and_after_trouble_is_logged_again() {
    let (log, _logging) = fake::Log::of_this_thread();
    let _tools = fake::pretend(|tool, _, input| {
        let is_refused = tool == "ip6tables-restore" && input.contains("--invert");
        is_refused.then(|| Err(fake::refused()))
    });
    let mut keeper = keeper(Spoofed::Dropped);
    for times in 1..3 {
        let installed = keeper.redirect.install_until(None, false).await.expect("it is accepted without the chain");
        keeper.is_installed(&installed);
        keeper.follow(false).await;
        assert_eq!(log.count("lead to another decision"), times);
        keeper.is_not_installed(&NotInstalled { why: fake::refused(), pods: Pods::Closed(Tool::Iptables) });
    }
}

#[tokio::test(start_paused = true)]
async fn routes_that_stay_unreadable_are_logged_once() {
    let (log, _logging) = fake::Log::of_this_thread();
    let _tools = fake::pretend(|_, _, _| None);
    let mut keeper = keeper(Spoofed::Dropped);
    keeper.uplinks = Some(Decision::new(Uplinks::named(vec!["ens4".to_owned()])));
    for times in 1..3 {
        fake::have_routes(None);
        for _ in 0..3 {
            assert!(!keeper.follow_uplinks(Uplinks::find()));
        }
        assert_eq!(log.count("uplinks cannot be found"), times);
        fake::have_routes(Some(fake::default_route("ens4")));
        keeper.follow_uplinks(Uplinks::find());
    }
}

/// Without them, no route would lead to any pod.
#[tokio::test(start_paused = true)]
async fn routes_that_cannot_be_read_are_no_reason_to_let_spoofed_packets_pass() {
    let _tools = fake::pretend(|_, _, _| None);
    let mut keeper = keeper(Spoofed::Dropped);
    keeper.redirect.install_until(None, true).await.expect("it is accepted");
    fake::have_links(vec![link(4, "cali1", "veth", None)]);
    for (routes, is_dropped) in [(None, true), (Some(fake::default_route("ens4")), false)] {
        fake::have_routes(routes);
        for _ in 0..3 {
            keeper.decision.update(keeper.redirect.spoofed());
            let found = keeper.redirect.found().await.expect("it is found");
            keeper.follow(found.is_dropped).await;
        }
        assert_eq!(keeper.redirect.found().await.expect("it is found").is_dropped, is_dropped);
    }
}

/// Another process installed them.
#[tokio::test(start_paused = true)]
async fn rules_that_drop_spoofed_packets_stay_until_routes_can_be_read() {
    let _tools = fake::pretend(|_, _, _| None);
    fake::have_routes(None);
    let mut keeper = keeper(redirect().spoofed());
    keeper.redirect.install_until(None, true).await.expect("it is accepted");
    keeper.decision.update(keeper.redirect.spoofed());
    keeper.follow(true).await;
    assert!(keeper.redirect.found().await.expect("it is found").is_dropped);
}
