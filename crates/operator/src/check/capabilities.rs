//! Capabilities by which a container goes past a proxy in its own pod.
//!
//! There the redirect recognises the proxy's packets by their user, and sees only packets that leave through IP sockets. On a node
//! these capabilities do not help: all packets of a pod arrive through its interface.

use std::fs;

use super::judge::{Finding, Verdict};
use redirect::SIDECAR_UID;

/// Their numbers (`linux/capability.h`), and how each bypasses the redirect.
const HARMFUL: [(u32, &str); 3] = [
    (7, "SETUID (it can act as the user of the proxy)"),
    (12, "NET_ADMIN (it can change the rules)"),
    (13, "NET_RAW (its packets do not pass the rules)"),
];

/// `None` where no proxy listens in this pod.
pub(super) fn of_this_container() -> Option<Finding> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let has_proxy = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].into_iter().any(|path| has_proxy(&read(path)));
    has_proxy.then(|| judge(&read("/proc/self/status")))
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

/// A capability counts that the container has, or can get by a program that has it.
fn judge(status: &str) -> Finding {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map_or("", str::trim);
    let set = |name| u64::from_str_radix(field(name), 16).unwrap_or(0);
    let bound = if field("NoNewPrivs:") == "1" { 0 } else { set("CapBnd:") };
    let held = bound | set("CapPrm:");
    let found: Vec<&str> =
        HARMFUL.iter().filter(|(number, _)| held & (1 << number) != 0).map(|(_, what)| *what).collect();
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
