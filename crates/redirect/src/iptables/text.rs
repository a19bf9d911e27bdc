//! The text that iptables reads. Nothing here runs a tool.

use std::fmt::Write;

use super::super::plan::{Plan, SOURCE_SECONDS, SOURCES};
use super::super::rule::{Chain, Name, Rule, Then, When};
use super::{Family, OPENED_LOOPBACK};

/// Prefix of our chains' names. iptables allows 28 characters for a name.
pub(super) const PREFIX: &str = "GCE-METADATA-PROXY-";

pub(super) const TABLES: [&str; 3] = ["mangle", "filter", "nat"];

/// A table as `iptables-save` prints it.
#[derive(Debug)]
pub(super) struct Saved {
    pub(super) table: &'static str,
    pub(super) text: String,
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
            let _ = writeln!(text, "-I {} 1 -j {}", chain.hook, name(chain.name));
        }
        for chain in left {
            let _ = writeln!(text, "-X {chain}");
        }
        text.push_str("COMMIT\n");
    }
    text
}

/// All transactions of both families for a system without our rules.
pub(in super::super) fn text(plan: &Plan) -> String {
    let sections = Family::all()
        .map(|family| format!("# {} --noflush\n{}", family.restore(), ruleset(family, Some(plan), &nothing_saved())));
    sections.collect()
}

pub(super) fn nothing_saved() -> [Saved; 3] {
    TABLES.map(|table| Saved { table, text: String::new() })
}

/// Whether a family has the chain. IPv6 has the chains with rules for IPv6, and always the bypass chain.
pub(super) fn has_chain(family: Family, chain: &Chain) -> bool {
    family == Family::V4 || chain.name == Name::Bypass || chain.rules.iter().any(Rule::is_v6)
}

/// The name of the chain that a line declares, if it is ours.
fn chain_of_ours(line: &str) -> Option<&str> {
    line.strip_prefix(':')?.split(' ').next().filter(|name| name.starts_with(PREFIX))
}

/// Whether a line is a jump from one of the kernel's chains to one of ours.
pub(super) fn is_jump(line: &str) -> bool {
    line.starts_with("-A ") && !line.starts_with(&format!("-A {PREFIX}")) && line.contains(&format!(" -j {PREFIX}"))
}

pub(super) fn table_of(name: Name) -> &'static str {
    match name {
        // Precedes `nat`. The match `rpfilter` is allowed here and in `raw`. `filter` has no chain after routing.
        Name::Spoof | Name::Bound | Name::Leaving => "mangle",
        Name::Redirect => "nat",
        Name::Bypass | Name::Guard | Name::Meanwhile => "filter",
    }
}

pub(super) fn name(name: Name) -> String {
    format!("{PREFIX}{name}")
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

pub(super) fn condition(when: &When) -> String {
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
    use super::super::super::plan::tests::node;
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
-A GCE-METADATA-PROXY-BOUND -i ens4 -d 169.254.169.254 -j RETURN
-A GCE-METADATA-PROXY-BOUND -d 169.254.169.254 -p tcp -m tcp --dport 80 -m conntrack --ctstate NEW -m rpfilter -m hashlimit --hashlimit-above 500/sec --hashlimit-burst 5000 --hashlimit-mode srcip --hashlimit-name gce-md-500 --hashlimit-htable-max 16384 --hashlimit-htable-expire 60000 -j DROP
-I PREROUTING 1 -j GCE-METADATA-PROXY-BOUND
-A GCE-METADATA-PROXY-SPOOF -i ens4 -d 169.254.169.254 -j RETURN
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
-A GCE-METADATA-PROXY-REDIRECT -i ens4 -d 169.254.169.254 -j RETURN
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
-A GCE-METADATA-PROXY-BOUND -i ens4 -d fd20:ce::254 -j RETURN
-A GCE-METADATA-PROXY-BOUND -d fd20:ce::254 -p tcp -m tcp --dport 80 -m conntrack --ctstate NEW -m rpfilter -m hashlimit --hashlimit-above 500/sec --hashlimit-burst 5000 --hashlimit-mode srcip --hashlimit-name gce-md-500 --hashlimit-htable-max 16384 --hashlimit-htable-expire 60000 -j DROP
-I PREROUTING 1 -j GCE-METADATA-PROXY-BOUND
-A GCE-METADATA-PROXY-SPOOF -i ens4 -d fd20:ce::254 -j RETURN
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
-A GCE-METADATA-PROXY-REDIRECT -i ens4 -d fd20:ce::254 -j RETURN
-A GCE-METADATA-PROXY-REDIRECT -d fd20:ce::254 -p tcp -m tcp --dport 80 -j DNAT --to-destination [fd20:ce::252]:988
-I PREROUTING 1 -j GCE-METADATA-PROXY-REDIRECT
COMMIT
"
        );
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
