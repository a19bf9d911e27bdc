//! The rules for iptables, for systems without nftables: our own chains in the tables `mangle`, `filter` and `nat`,
//! and a jump to each at the start of the kernel's chain.
//!
//! Each table is replaced atomically, but not all together. `nat` is replaced last, so that spoofed packets are dropped and
//! bypasses are blocked meanwhile.

use std::fmt::Write;

use super::plan::{Plan, SOURCE_SECONDS, SOURCES};
use super::rule::{Chain, Hook, Name, Rule, Then, When};
use super::{Error, State, process};

/// Prefix of our chains' names. iptables allows 28 characters for a name.
const PREFIX: &str = "GCE-METADATA-PROXY-";

/// An empty chain, which marks that the first edition enabled the kernel's loopback routing.
pub(super) const OPENED_LOOPBACK: &str = "GCE-METADATA-PROXY-LOOPBACK";

const TABLES: [&str; 3] = ["mangle", "filter", "nat"];

/// An IP version. iptables has a set of tools for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    fn save(self) -> &'static str {
        match self {
            Self::V4 => "iptables-save",
            Self::V6 => "ip6tables-save",
        }
    }

    fn restore(self) -> &'static str {
        match self {
            Self::V4 => "iptables-restore",
            Self::V6 => "ip6tables-restore",
        }
    }

    /// Without IPv6 on machines that do not have it: they have no bypass over IPv6 either.
    fn all() -> impl Iterator<Item = Self> {
        let has_v6 = std::path::Path::new("/proc/net/if_inet6").exists();
        [Self::V4, Self::V6].into_iter().filter(move |family| *family == Self::V4 || has_v6)
    }

    fn has(self, rule: &Rule) -> bool {
        rule.is_either() || rule.is_v6() == (self == Self::V6)
    }
}

/// Whether the tools are installed and work.
pub(super) async fn is_usable() -> bool {
    process::exists("iptables-restore") && process::run("iptables-save", &["-t", "nat"], "").await.is_ok()
}

pub(super) async fn install(plan: &Plan) -> Result<(), Error> {
    change(&[], Some(plan)).await
}

/// Lets the tools check the rules, without installing them.
pub(super) async fn try_out(plan: &Plan) -> Result<(), Error> {
    change(&["--test"], Some(plan)).await
}

/// Adds chains to what is there, until the next installation.
pub(super) async fn add(plan: &Plan) -> Result<(), Error> {
    for family in Family::all() {
        restore(family, &[], &ruleset(family, Some(plan), &nothing_saved())).await?;
    }
    Ok(())
}

pub(super) async fn remove() -> Result<(), Error> {
    change(&[], None).await
}

async fn change(flags: &[&str], plan: Option<&Plan>) -> Result<(), Error> {
    for family in Family::all() {
        let text = ruleset(family, plan, &saved(family).await?);
        if let Err(error) = restore(family, flags, &text).await {
            return Err(without_table(family, &text).await.unwrap_or(error));
        }
    }
    Ok(())
}

/// Compares the installed rules with a plan.
pub(super) async fn state(plan: &Plan) -> Result<State, Error> {
    let mut listing = String::new();
    let (mut marks, mut jumps, mut preceded) = (Vec::new(), 0, None);
    for family in Family::all() {
        for table in saved(family).await? {
            preceded = preceded.or_else(|| is_preceded(&table.text));
            listing.push_str(&table.text);
        }
        for chain in plan.chains.iter().filter(|chain| has_chain(family, chain)) {
            marks.extend(chain.rules.iter().filter(|rule| family.has(rule)).map(|rule| plan.mark(rule)));
            jumps += 1;
        }
    }
    let ours = listing.lines().filter(|line| line.contains(PREFIX) && *line != format!(":{OPENED_LOOPBACK} - [0:0]"));
    if ours.count() == 0 {
        return Ok(State::Absent);
    }
    let rules = listing.lines().filter(|line| line.starts_with(&format!("-A {PREFIX}"))).count();
    let jumping = listing.lines().filter(|line| is_jump(line)).count();
    let state = State::compare(&marks, &listing, rules == marks.len() && jumping == jumps);
    Ok(match (state, preceded) {
        (State::Installed, Some(chain)) => State::Differs(format!(
            "rules of others come before its own in the chain {chain}, and may accept what it blocks or redirects"
        )),
        (state, _) => state,
    })
}

