use std::cell::Cell;
use std::rc::Rc;

use super::super::{PROXY, Uplinks, fake};
use super::*;

/// A redirect by IPv6 alone, which does not depend on the machine's addresses.
fn redirect(uplink: &str) -> Redirect {
    let settings = Settings {
        mode: Mode::DaemonSet { uplinks: Some(Uplinks::named(vec![uplink.to_owned()])) },
        to: Destination::new(&PROXY[1..]).expect("one"),
        is_shared: false,
        opened: Opened::default(),
    };
    Redirect { settings, tool: Some(Tool::Iptables) }
}

#[tokio::test(start_paused = true)]
async fn addresses_that_cannot_be_read_for_a_moment_close_no_pods() {
    let _tools = fake::pretend(|_, _, _| None);
    let (before, other) = (redirect("ens4"), redirect("ens5"));
    before.install().await.expect("it is accepted");
    fake::break_netlink_for(Duration::from_secs(60));
    assert_eq!(
        before.state().await.expect("it is found"),
        State::Installed,
        "an address that cannot be read is no other"
    );
    before.install().await.expect("it is installed already");
    let refused = other.install().await.expect_err("no address can be added");
    assert!(matches!(refused.pods, Pods::InForce), "{refused}");
    assert!(!refused.to_string().contains("choose another"), "{refused}");
    assert!(before.is_installed().await);

    fake::break_netlink_for(Duration::from_millis(500));
    other.install().await.expect("it is installed by the second attempt");
}

#[tokio::test(start_paused = true)]
async fn where_no_rules_are_in_force_pods_are_closed_although_the_failure_passes() {
    let _tools = fake::pretend(|_, _, _| None);
    fake::break_netlink_for(Duration::from_secs(60));
    let refused = redirect("ens4").install().await.expect_err("no address can be added");
    assert!(matches!(refused.pods, Pods::Closed(Tool::Iptables)), "{refused}");
}

