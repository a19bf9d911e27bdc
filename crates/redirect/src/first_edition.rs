//! Traces of the redirect's first edition on a node, which stay until the redirect is removed or the node restarts.
//!
//! The first edition sent pods to 127.0.0.1. It turned on the sysctl `route_localnet` for this, and its rules guarded
//! loopback: without a guard, a neighbour reaches servers on loopback (CVE-2020-8558). Its rules have a mark if it was the
//! first edition that turned the sysctl on. A redirect that replaces it keeps the mark and the guard. The sysctl stays on,
//! because pods' connections to the earlier proxy would break without it. `redirect remove` turns it off, or leaves the
//! guard where it cannot.
//!
//! The earlier redirect is replaced when a proxy listens on the new address: in a rolling update, the new redirect starts
//! before the new proxy.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::plan::Plan;
use super::{Destination, Error, Tool, iptables, nft, process};

const SYSCTL: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";

/// Time between two attempts to connect to the new address, and number of attempts before the rules are listed again.
const PAUSE: Duration = Duration::from_millis(100);
const TRIES: usize = 50;

/// Number of listings in a row that may fail before the rules count as gone.
const FAILURES: u32 = 3;

/// How long a redirect without a keeper waits for the proxy.
pub(super) const WAIT: Duration = Duration::from_secs(30);

/// The mark in the rules of nft and of iptables: an empty chain of this name.
const MARKS: [&str; 2] = [nft::OPENED_LOOPBACK, iptables::OPENED_LOOPBACK];

/// Text by which a rule that sends pods to loopback is recognised in the listings of both tools.
const TO_LOOPBACK: [&str; 2] = ["dnat ip to 127.", "--to-destination 127."];

/// Whether the rules have to guard loopback: the sysctl is on, and one of these tools has the first edition's mark. An error if one
/// fails now: rules that replace its own without the mark would lose it, and the guard, for good. One that never works has no mark:
/// kube-proxy turns the sysctl on, too, so it is no sign of the first edition, and `redirect remove` must not turn it off.
pub(super) async fn needs_guard(tools: &[Tool]) -> Result<bool, Error> {
    if !is_loopback_routed() {
        return Ok(false);
    }
    is_any(tools, &MARKS).await.or_else(|error| if error.is_passing() { Err(error) } else { Ok(false) })
}

/// Whether the sysctl is on.
pub(super) fn is_loopback_routed() -> bool {
    #[cfg(test)]
    if let Some(is_routed) = super::fake::is_loopback_routed() {
        return is_routed;
    }
    fs::read_to_string(SYSCTL).is_ok_and(|value| value.trim() == "1")
}

/// Whether these rules of ours have the first edition's mark.
pub(super) fn is_marked(listing: &str) -> bool {
    MARKS.iter().any(|mark| listing.contains(mark))
}

/// Turns the sysctl off. Returns whether that succeeded: `/proc/sys` is read-only in containers.
pub(super) fn stop_routing_loopback() -> bool {
    #[cfg(test)]
    if super::fake::is_pretended() {
        super::fake::route_loopback(false);
        return true;
    }
    fs::write(SYSCTL, "0").is_ok()
}

pub(super) fn say_that_loopback_stays_guarded() {
    tracing::warn!(
        "an earlier redirect turned net.ipv4.conf.all.route_localnet on, which cannot be turned off from here: rules that guard \
         the node's loopback stay until the node starts again. Set it to 0 on the node, and remove once more"
    );
}

pub(super) fn say_that_loopback_is_open() {
    tracing::error!(
        "an earlier redirect turned net.ipv4.conf.all.route_localnet on, which cannot be turned off from here, and the rules that \
         guard the node's loopback cannot be installed: neighbours of this node may reach what listens there. Set it to 0 on the node"
    );
}

pub(super) fn say_that_loopback_may_be_open(error: &Error) {
    tracing::warn!(
        %error,
        "the rules that pods are closed with may have replaced some that guarded the node's loopback, which could not be listed: \
         if it was an earlier redirect that turned net.ipv4.conf.all.route_localnet on, and not kube-proxy, neighbours of this node \
         may reach what listens there. Then set it to 0 on the node"
    );
}

/// Waits until a proxy listens on the new address, the first edition's rules are gone or can no longer be listed, or `until` has passed.
/// `None` waits without limit, because a new proxy that does not start must not cut pods off from the earlier one. Without a keeper
/// there is a limit, because the proxy may be waiting for this command. Meanwhile the new address is guarded. `shared`: addresses
/// that another program added.
pub(super) async fn wait_for_successor(
    tools: &[Tool],
    to: &Destination,
    shared: &[SocketAddr],
    until: Option<Instant>,
) -> Result<(), Error> {
    let Some(addr) = to.addrs().find(SocketAddr::is_ipv4) else { return Ok(()) };
    let (mut is_said, mut failures) = (false, 0);
    // Where rules cannot be listed, there may be none: pods are open while this waits.
    let mut is_there = is_any(tools, &TO_LOOPBACK).await.unwrap_or(false);
    while is_there {
        for _ in 0..TRIES {
            if listens(addr).await {
                return Ok(());
            }
            if !std::mem::replace(&mut is_said, true) {
                guard_meanwhile(tools, to, shared).await?;
                tracing::info!(%addr, "an earlier redirect stays until the proxy listens there");
            }
            if until.is_some_and(|until| Instant::now() > until) {
                tracing::warn!(%addr, "no proxy listens there yet, and the earlier redirect is replaced all the same");
                return Ok(());
            }
            sleep(PAUSE).await;
        }
        is_there = match process::attempt(is_any(tools, &TO_LOOPBACK)).await {
            Ok(is_there) => {
                failures = 0;
                is_there
            }
            // They were there, and serve pods. But they may be gone, and pods open.
            Err(error) => {
                failures += 1;
                error.is_passing() && failures < FAILURES
            }
        };
    }
    Ok(())
}

