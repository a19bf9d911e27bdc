use super::super::plan::tests::{node, pod};
use super::super::{Mode, Opened};
use super::*;

/// Removes the comments.
fn bare(text: &str) -> String {
    let bare = |line: &str| line.split(" comment ").next().expect("a line").to_owned() + "\n";
    text.lines().map(bare).collect()
}

#[test]
fn a_nodes_rules_are_one_transaction() {
    assert_eq!(
        bare(&ruleset(&node().guarding_loopback())),
        "\
add table inet gce_metadata_proxy
delete table inet gce_metadata_proxy
table inet gce_metadata_proxy {
\tset new_connections {
\t\ttype ipv4_addr
\t\tsize 16384
\t\tflags dynamic,timeout
\t\ttimeout 60s
\t}
\tset new_connections_v6 {
\t\ttype ipv6_addr
\t\tsize 16384
\t\tflags dynamic,timeout
\t\ttimeout 60s
\t}
\tchain no_flood {
\t\ttype filter hook prerouting priority -115; policy accept;
\t\tiifname \"ens4\" ip daddr 169.254.169.254 return
\t\tiifname \"ens4\" ip6 daddr fd20:ce::254 return
\t\tip daddr 169.254.169.254 tcp dport 80 ct state new fib saddr . iif oif exists update @new_connections { ip saddr limit rate over 500/second burst 5000 packets } counter drop
\t\tip6 daddr fd20:ce::254 tcp dport 80 ct state new fib saddr . iif oif exists update @new_connections_v6 { ip6 saddr limit rate over 500/second burst 5000 packets } counter drop
\t}
\tchain no_spoofing {
\t\ttype filter hook prerouting priority -120; policy accept;
\t\tiifname \"ens4\" ip daddr 169.254.169.254 return
\t\tiifname \"ens4\" ip6 daddr fd20:ce::254 return
\t\tip daddr 169.254.169.254 fib saddr . iif oif missing drop
\t\tip6 daddr fd20:ce::254 fib saddr . iif oif missing drop
\t}
\tchain to_proxy {
\t\ttype nat hook prerouting priority -110; policy accept;
\t\tiifname \"ens4\" ip daddr 169.254.169.254 return
\t\tiifname \"ens4\" ip6 daddr fd20:ce::254 return
\t\tip daddr 169.254.169.254 tcp dport 80 dnat ip to 169.254.169.252:988
\t\tip6 daddr fd20:ce::254 tcp dport 80 dnat ip6 to [fd20:ce::252]:988
\t}
\tchain no_bypass {
\t\ttype filter hook forward priority -10; policy accept;
\t\tip daddr 169.254.169.254 tcp dport != { 53, 443 } reject with tcp reset
\t\tip saddr 169.254.169.254 tcp sport != { 53, 443 } reject with tcp reset
\t\tip6 daddr fd20:ce::254 tcp dport != { 53 } reject with tcp reset
\t\tip6 saddr fd20:ce::254 tcp sport != { 53 } reject with tcp reset
\t}
\tchain no_leaving {
\t\ttype filter hook postrouting priority -10; policy accept;
\t\tip daddr 169.254.169.254 tcp dport != { 53, 443 } tcp flags & rst == 0 fib saddr type != local drop
\t\tip saddr 169.254.169.254 tcp sport != { 53, 443 } tcp flags & rst == 0 drop
\t\toifname != \"lo\" meta l4proto tcp ct direction original ct status dnat ct original ip daddr 169.254.169.254 ct original proto-dst 80 drop
\t\tip6 daddr fd20:ce::254 tcp dport != { 53 } tcp flags & rst == 0 fib saddr type != local drop
\t\tip6 saddr fd20:ce::254 tcp sport != { 53 } tcp flags & rst == 0 drop
\t\toifname != \"lo\" meta l4proto tcp ct direction original ct status dnat ct original ip6 daddr fd20:ce::254 ct original proto-dst 80 drop
\t}
\tchain guard {
\t\ttype filter hook input priority -10; policy accept;
\t\tiifname \"lo\" return
\t\tct status dnat ct original ip daddr 169.254.169.254 return
\t\tct status dnat ct original ip6 daddr fd20:ce::254 return
\t\tip daddr 169.254.169.252 drop
\t\tip6 daddr fd20:ce::252 drop
\t\tct state established,related return
\t\tct status dnat return
\t\tip daddr 127.0.0.0/8 drop
\t}
\tchain opened_loopback {
\t}
}
"
    );
}