/// Each question takes 30 s, in which pods are open.
#[tokio::test(start_paused = true)]
async fn a_tool_that_does_not_respond_is_asked_once_in_each_attempt() {
    let _tools = fake::pretend(|tool, _, _| (tool == "nft").then_some(Err(Error::Silent { tool: "nft" })));
    let refused = Redirect { tool: None, ..redirect("ens4") }.install().await.expect_err("nft is not passed over");
    assert!(matches!(refused.pods, Pods::Closed(Tool::Iptables)), "{refused}");
    assert!(matches!(refused.why, Error::Silent { .. }), "{refused}");
    let asked: Vec<String> = fake::asked().into_iter().filter(|line| line.starts_with("nft ")).collect();
    assert_eq!(asked.len(), 2, "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_responds_again_installs_the_redirect_by_the_second_attempt() {
    let silent = Rc::new(Cell::new(0));
    let left = Rc::clone(&silent);
    let _tools = fake::pretend(move |tool, _, _| {
        let is_silent = tool == "iptables-restore" && left.get() > 0;
        is_silent.then(|| {
            left.set(left.get() - 1);
            Err(Error::Silent { tool: "iptables-restore" })
        })
    });
    redirect("ens5").install().await.expect("it is accepted");
    silent.set(1);
    redirect("ens4").install().await.expect("it responds again");
    assert_eq!(redirect("ens4").state().await.expect("it is found"), State::Installed, "it is whole");
    assert_eq!(silent.get(), 0, "{:?}", fake::asked());
}

/// On a node where kube-proxy turned on `route_localnet`, and the first edition never was.
#[tokio::test(start_paused = true)]
async fn a_listing_that_fails_marks_no_rules() {
    for failures in (1..10).chain([usize::MAX]) {
        let left = Rc::new(Cell::new(0));
        let listings = Rc::clone(&left);
        let _tools = fake::pretend(move |tool, _, _| {
            let fails = tool == "nft" && listings.get() > 0;
            fails.then(|| {
                listings.set(listings.get() - 1);
                Err(fake::busy())
            })
        });
        fake::route_loopback(true);
        left.set(failures);
        redirect("ens4").install().await.unwrap_or_else(|error| panic!("{failures}: {error}"));
        left.set(0);
        for _ in 0..2 {
            let found = redirect("ens4").found().await.expect("it is found");
            assert_eq!(found.state, State::Installed, "{failures}");
        }
        let listing = Tool::Iptables.listing().await.expect("it is listed").expect("there are rules");
        assert!(!first_edition::is_marked(&listing), "{failures}: {listing}");
    }
}

/// The sysctl is kube-proxy's.
#[tokio::test(start_paused = true)]
async fn a_listing_that_fails_leaves_no_pods_open_where_a_proxy_cannot_start() {
    for is_installed in [false, true] {
        for failures in 1..10 {
            let left = Rc::new(Cell::new(0));
            let listings = Rc::clone(&left);
            let _tools = fake::pretend(move |tool, _, _| {
                let fails = tool.ends_with("-save") && listings.get() > 0;
                fails.then(|| {
                    listings.set(listings.get() - 1);
                    Err(fake::busy())
                })
            });
            fake::route_loopback(true);
            if is_installed {
                Redirect::install_to_first(&PROXY, Opened::default()).await.expect("it is accepted");
            }
            left.set(failures);
            let unserved = Redirect::close_unless_in_force(&PROXY, Opened::default()).await;
            match unserved {
                Unserved::InForce(_) => assert!(is_installed),
                Unserved::NotInstalled(Pods::Closed(_)) => assert!(!is_installed || failures > 1),
                Unserved::NotInstalled(_) => panic!("{failures}: {unserved}"),
            }
        }
    }
}

/// They close pods, and leave the sysctl to kube-proxy.
#[tokio::test(start_paused = true)]
async fn a_listing_that_fails_turns_no_sysctl_off() {
    let (log, _logging) = fake::Log::of_this_thread();
    let left = Rc::new(Cell::new(0));
    let listings = Rc::clone(&left);
    let _tools = fake::pretend(move |tool, _, _| {
        let fails = tool == "iptables-save" && listings.get() > 0;
        fails.then(|| {
            listings.set(listings.get() - 1);
            Err(fake::busy())
        })
    });
    fake::route_loopback(true);
    redirect("ens4").install().await.expect("it is accepted");
    // Of the rules, then of the mark. To replace them, they are listed once more.
    left.set(2);
    let pods = closing::install_first(&redirect("ens4").closing_plans(false), Some(Tool::Iptables)).await;
    assert!(matches!(pods, Pods::Closed(Tool::Iptables)), "{pods}");
    assert_eq!(fake::is_loopback_routed(), Some(true));
    assert_eq!((log.count("may have replaced"), log.count("   ")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn rules_that_may_be_marked_are_not_compared() {
    let is_busy = Rc::new(Cell::new(false));
    let now = Rc::clone(&is_busy);
    let _tools =
        fake::pretend(move |tool, _, _| (tool == "iptables-save" && now.replace(false)).then(|| Err(fake::busy())));
    fake::route_loopback(true);
    redirect("ens4").install().await.expect("it is accepted");
    is_busy.set(true);
    let unread = redirect("ens4").found().await.err();
    assert!(unread.is_some_and(|error| error.is_passing()), "neither installed nor changed");
}

/// The kernel answers again just when the bound would be left out.
#[tokio::test(start_paused = true)]
async fn nothing_is_left_out_because_addresses_cannot_be_read() {
    let _tools = fake::pretend(|_, _, _| None);
    let (before, other) = (redirect("ens4"), redirect("ens5"));
    before.install().await.expect("it is accepted");
    for failures in 1..5 {
        fake::break_netlink_requests(0..failures);
        let outcome = other.install().await;
        fake::break_netlink_requests(0..0);
        match outcome {
            Ok(_) => assert_eq!(other.state().await.expect("it is found"), State::Installed, "{failures}"),
            Err(refused) => {
                assert!(matches!(refused.pods, Pods::InForce), "{failures}: {refused}");
                assert!(before.is_installed().await, "{failures}");
            }
        }
        before.install().await.expect("it is accepted");
    }
}

/// The tool refuses the bound, and the addresses cannot be read just when it is left out.
#[tokio::test(start_paused = true)]
async fn no_more_is_left_out_because_addresses_cannot_be_read() {
    let mut outcomes = [0, 0];
    for first in 0..20 {
        let _tools = fake::pretend(|tool, _, input| {
            let is_refused =
                tool.ends_with("-restore") && input.contains("-I PREROUTING 1 -j GCE-METADATA-PROXY-BOUND");
            is_refused.then(|| Err(fake::refused()))
        });
        fake::break_netlink_requests(first..first + 1);
        match redirect("ens4").install_until(None, true).await {
            Ok(installed) => {
                assert!(installed.drops_spoofed, "{first}");
                outcomes[0] += 1;
            }
            Err(refused) => {
                assert!(matches!(refused.why, Error::AddressBusy { .. }), "{first}: {refused}");
                outcomes[1] += 1;
            }
        }
    }
    assert!(outcomes.iter().all(|outcome| *outcome > 0), "{outcomes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_does_not_respond_is_asked_once_to_close_pods() {
    let restores = || fake::asked().iter().filter(|line| line.starts_with("iptables-restore")).count();
    let pretend = || {
        fake::pretend(|tool, _, _| {
            (tool == "iptables-restore").then_some(Err(Error::Silent { tool: "iptables-restore" }))
        })
    };
    let _tools = pretend();
    let nowhere = Redirect::install_to_first(&[([127, 0, 0, 1], 988).into()], Opened::default()).await;
    assert!(matches!(nowhere.expect_err("loopback is none").pods, Pods::Open(Error::Silent { .. })));
    assert_eq!(restores(), 1);
    let _tools = pretend();
    let unserved = Redirect::close_unless_in_force(&PROXY, Opened::default()).await;
    assert!(matches!(unserved, Unserved::NotInstalled(Pods::Open(Error::Silent { .. }))), "{unserved}");
    assert_eq!(restores(), 1);
}

/// Of the addresses that the node would have, the one for IPv6 is none.
#[tokio::test(start_paused = true)]
async fn a_node_without_ipv6_needs_no_tool_for_it() {
    let _tools = fake::pretend(|tool, _, _| tool.starts_with("ip6").then(|| Err(fake::refused())));
    fake::have_no_ipv6();
    Redirect::install_to_first(&PROXY, Opened::default()).await.expect("it is accepted");
    assert!(!fake::asked().iter().any(|line| line.starts_with("ip6")));
}