/// The kernel's chain in which another program's rule precedes one of our jumps, if any.
fn is_preceded(table: &str) -> Option<&'static str> {
    let chains = [Hook::Prerouting, Hook::Forward, Hook::Input, Hook::Output, Hook::Postrouting].map(hook);
    chains.into_iter().find(|chain| {
        let rules = table.lines().filter(|line| line.starts_with(&format!("-A {chain} ")));
        rules.skip_while(|line| is_jump(line)).any(is_jump)
    })
}

/// Our rules of both families.
pub(super) async fn listing() -> Result<Option<String>, Error> {
    let mut listing = String::new();
    for family in Family::all() {
        for table in saved(family).await? {
            listing.extend(table.text.lines().filter(|line| line.contains(PREFIX)).flat_map(|line| [line, "\n"]));
        }
    }
    Ok((!listing.is_empty()).then_some(listing))
}

/// Packets that the bound on new connections dropped since it was installed. `None` if there is no bound.
pub(super) async fn dropped() -> Result<Option<u64>, Error> {
    let mut dropped = None;
    for family in Family::all() {
        // Without this table, this IP version has no bound.
        let listing = process::run(family.save(), &["-c", "-t", table_of(Name::Bound)], "").await.unwrap_or_default();
        if let Some(packets) = dropped_in(&listing) {
            dropped = Some(dropped.unwrap_or(0) + packets);
        }
    }
    Ok(dropped)
}

/// A rule's line begins with the number of packets and bytes that matched: `[12:720] -A CHAIN`.
fn dropped_in(listing: &str) -> Option<u64> {
    let rule = format!("] -A {} ", name(Name::Bound));
    let line = listing.lines().find(|line| line.contains(&rule) && line.ends_with("-j DROP"))?;
    line.strip_prefix('[')?.split_once(':')?.0.parse().ok()
}

/// A table as `iptables-save` prints it.
#[derive(Debug)]
pub(super) struct Saved {
    table: &'static str,
    text: String,
}

async fn saved(family: Family) -> Result<Vec<Saved>, Error> {
    let mut saved = Vec::new();
    for table in TABLES {
        let text = process::run(family.save(), &["-t", table], "").await;
        // A kernel may lack the other tables for IPv6. If rules need them, the restore fails with the tool's error.
        let text = if family == Family::V6 && table != "filter" { text.unwrap_or_default() } else { text? };
        saved.push(Saved { table, text });
    }
    Ok(saved)
}

async fn restore(family: Family, flags: &[&str], text: &str) -> Result<(), Error> {
    if text.is_empty() {
        return Ok(());
    }
    // Keep other programs' rules, and wait up to 5 s for other programs that change rules.
    let flags = [&["--noflush", "--wait", "5"], flags].concat();
    process::run(family.restore(), &flags, text).await.map(drop)
}

/// The error for rules in a table that the kernel does not have.
async fn without_table(family: Family, text: &str) -> Option<Error> {
    for table in TABLES.into_iter().filter(|table| text.contains(&format!("*{table}\n"))) {
        if let Err(error) = process::run(family.save(), &["-t", table], "").await {
            return Some(Error::NoTable { table, said: error.to_string(), tool: family.restore() });
        }
    }
    None
}

