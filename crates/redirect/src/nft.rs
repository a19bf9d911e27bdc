//! The rules for nftables: our own table, replaced atomically.

use std::fmt::Write;

use super::plan::{Plan, SOURCE_SECONDS, SOURCES};
use super::rule::{Chain, Hook, Name, Rule, Then, When};
use super::state::are_reset;
use super::{Error, State, process};

const TABLE: &str = "inet gce_metadata_proxy";

/// An empty chain, which marks that the first edition enabled the kernel's loopback routing.
pub(super) const OPENED_LOOPBACK: &str = "opened_loopback";

/// Name and type of the sets that count new connections by source, of IPv4 and of IPv6.
const NEW_CONNECTIONS: [(&str, &str); 2] = [("new_connections", "ipv4_addr"), ("new_connections_v6", "ipv6_addr")];

/// Whether `nft` is installed and the kernel supports nftables.
pub(super) async fn is_usable() -> bool {
    process::exists("nft") && process::run("nft", &["list", "tables"], "").await.is_ok()
}

pub(super) async fn install(plan: &Plan) -> Result<(), Error> {
    process::run("nft", &["-f", "-"], &ruleset(plan)).await.map(drop)
}

/// Adds chains to what is there, until the next installation.
pub(super) async fn add(plan: &Plan) -> Result<(), Error> {
    let text = ruleset(plan).replacen(&format!("delete table {TABLE}\n"), "", 1);
    process::run("nft", &["-f", "-"], &text).await.map(drop)
}

/// Lets the kernel check the rules, without installing them.
pub(super) async fn try_out(plan: &Plan) -> Result<(), Error> {
    process::run("nft", &["-c", "-f", "-"], &ruleset(plan)).await.map(drop)
}

pub(super) async fn remove() -> Result<(), Error> {
    // Deleting a missing table is an error. Adding it first avoids that, and both are one transaction.
    process::run("nft", &["-f", "-"], &format!("add table {TABLE}\ndelete table {TABLE}\n")).await.map(drop)
}

/// Compares the installed rules with a plan.
pub(super) async fn state(plan: &Plan) -> Result<State, Error> {
    let Some(listing) = listing().await? else { return Ok(State::Absent) };
    // The table, each set, each chain and each rule have one handle.
    let markers = usize::from(plan.guards_loopback());
    let expected = 1 + sets(plan).count() + plan.chains.len() + plan.marks().len() + markers;
    let found = listing.matches("# handle ").count();
    let is_all = found == expected && are_in_place(&listing, plan);
    Ok(State::compare(&plan.marks(), &listing, is_all, closes(&listing, plan)))
}

/// The lines of a chain. The first has its hook.
fn lines<'a>(listing: &'a str, chain: &Chain) -> impl Iterator<Item = &'a str> {
    let begin = format!("chain {} {{", name(chain.name));
    let lines = listing.lines().map(str::trim).skip_while(move |line| !line.starts_with(&begin)).skip(1);
    lines.take_while(|line| *line != "}")
}

/// Whether no packet passes the table: it has the flag `dormant`.
fn is_dormant(listing: &str) -> bool {
    listing.lines().any(|line| line.trim().strip_prefix("flags ").is_some_and(|flags| flags.contains("dormant")))
}

/// Whether each chain has the hook, the priority and the policy of the plan, and the table is in force.
fn are_in_place(listing: &str, plan: &Plan) -> bool {
    let is_in_place = |chain: &Chain| lines(listing, chain).next().and_then(place) == place(&hook(chain));
    !is_dormant(listing) && plan.chains.iter().all(is_in_place)
}

/// Type and hook, priority, and policy in the line of a chain's hook. `None` if it is another line.
fn place(line: &str) -> Option<(&str, i32, &str)> {
    let (hook, rest) = line.split_once(" priority ")?;
    let (priority, policy) = rest.split_once(';')?;
    Some((hook, read_priority(priority)?, policy.trim()))
}

