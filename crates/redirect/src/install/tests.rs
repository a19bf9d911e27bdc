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
    let tools = fake::pretend(|_, _, _| None);
    let (before, other) = (redirect("ens4"), redirect("ens5"));
    before.install().await.expect("it is accepted");
    tools.break_netlink_for(Duration::from_secs(60));
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

    tools.break_netlink_for(Duration::from_millis(500));
    other.install().await.expect("it is installed by the second attempt");
}

#[tokio::test(start_paused = true)]
async fn where_no_rules_are_in_force_pods_are_closed_although_the_failure_passes() {
    let tools = fake::pretend(|_, _, _| None);
    tools.break_netlink_for(Duration::from_secs(60));
    let refused = redirect("ens4").install().await.expect_err("no address can be added");
    assert!(matches!(refused.pods, Pods::Closed(Tool::Iptables)), "{refused}");
}