/// The transactions that replace our rules with a plan, or remove them.
pub(super) fn ruleset(family: Family, plan: Option<&Plan>, saved: &[Saved]) -> String {
    let mut text = String::new();
    for Saved { table, text: saved } in saved {
        let chains = plan.map_or(&[][..], |plan| &plan.chains).iter();
        let chains: Vec<_> =
            chains.filter(|chain| table_of(chain.name) == *table && has_chain(family, chain)).collect();
        let mut wanted: Vec<String> = chains.iter().map(|chain| name(chain.name)).collect();
        if plan.is_some_and(Plan::guards_loopback) && family == Family::V4 && *table == "filter" {
            wanted.push(OPENED_LOOPBACK.to_owned());
        }
        let left: Vec<&str> =
            saved.lines().filter_map(chain_of_ours).filter(|old| !wanted.iter().any(|new| new == old)).collect();
        if wanted.is_empty() && left.is_empty() {
            continue;
        }
        let _ = writeln!(text, "*{table}");
        // Declaring a chain creates or empties it.
        for chain in wanted.iter().map(String::as_str).chain(left.iter().copied()) {
            let _ = writeln!(text, ":{chain} - [0:0]");
        }
        for jump in saved.lines().filter(|line| is_jump(line)) {
            let _ = writeln!(text, "-D {}", jump.trim_start_matches("-A "));
        }
        for (plan, chain) in plan.iter().flat_map(|plan| chains.iter().map(move |chain| (plan, chain))) {
            for rule in chain.rules.iter().filter(|rule| family.has(rule)) {
                let words = words(rule);
                let _ = writeln!(text, "-A {} {words} -m comment --comment \"{}\"", name(chain.name), plan.mark(rule));
            }
            let _ = writeln!(text, "-I {} 1 -j {}", hook(chain.hook), name(chain.name));
        }
        for chain in left {
            let _ = writeln!(text, "-X {chain}");
        }
        text.push_str("COMMIT\n");
    }
    text
}

/// All transactions of both families for a system without our rules.
pub(super) fn text(plan: &Plan) -> String {
    let sections = Family::all()
        .map(|family| format!("# {} --noflush\n{}", family.restore(), ruleset(family, Some(plan), &nothing_saved())));
    sections.collect()
}

fn nothing_saved() -> [Saved; 3] {
    TABLES.map(|table| Saved { table, text: String::new() })
}

/// Whether a family has the chain. IPv6 has the chains with rules for IPv6, and always the bypass chain.
fn has_chain(family: Family, chain: &Chain) -> bool {
    family == Family::V4 || chain.name == Name::Bypass || chain.rules.iter().any(Rule::is_v6)
}

/// The name of the chain that a line declares, if it is ours.
fn chain_of_ours(line: &str) -> Option<&str> {
    line.strip_prefix(':')?.split(' ').next().filter(|name| name.starts_with(PREFIX))
}

/// Whether a line is a jump from one of the kernel's chains to one of ours.
fn is_jump(line: &str) -> bool {
    line.starts_with("-A ") && !line.starts_with(&format!("-A {PREFIX}")) && line.contains(&format!(" -j {PREFIX}"))
}

fn table_of(name: Name) -> &'static str {
    match name {
        // Precedes `nat`. The match `rpfilter` is allowed here and in `raw`. `filter` has no chain after routing.
        Name::Spoof | Name::Bound | Name::Leaving => "mangle",
        Name::Redirect => "nat",
        Name::Bypass | Name::Guard | Name::Meanwhile => "filter",
    }
}

fn name(name: Name) -> String {
    let own = match name {
        Name::Spoof => "SPOOF",
        Name::Bound => "BOUND",
        Name::Redirect => "REDIRECT",
        Name::Bypass => "BYPASS",
        Name::Leaving => "LEAVING",
        Name::Guard => "GUARD",
        Name::Meanwhile => "MEANWHILE",
    };
    format!("{PREFIX}{own}")
}

fn hook(hook: Hook) -> &'static str {
    match hook {
        Hook::Prerouting => "PREROUTING",
        Hook::Forward => "FORWARD",
        Hook::Input => "INPUT",
        Hook::Output => "OUTPUT",
        Hook::Postrouting => "POSTROUTING",
    }
}

fn words(rule: &Rule) -> String {
    let mut words: Vec<String> = rule.when.iter().map(condition).collect();
    words.push(match rule.then {
        Then::Leave => "-j RETURN".to_owned(),
        Then::SendTo(to) => format!("-j DNAT --to-destination {to}"),
        Then::Reset => "-j REJECT --reject-with tcp-reset".to_owned(),
        Then::Drop | Then::DropCounted => "-j DROP".to_owned(),
    });
    words.join(" ")
}