/// Since 0.9.1, `nft` lists a priority by the nearest name: `filter - 10`.
fn read_priority(text: &str) -> Option<i32> {
    let named = |name| match name {
        "raw" => Some(-300),
        "mangle" => Some(-150),
        "dstnat" => Some(-100),
        "filter" => Some(0),
        "security" => Some(50),
        "srcnat" => Some(100),
        number => number.parse().ok(),
    };
    let number = |text: &str| text.parse::<i32>().ok();
    match text.split(' ').collect::<Vec<_>>()[..] {
        [name] => named(name),
        [name, "+", more] => Some(named(name)? + number(more)?),
        [name, "-", less] => Some(named(name)? - number(less)?),
        _ => None,
    }
}

/// Whether the listed rules close what the plan closes.
fn closes(listing: &str, plan: &Plan) -> bool {
    !is_dormant(listing)
        && plan.closing_chains().all(|chain| {
            let mut lines = lines(listing, chain);
            let is_attached =
                lines.next().is_some_and(|line| line.contains(&format!(" hook {} ", hook_of(chain.hook))));
            let wanted: Vec<String> = chain.resets().map(|(host, is_v6)| condition(host, is_v6)).collect();
            is_attached && are_reset(&wanted, lines, " reject ")
        })
}

/// Packets that the bound on new connections dropped since it was installed. `None` if there is no bound.
pub(super) async fn dropped() -> Result<Option<u64>, Error> {
    Ok(listing().await?.as_deref().and_then(dropped_in))
}

/// Sums up all counters. Only the bound has any.
fn dropped_in(listing: &str) -> Option<u64> {
    let packets = |rest: &str| rest.split(' ').next()?.parse::<u64>().ok();
    listing
        .split(" counter packets ")
        .skip(1)
        .map(packets)
        .sum::<Option<u64>>()
        .filter(|_| listing.contains(" counter "))
}

/// Name and type of the sets that the bound needs.
fn sets(plan: &Plan) -> impl Iterator<Item = (&'static str, &'static str)> {
    let rules = || plan.chains.iter().filter(|chain| chain.name == Name::Bound).flat_map(|chain| &chain.rules);
    let is_used = move |is_v6| rules().any(|rule| !rule.is_either() && rule.is_v6() == is_v6);
    [false, true].into_iter().filter(move |is_v6| is_used(*is_v6)).map(set)
}

/// Name and type of the set of an IP version.
fn set(is_v6: bool) -> (&'static str, &'static str) {
    NEW_CONNECTIONS[usize::from(is_v6)]
}

/// The table with its rules and their handles. `None` if it does not exist.
pub(super) async fn listing() -> Result<Option<String>, Error> {
    let tables = process::run("nft", &["list", "tables"], "").await?;
    if !tables.lines().any(|line| line.trim() == format!("table {TABLE}")) {
        return Ok(None);
    }
    let list = format!("list table {TABLE}\n");
    // `-t`: without the elements of the sets, of which there may be many.
    match process::run("nft", &["-a", "-t", "-f", "-"], &list).await {
        // nft before 0.9.2 does not know `-t`.
        Err(_) => process::run("nft", &["-a", "-f", "-"], &list).await.map(Some),
        listed => listed.map(Some),
    }
}

/// The transaction that replaces the table.
pub(super) fn ruleset(plan: &Plan) -> String {
    let mut text = format!("add table {TABLE}\ndelete table {TABLE}\ntable {TABLE} {{\n");
    for (set, kind) in sets(plan) {
        let _ = writeln!(
            text,
            "\tset {set} {{\n\t\ttype {kind}\n\t\tsize {SOURCES}\n\t\tflags dynamic,timeout\n\t\ttimeout \
             {SOURCE_SECONDS}s\n\t}}"
        );
    }
    for chain in &plan.chains {
        let _ = writeln!(text, "\tchain {} {{\n\t\t{}", name(chain.name), hook(chain));
        for rule in &chain.rules {
            let _ = writeln!(text, "\t\t{} comment \"{}\"", words(rule), plan.mark(rule));
        }
        text.push_str("\t}\n");
    }
    if plan.guards_loopback() {
        let _ = writeln!(text, "\tchain {OPENED_LOOPBACK} {{\n\t}}");
    }
    text + "}\n"
}

