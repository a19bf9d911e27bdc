//! Capabilities by which a container goes past the proxy.
//!
//! Past a proxy in its own pod, by three: there the redirect recognises the proxy's packets by their user, and sees only packets that
//! leave through IP sockets.
//!
//! Past the node's, by `NET_ADMIN` alone: all packets of a pod arrive through its interfaces, and with `NET_ADMIN` a pod makes more of
//! them. The other end of its interface is a handle to the node's network (`link-netnsid`), for which the kernel asks for `NET_ADMIN`
//! in the user namespace that owns that network. A pod without a user namespace of its own has it there: it may place a macvlan over
//! the node's uplink, whose packets pass no rule of the node.

use std::fs;

use super::judge::{Finding, Verdict};
use redirect::SIDECAR_UID;

/// Their numbers (`linux/capability.h`), and how each bypasses the redirect.
const HARMFUL: [(u32, &str); 3] = [
    (7, "SETUID (it can act as the user of the proxy)"),
    (NET_ADMIN, "NET_ADMIN (it can change the rules)"),
    (13, "NET_RAW (its packets do not pass the rules)"),
];

const NET_ADMIN: u32 = 12;

/// The user IDs of a user namespace that is the machine's own: all, each as itself.
const INITIAL: [&str; 3] = ["0", "0", "4294967295"];

/// `None` where no capability matters.
pub(super) fn of_this_container() -> Option<Finding> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let has_proxy = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].into_iter().any(|path| has_proxy(&read(path)));
    let status = read("/proc/self/status");
    if has_proxy { Some(judge(&status)) } else { past_the_node(&status, &read("/proc/self/uid_map")) }
}

/// `None` if the container cannot change the node's network.
fn past_the_node(status: &str, users: &str) -> Option<Finding> {
    let is_initial = users.split_whitespace().eq(INITIAL);
    (is_initial && holds(status, NET_ADMIN)).then(|| {
        let tried = "the capabilities of this container, in the machine's user namespace";
        let seen = "with NET_ADMIN it can place an interface over the node's uplink, and go round the redirect by that";
        Finding::new("capabilities", Verdict::Unprotected, tried, seen).advising(
            "take NET_ADMIN from this container (securityContext.capabilities), or give its pod a user namespace (hostUsers: \
             false); Pod Security's level 'baseline' refuses NET_ADMIN",
        )
    })
}

/// Whether the user of the proxy has a socket that listens. Fields: number, own address, peer, state (0A: it listens), queues,
/// timer, retransmissions, user.
fn has_proxy(sockets: &str) -> bool {
    let listens = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(3) == Some(&"0A") && fields.get(7).is_some_and(|uid| uid.parse() == Ok(SIDECAR_UID))
    };
    sockets.lines().any(listens)
}

/// Whether the container has a capability, or can get it by a program that has it.
fn holds(status: &str, capability: u32) -> bool {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map_or("", str::trim);
    let set = |name| u64::from_str_radix(field(name), 16).unwrap_or(0);
    let bound = if field("NoNewPrivs:") == "1" { 0 } else { set("CapBnd:") };
    (bound | set("CapPrm:")) & (1 << capability) != 0
}

fn judge(status: &str) -> Finding {
    let found: Vec<&str> = HARMFUL.iter().filter(|(number, _)| holds(status, *number)).map(|(_, what)| *what).collect();
    let tried = "the capabilities of this container, beside the proxy of its pod";
    if found.is_empty() {
        return Finding::new("capabilities", Verdict::Protected, tried, "none leads past the proxy");
    }
    let seen = format!("it goes round the redirect by {}", found.join(", "));
    Finding::new("capabilities", Verdict::Unprotected, tried, seen)
        .advising("give each container of this pod but the proxy's securityContext.capabilities.drop: [ALL]")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTAINERD: &str =
        "CapInh:\t0000000000000000\nCapPrm:\t00000000a80425fb\nCapBnd:\t00000000a80425fb\nNoNewPrivs:\t0\n";

    #[test]
    fn what_containers_have_by_default_leads_past_the_proxy() {
        let found = judge(CONTAINERD);
        assert_eq!(found.verdict, Verdict::Unprotected);
        assert!(found.seen.contains("SETUID") && found.seen.contains("NET_RAW"), "{found:?}");
        assert!(!found.seen.contains("NET_ADMIN"), "{found:?}");
        assert_eq!(judge("CapPrm:\t0000000000000000\nCapBnd:\t0000000000000000\n").verdict, Verdict::Protected);
    }

    #[test]
    fn a_bound_that_cannot_be_reached_does_not_count() {
        let user = CONTAINERD.replace("CapPrm:\t00000000a80425fb", "CapPrm:\t0000000000000000");
        assert_eq!(judge(&user).verdict, Verdict::Unprotected, "a program with capabilities of its own has them");
        assert_eq!(judge(&user.replace("NoNewPrivs:\t0", "NoNewPrivs:\t1")).verdict, Verdict::Protected);
        assert_eq!(judge(&CONTAINERD.replace("NoNewPrivs:\t0", "NoNewPrivs:\t1")).verdict, Verdict::Unprotected);
    }

    #[test]
    fn net_admin_leads_past_the_node_s_proxy_unless_the_pod_has_users_of_its_own() {
        const MACHINE: &str = "         0          0 4294967295\n";
        const POD: &str = "         0     131072      65536\n";
        let none = "CapPrm:\t0000000000000000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t0\n";
        let held = none.replace("CapPrm:\t0000000000000000", "CapPrm:\t0000000000001000");
        let bound = none.replace("CapBnd:\t0000000000000000", "CapBnd:\t0000000000001000");
        let out_of_reach = bound.replace("NoNewPrivs:\t0", "NoNewPrivs:\t1");
        for (status, users, is_open) in [
            (&*held, MACHINE, true),
            (&*bound, MACHINE, true),
            (&*out_of_reach, MACHINE, false),
            (CONTAINERD, MACHINE, false),
            (none, MACHINE, false),
            (&*held, POD, false),
            (&*held, "", false),
        ] {
            let found = past_the_node(status, users);
            let expected = is_open.then_some(Verdict::Unprotected);
            assert_eq!(found.map(|found| found.verdict), expected, "{status} {users}");
        }
    }

    #[test]
    fn a_proxy_of_the_pod_is_found_by_its_user() {
        let line = |state: &str, uid: u32| {
            format!(
                "   0: 0100007F:231C 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 {uid}        0 4711 1\n"
            )
        };
        assert!(has_proxy(&(line("0A", 0) + &line("0A", SIDECAR_UID))));
        assert!(!has_proxy(&(line("0A", 0) + &line("01", SIDECAR_UID))));
    }
}