fn condition(when: &When) -> String {
    match when {
        When::From(interface) => format!("-i {interface}"),
        When::Uid(uid) => format!("-m owner --uid-owner {uid}"),
        When::To(hosts) => format!("-d {hosts}"),
        When::By(hosts) => format!("-s {hosts}"),
        When::Port(port) => format!("-p tcp -m tcp --dport {port}"),
        When::PortsBut(ports) => format!("-p tcp -m multiport ! --dports {}", list(ports)),
        When::SourcePortsBut(ports) => format!("-p tcp -m multiport ! --sports {}", list(ports)),
        When::Redirected(hosts) => format!("-m conntrack --ctstate DNAT --ctorigdst {hosts}"),
        When::Rewritten => "-m conntrack --ctstate DNAT".to_owned(),
        When::Diverted(hosts) => format!(
            "! -o lo -p tcp -m conntrack --ctdir ORIGINAL --ctstate DNAT --ctorigdst {hosts} --ctorigdstport 80"
        ),
        When::NoReset => "-m tcp ! --tcp-flags RST RST".to_owned(),
        When::Foreign => "-m addrtype ! --src-type LOCAL".to_owned(),
        When::Established => "-m conntrack --ctstate RELATED,ESTABLISHED".to_owned(),
        When::Spoofed => "-m rpfilter --invert".to_owned(),
        When::RoutedBack => "-m rpfilter".to_owned(),
        When::New => "-m conntrack --ctstate NEW".to_owned(),
        // The kernel keeps a named table and its settings for as long as a rule uses it, so the name contains the rate.
        When::Above(above) => format!(
            "-m hashlimit --hashlimit-above {rate}/sec --hashlimit-burst {} --hashlimit-mode srcip --hashlimit-name \
             gce-md-{rate} --hashlimit-htable-max {SOURCES} --hashlimit-htable-expire {}",
            above.burst(),
            SOURCE_SECONDS * 1000,
            rate = above.per_second(),
        ),
    }
}