/// Names a chain. `redirect` is a keyword of nft.
fn name(name: Name) -> &'static str {
    match name {
        Name::Spoof => "no_spoofing",
        Name::Bound => "no_flood",
        Name::Redirect => "to_proxy",
        Name::Bypass => "no_bypass",
        Name::Leaving => "no_leaving",
        Name::Guard => "guard",
        Name::Meanwhile => "guard_meanwhile",
    }
}

/// The type, hook and priority of a chain. Priorities are at least ten before the usual ones, which kube-proxy uses: of two
/// rules that rewrite a destination, the first applies. Spoofed packets and floods are dropped before the destination is
/// rewritten.
fn hook(chain: &Chain) -> String {
    let hook = hook_of(chain.hook);
    let (kind, priority) = match chain.name {
        Name::Spoof => ("filter", -120),
        Name::Bound => ("filter", -115),
        Name::Redirect => ("nat", -110),
        // After routing: before the source is rewritten, at 100.
        Name::Bypass | Name::Leaving | Name::Guard | Name::Meanwhile => ("filter", -10),
    };
    format!("type {kind} hook {hook} priority {priority}; policy accept;")
}

fn hook_of(hook: Hook) -> &'static str {
    match hook {
        Hook::Prerouting => "prerouting",
        Hook::Forward => "forward",
        Hook::Input => "input",
        Hook::Output => "output",
        Hook::Postrouting => "postrouting",
    }
}

fn words(rule: &Rule) -> String {
    let family = family(rule.is_v6());
    let mut words: Vec<String> = rule.when.iter().map(|when| condition(when, rule.is_v6())).collect();
    words.push(match rule.then {
        Then::Leave => "return".to_owned(),
        Then::SendTo(to) => format!("dnat {family} to {to}"),
        Then::Reset => "reject with tcp reset".to_owned(),
        Then::Drop => "drop".to_owned(),
        Then::DropCounted => "counter drop".to_owned(),
    });
    words.join(" ")
}

fn family(is_v6: bool) -> &'static str {
    if is_v6 { "ip6" } else { "ip" }
}

/// `is_v6`: whether the condition's rule is for IPv6.
fn condition(when: &When, is_v6: bool) -> String {
    match when {
        When::From(interface) => format!("iifname \"{interface}\""),
        When::Uid(uid) => format!("meta skuid {uid}"),
        When::To(hosts) => format!("{} daddr {hosts}", family(hosts.is_v6())),
        When::By(hosts) => format!("{} saddr {hosts}", family(hosts.is_v6())),
        When::Port(port) => format!("tcp dport {port}"),
        When::PortsBut(ports) => format!("tcp dport != {{ {} }}", list(ports)),
        When::SourcePortsBut(ports) => format!("tcp sport != {{ {} }}", list(ports)),
        When::Redirected(hosts) => {
            format!("ct status dnat ct original {} daddr {hosts}", family(hosts.is_v6()))
        }
        When::Rewritten => "ct status dnat".to_owned(),
        When::Diverted(hosts) => format!(
            "oifname != \"lo\" meta l4proto tcp ct direction original ct status dnat ct original {} daddr {hosts} ct original proto-dst 80",
            family(hosts.is_v6())
        ),
        When::Foreign => "fib saddr type != local".to_owned(),
        When::NoReset => "tcp flags & rst == 0".to_owned(),
        When::Established => "ct state established,related".to_owned(),
        When::Spoofed => "fib saddr . iif oif missing".to_owned(),
        When::RoutedBack => "fib saddr . iif oif exists".to_owned(),
        When::New => "ct state new".to_owned(),
        When::Above(rate) => format!(
            "update @{} {{ {} saddr limit rate over {}/second burst {} packets }}",
            set(is_v6).0,
            family(is_v6),
            rate.per_second(),
            rate.burst()
        ),
    }
}

fn list(ports: &[u16]) -> String {
    ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
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
        let rules =
            ruleset(plan).replace("dport != { 53 }", "dport != 53").replace("priority -10", "priority filter - 10");
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
        for (plan, priority) in [(node(), "priority -115"), (node(), "priority filter - 10"), (pod(), "priority -110")]
        {
            let listing = listed(&plan);
            let named = listing
                .replace("priority -115", "priority dstnat - 15")
                .replace("priority -110", "priority dstnat - 10");
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
}