/// Guards the new address with the first of these tools, which is the one that is used.
async fn guard_meanwhile(tools: &[Tool], to: &Destination, shared: &[SocketAddr]) -> Result<(), Error> {
    let [tool, ..] = tools else { return Ok(()) };
    tool.add(&Plan::meanwhile(to).sharing(shared)).await
}

/// Whether the rules of one of these tools contain one of these texts. An error if none does, and one cannot be listed: one that passes,
/// if any.
pub(super) async fn is_any(tools: &[Tool], words: &[&str]) -> Result<bool, Error> {
    let mut outcome = Ok(false);
    for tool in tools {
        match tool.listing().await {
            Ok(Some(listing)) if words.iter().any(|words| listing.contains(words)) => return Ok(true),
            Ok(_) => {}
            Err(_) if outcome.as_ref().is_err_and(Error::is_passing) => {}
            Err(error) => outcome = Err(error),
        }
    }
    outcome
}

async fn listens(addr: SocketAddr) -> bool {
    matches!(timeout(PAUSE, TcpStream::connect(addr)).await, Ok(Ok(_)))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::super::fake;
    use super::*;

    /// Of the tools, `nft` is not there.
    const BOTH: [Tool; 2] = [Tool::Nft, Tool::Iptables];

    /// kube-proxy turns the sysctl on, also where the first edition never was.
    #[tokio::test]
    async fn rules_have_the_mark_only_if_a_listing_shows_it() {
        let is_busy = Rc::new(Cell::new(false));
        let now = Rc::clone(&is_busy);
        let _tools = fake::pretend(move |tool, _, _| (tool == "nft" && now.get()).then(|| Err(fake::busy())));
        assert!(!needs_guard(&BOTH).await.expect("the sysctl is off"));
        fake::route_loopback(true);
        assert!(!needs_guard(&BOTH).await.expect("nft never works"));
        is_busy.set(true);
        let unread = needs_guard(&BOTH).await.expect_err("it may be marked");
        assert!(unread.is_passing(), "{unread}");
        let marked = format!("*filter\n:{} - [0:0]\nCOMMIT\n", iptables::OPENED_LOOPBACK);
        fake::answer("iptables-restore", &[], &marked).expect("it is pretended").expect("it is accepted");
        assert!(needs_guard(&BOTH).await.expect("whatever nft has"));
    }

    /// The second answer does not hide that the first may be another one soon.
    #[tokio::test]
    async fn a_tool_that_never_works_does_not_hide_one_that_fails_now() {
        let _tools = fake::pretend(|tool, _, _| match tool {
            "nft" => Some(Err(Error::Silent { tool: "nft" })),
            _ => Some(Err(fake::refused())),
        });
        fake::route_loopback(true);
        assert!(matches!(needs_guard(&BOTH).await, Err(Error::Silent { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_redirect_is_not_replaced_because_a_listing_fails_once() {
        assert_eq!(listings([silent(), Ok(RULES), silent(), silent(), Ok(RULES), Ok("")]).await, 7);
    }

    /// They may be gone, and pods open.
    #[tokio::test(start_paused = true)]
    async fn rules_that_can_never_be_listed_again_are_not_waited_for() {
        assert_eq!(listings([silent(), silent(), silent()]).await, 4, "it does not respond");
        assert_eq!(listings([Err(fake::refused())]).await, 2, "it will not work");
    }

    /// As `iptables-save` lists what sends pods to loopback.
    const RULES: &str = "-A GCE-METADATA-PROXY-REDIRECT -p tcp -j DNAT --to-destination 127.0.0.1:988\n";

    fn silent() -> Result<&'static str, Error> {
        Err(Error::Silent { tool: "iptables-save" })
    }

    /// How often the rules are listed until it no longer waits. `then`: the answers after those that show them.
    async fn listings<const N: usize>(then: [Result<&'static str, Error>; N]) -> usize {
        let mut answers = std::iter::once(Ok(RULES)).chain(then);
        let _tools = fake::pretend(move |tool, args, _| {
            let answer = || answers.next().expect("it does not wait for ever");
            (tool == "iptables-save" && args == ["-t", "nat"]).then(answer).map(|answer| answer.map(str::to_owned))
        });
        // Nothing listens there.
        let to = Destination::new(&[([127, 0, 0, 1], 1).into()]).expect("one");
        process::attempt(wait_for_successor(&[Tool::Iptables], &to, &[], None)).await.expect("it waits");
        fake::asked().iter().filter(|line| *line == "iptables-save -t nat").count()
    }
}