fn list(ports: &[u16]) -> String {
    ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::node;
    use super::*;

    fn saved(filter: &str, nat: &str) -> [Saved; 3] {
        let saved = |table, text: &str| Saved { table, text: text.to_owned() };
        [saved("mangle", ""), saved("filter", filter), saved("nat", nat)]
    }

    /// Removes the comments.
    fn bare(text: &str) -> String {
        let bare = |line: &str| line.split(" -m comment ").next().expect("a line").to_owned() + "\n";
        text.lines().map(bare).collect()
    }

    #[test]
    fn a_nodes_filters_precede_the_redirect() {
        assert_eq!(
            bare(&ruleset(Family::V4, Some(&node().guarding_loopback()), &saved("", ""))),
            "\
*mangle
:GCE-METADATA-PROXY-BOUND - [0:0]
:GCE-METADATA-PROXY-SPOOF - [0:0]
:GCE-METADATA-PROXY-LEAVING - [0:0]
-A GCE-METADATA-PROXY-BOUND -i ens4 -j RETURN
-A GCE-METADATA-PROXY-BOUND -d 169.254.169.254 -p tcp -m tcp --dport 80 -m conntrack --ctstate NEW -m rpfilter -m hashlimit --hashlimit-above 500/sec --hashlimit-burst 5000 --hashlimit-mode srcip --hashlimit-name gce-md-500 --hashlimit-htable-max 16384 --hashlimit-htable-expire 60000 -j DROP
-I PREROUTING 1 -j GCE-METADATA-PROXY-BOUND
-A GCE-METADATA-PROXY-SPOOF -i ens4 -j RETURN
-A GCE-METADATA-PROXY-SPOOF -d 169.254.169.254 -m rpfilter --invert -j DROP
-I PREROUTING 1 -j GCE-METADATA-PROXY-SPOOF
-A GCE-METADATA-PROXY-LEAVING -d 169.254.169.254 -p tcp -m multiport ! --dports 53,443 -m tcp ! --tcp-flags RST RST -m addrtype ! --src-type LOCAL -j DROP
-A GCE-METADATA-PROXY-LEAVING -s 169.254.169.254 -p tcp -m multiport ! --sports 53,443 -m tcp ! --tcp-flags RST RST -j DROP
-A GCE-METADATA-PROXY-LEAVING ! -o lo -p tcp -m conntrack --ctdir ORIGINAL --ctstate DNAT --ctorigdst 169.254.169.254 --ctorigdstport 80 -j DROP
-I POSTROUTING 1 -j GCE-METADATA-PROXY-LEAVING
COMMIT
*filter
:GCE-METADATA-PROXY-BYPASS - [0:0]
:GCE-METADATA-PROXY-GUARD - [0:0]
:GCE-METADATA-PROXY-LOOPBACK - [0:0]
-A GCE-METADATA-PROXY-BYPASS -d 169.254.169.254 -p tcp -m multiport ! --dports 53,443 -j REJECT --reject-with tcp-reset
-A GCE-METADATA-PROXY-BYPASS -s 169.254.169.254 -p tcp -m multiport ! --sports 53,443 -j REJECT --reject-with tcp-reset
-I FORWARD 1 -j GCE-METADATA-PROXY-BYPASS
-A GCE-METADATA-PROXY-GUARD -i lo -j RETURN
-A GCE-METADATA-PROXY-GUARD -m conntrack --ctstate DNAT --ctorigdst 169.254.169.254 -j RETURN
-A GCE-METADATA-PROXY-GUARD -d 169.254.169.252 -j DROP
-A GCE-METADATA-PROXY-GUARD -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
-A GCE-METADATA-PROXY-GUARD -m conntrack --ctstate DNAT -j RETURN
-A GCE-METADATA-PROXY-GUARD -d 127.0.0.0/8 -j DROP
-I INPUT 1 -j GCE-METADATA-PROXY-GUARD
COMMIT
*nat
:GCE-METADATA-PROXY-REDIRECT - [0:0]
-A GCE-METADATA-PROXY-REDIRECT -i ens4 -j RETURN
-A GCE-METADATA-PROXY-REDIRECT -d 169.254.169.254 -p tcp -m tcp --dport 80 -j DNAT --to-destination 169.254.169.252:988
-I PREROUTING 1 -j GCE-METADATA-PROXY-REDIRECT
COMMIT
"
        );
    }

    #[test]
    fn a_nodes_rules_for_ipv6_are_the_same() {
        assert_eq!(
            bare(&ruleset(Family::V6, Some(&node()), &saved("", ""))),
            "\
*mangle
:GCE-METADATA-PROXY-BOUND - [0:0]
:GCE-METADATA-PROXY-SPOOF - [0:0]
:GCE-METADATA-PROXY-LEAVING - [0:0]
-A GCE-METADATA-PROXY-BOUND -i ens4 -j RETURN
-A GCE-METADATA-PROXY-BOUND -d fd20:ce::254 -p tcp -m tcp --dport 80 -m conntrack --ctstate NEW -m rpfilter -m hashlimit --hashlimit-above 500/sec --hashlimit-burst 5000 --hashlimit-mode srcip --hashlimit-name gce-md-500 --hashlimit-htable-max 16384 --hashlimit-htable-expire 60000 -j DROP
-I PREROUTING 1 -j GCE-METADATA-PROXY-BOUND
-A GCE-METADATA-PROXY-SPOOF -i ens4 -j RETURN
-A GCE-METADATA-PROXY-SPOOF -d fd20:ce::254 -m rpfilter --invert -j DROP
-I PREROUTING 1 -j GCE-METADATA-PROXY-SPOOF
-A GCE-METADATA-PROXY-LEAVING -d fd20:ce::254 -p tcp -m multiport ! --dports 53 -m tcp ! --tcp-flags RST RST -m addrtype ! --src-type LOCAL -j DROP
-A GCE-METADATA-PROXY-LEAVING -s fd20:ce::254 -p tcp -m multiport ! --sports 53 -m tcp ! --tcp-flags RST RST -j DROP
-A GCE-METADATA-PROXY-LEAVING ! -o lo -p tcp -m conntrack --ctdir ORIGINAL --ctstate DNAT --ctorigdst fd20:ce::254 --ctorigdstport 80 -j DROP
-I POSTROUTING 1 -j GCE-METADATA-PROXY-LEAVING
COMMIT
*filter
:GCE-METADATA-PROXY-BYPASS - [0:0]
:GCE-METADATA-PROXY-GUARD - [0:0]
-A GCE-METADATA-PROXY-BYPASS -d fd20:ce::254 -p tcp -m multiport ! --dports 53 -j REJECT --reject-with tcp-reset
-A GCE-METADATA-PROXY-BYPASS -s fd20:ce::254 -p tcp -m multiport ! --sports 53 -j REJECT --reject-with tcp-reset
-I FORWARD 1 -j GCE-METADATA-PROXY-BYPASS
-A GCE-METADATA-PROXY-GUARD -i lo -j RETURN
-A GCE-METADATA-PROXY-GUARD -m conntrack --ctstate DNAT --ctorigdst fd20:ce::254 -j RETURN
-A GCE-METADATA-PROXY-GUARD -d fd20:ce::252 -j DROP
-I INPUT 1 -j GCE-METADATA-PROXY-GUARD
COMMIT
*nat
:GCE-METADATA-PROXY-REDIRECT - [0:0]
-A GCE-METADATA-PROXY-REDIRECT -i ens4 -j RETURN
-A GCE-METADATA-PROXY-REDIRECT -d fd20:ce::254 -p tcp -m tcp --dport 80 -j DNAT --to-destination [fd20:ce::252]:988
-I PREROUTING 1 -j GCE-METADATA-PROXY-REDIRECT
COMMIT
"
        );
    }

    #[test]
    fn a_rule_of_others_before_a_jump_is_noticed() {
        let jump = "-A FORWARD -j GCE-METADATA-PROXY-BYPASS\n";
        let others = "-A FORWARD -j CALICO-FORWARD\n";
        for (rules, expected) in [
            ([jump, others].concat(), None),
            ([others, jump].concat(), Some("FORWARD")),
            ([jump, others, jump].concat(), Some("FORWARD")),
            (["-A INPUT -j ACCEPT\n", jump].concat(), None),
            (
                "-A POSTROUTING -j ACCEPT\n-A POSTROUTING -j GCE-METADATA-PROXY-LEAVING\n".to_owned(),
                Some("POSTROUTING"),
            ),
            (others.to_owned(), None),
        ] {
            assert_eq!(is_preceded(&rules), expected, "{rules}");
        }
    }

    #[test]
    fn what_was_dropped_is_read_from_the_listing() {
        let listing = ":GCE-METADATA-PROXY-BOUND - [9:9]\n[8:480] -A PREROUTING -j GCE-METADATA-PROXY-BOUND\n\
                       [7:420] -A GCE-METADATA-PROXY-BOUND -i ens4 -j RETURN\n\
                       [1234:74040] -A GCE-METADATA-PROXY-BOUND -d 169.254.169.254/32 -j DROP\n\
                       [5:300] -A GCE-METADATA-PROXY-SPOOF -d 169.254.169.254/32 -j DROP\n";
        assert_eq!(dropped_in(listing), Some(1234));
        assert_eq!(dropped_in("*mangle\nCOMMIT\n"), None);
    }

    #[test]
    fn old_chains_of_ours_are_removed_and_others_kept() {
        let filter = "*filter\n:FORWARD ACCEPT [0:0]\n:KUBE-FORWARD - [0:0]\n:GCE-METADATA-PROXY-GUARD - [0:0]\n\
                      -A FORWARD -j KUBE-FORWARD\n-A FORWARD -j GCE-METADATA-PROXY-GUARD\nCOMMIT\n";
        assert_eq!(
            ruleset(Family::V4, None, &saved(filter, "")),
            "*filter\n:GCE-METADATA-PROXY-GUARD - [0:0]\n-D FORWARD -j GCE-METADATA-PROXY-GUARD\n\
             -X GCE-METADATA-PROXY-GUARD\nCOMMIT\n"
        );
        assert_eq!(ruleset(Family::V4, None, &saved("", "")), "", "nothing to remove");
    }
}