/// As `nft -a list table` prints what `ruleset` installs.
fn listed(plan: &Plan) -> String {
    let rules = ruleset(plan).replace("dport != { 53 }", "dport != 53").replace("priority -10", "priority filter - 10");
    rules
        .lines()
        .skip(2)
        .map(|line| if line.ends_with(['}', ';']) { format!("{line}\n") } else { format!("{line} # handle 1\n") })
        .collect()
}

#[test]
fn rules_that_close_pods_are_told_from_what_is_left_of_them() {
    let (plan, listing) = (node(), listed(&node()));
    let closing = Plan::closing(&Mode::DaemonSet { uplinks: None }, &Opened::default(), None);
    for closed in [&listing, &listed(&closing[0]), &listed(&plan.without_bound().expect("a bound"))] {
        assert!(closes(closed, &plan), "{closed}");
    }
    let without =
        |words: &str| listing.lines().filter(|line| !line.contains(words)).flat_map(|line| [line, "\n"]).collect();
    let first = |rule: &str| {
        listing.replacen(
            "\t\tip daddr 169.254.169.254 tcp dport != {",
            &format!("\t\t{rule}\n\t\tip daddr 169.254.169.254 tcp dport != {{"),
            1,
        )
    };
    for open in [
        without("comment"),
        without("reject"),
        without("ip6 daddr"),
        without("ip saddr"),
        listing.replace("chain no_bypass ", "chain other "),
        listing.replace("hook forward", "hook input"),
        without("hook forward"),
        first("accept # handle 99"),
        format!("table {TABLE} {{ # handle 1\n}}\n"),
        listed(&pod()),
        dormant(&listing),
    ] {
        assert!(!closes(&open, &plan), "{open}");
        assert_eq!(State::compare(&plan.marks(), &open, false, closes(&open, &plan)), State::Absent);
    }
    assert!(closes(&listed(&pod()), &pod()) && !closes(&listing, &pod()));
}

fn dormant(listing: &str) -> String {
    listing.replacen('\n', "\n\tflags dormant\n", 1)
}

#[test]
fn a_chain_at_another_place_is_a_change() {
    for (plan, priority) in [(node(), "priority -115"), (node(), "priority filter - 10"), (pod(), "priority -110")] {
        let listing = listed(&plan);
        let named =
            listing.replace("priority -115", "priority dstnat - 15").replace("priority -110", "priority dstnat - 10");
        for same in [&listing, &named, &listing.replace("filter - 10", "-10")] {
            assert!(are_in_place(same, &plan), "{same}");
        }
        for other in [
            listing.replacen(priority, "priority filter + 10", 1),
            listing.replacen(priority, "priority 0", 1),
            listing.replacen("policy accept", "policy drop", 1),
            listing.replacen("type filter hook", "type route hook", 1),
            listing.replacen("type nat hook", "type filter hook", 1),
            listing.replacen("hook prerouting", "hook input", 1).replacen("hook output", "hook input", 1),
            dormant(&listing),
        ] {
            assert!(!are_in_place(&other, &plan), "{other}");
        }
    }
}

#[test]
fn what_was_dropped_is_read_from_the_listing() {
    let rule = "\t\tip daddr 169.254.169.254 tcp dport 80 update @new_connections { ip saddr limit rate over 500/second burst \
                5000 packets } counter packets 1234 bytes 74040 drop comment \"more [1]\" # handle 3\n";
    assert_eq!(dropped_in(rule), Some(1234));
    assert_eq!(dropped_in(&rule.repeat(2)), Some(2468), "of both IP versions");
    assert_eq!(dropped_in("\t\tiifname \"lo\" return comment \"from the node itself [1]\" # handle 3\n"), None);
}

#[test]
fn a_pods_rules_except_the_proxy() {
    assert_eq!(
        bare(&ruleset(&pod())),
        "\
add table inet gce_metadata_proxy
delete table inet gce_metadata_proxy
table inet gce_metadata_proxy {
\tchain to_proxy {
\t\ttype nat hook output priority -110; policy accept;
\t\tmeta skuid 10988 return
\t\tip daddr 169.254.169.254 tcp dport 80 dnat ip to 127.0.0.1:8988
\t}
\tchain no_bypass {
\t\ttype filter hook output priority -10; policy accept;
\t\tmeta skuid 10988 return
\t\tip daddr 169.254.169.254 tcp dport != { 53 } reject with tcp reset
\t}
}
"
    );
}
