//! The rules for iptables, for systems without nftables: our own chains in the tables `mangle`, `filter` and `nat`,
//! and a jump to each at the start of the kernel's chain.
//!
//! Each table is replaced atomically, but not all together. `nat` is replaced last, so that spoofed packets are dropped and
//! bypasses are blocked meanwhile.

mod text;

use strum::VariantNames;

use super::plan::Plan;
use super::rule::{Hook, Name, Rule};
use super::state::are_reset;
use super::{Error, State, may_have_ipv6, process};
use text::{PREFIX, Saved, TABLES, condition, has_chain, is_jump, name, nothing_saved, ruleset, table_of};

pub(super) use text::text;

/// An empty chain, which marks that the first edition enabled the kernel's loopback routing.
pub(super) const OPENED_LOOPBACK: &str = "GCE-METADATA-PROXY-LOOPBACK";

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
        [Self::V4].into_iter().chain(may_have_ipv6().then_some(Self::V6))
    }

    fn has(self, rule: &Rule) -> bool {
        rule.is_either() || rule.is_v6() == (self == Self::V6)
    }
}

/// Fails unless the tools are installed and work.
pub(super) async fn probe() -> Result<(), Error> {
    process::run("iptables-save", &["-t", "nat"], "").await.map(drop)
}

pub(super) async fn install(plan: &Plan) -> Result<(), Error> {
    change(&[], plan).await
}

/// Lets the tools check the rules, without installing them.
pub(super) async fn try_out(plan: &Plan) -> Result<(), Error> {
    change(&["--test"], plan).await
}

/// Adds chains to what is there, until the next installation.
pub(super) async fn add(plan: &Plan) -> Result<(), Error> {
    for family in Family::all() {
        restore(family, &[], &ruleset(family, Some(plan), &nothing_saved())).await?;
    }
    Ok(())
}

/// Removes the rules of each family, also if another's cannot be removed. Returns the first error.
pub(super) async fn remove() -> Result<(), Error> {
    let mut outcome = Ok(());
    for family in Family::all() {
        outcome = outcome.and(replace(family, &[], None).await);
    }
    outcome
}

async fn change(flags: &[&str], plan: &Plan) -> Result<(), Error> {
    for family in Family::all() {
        replace(family, flags, Some(plan)).await?;
    }
    Ok(())
}

/// Replaces our rules by those of the plan, if any.
async fn replace(family: Family, flags: &[&str], plan: Option<&Plan>) -> Result<(), Error> {
    let text = ruleset(family, plan, &saved(family).await?);
    match restore(family, flags, &text).await {
        Err(error) => Err(without_table(family, &text).await.unwrap_or(error)),
        Ok(()) => Ok(()),
    }
}

/// Compares the installed rules with a plan.
pub(super) async fn state(plan: &Plan) -> Result<State, Error> {
    let mut listing = String::new();
    let (mut marks, mut jumps, mut preceded, mut is_closed) = (Vec::new(), 0, None, true);
    for family in Family::all() {
        for table in saved(family).await? {
            is_closed &= table.table != table_of(Name::Bypass) || closes(family, &table.text, plan);
            preceded = preceded.or_else(|| is_preceded(&table.text));
            listing.push_str(&table.text);
        }
        for chain in plan.chains.iter().filter(|chain| has_chain(family, chain)) {
            marks.extend(chain.rules.iter().filter(|rule| family.has(rule)).map(|rule| plan.mark(rule)));
            jumps += 1;
        }
    }
    let rules = listing.lines().filter(|line| line.starts_with(&format!("-A {PREFIX}"))).count();
    let jumping = listing.lines().filter(|line| is_jump(line)).count();
    let state = State::compare(&marks, &listing, rules == marks.len() && jumping == jumps, is_closed);
    Ok(match (state, preceded) {
        (State::Installed, Some(chain)) => State::Differs(format!(
            "rules of others come before its own in the chain {chain}, and may accept what it blocks or redirects: pods may be OPEN by these"
        )),
        (state, _) => state,
    })
}

/// Whether the rules in this table close what the plan closes by this IP version.
fn closes(family: Family, table: &str, plan: &Plan) -> bool {
    plan.closing_chains().all(|chain| {
        let wanted = chain.resets().filter(|(_, is_v6)| *is_v6 == (family == Family::V6));
        let wanted: Vec<String> = wanted.map(|(host, _)| condition(host)).collect();
        let own = name(chain.name);
        let (jump, begin) = (format!("-A {} -j {own}", chain.hook), format!("-A {own} "));
        let rules = table.lines().filter(|line| line.starts_with(&begin));
        wanted.is_empty() || table.lines().any(|line| line == jump) && are_reset(&wanted, rules, " -j REJECT ")
    })
}

/// The kernel's chain in which another program's rule precedes one of our jumps, if any.
fn is_preceded(table: &str) -> Option<&'static str> {
    Hook::VARIANTS.iter().copied().find(|chain| {
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

#[cfg(test)]
mod tests {
    use super::super::plan::tests::{node, pod};
    use super::*;

    /// The table `filter` as `iptables-save` prints what is installed.
    fn listed(family: Family, plan: &Plan) -> String {
        let text = ruleset(family, Some(plan), &[Saved { table: "filter", text: String::new() }]);
        let words = [("-I FORWARD 1 ", "-A FORWARD "), ("-I OUTPUT 1 ", "-A OUTPUT "), ("-I INPUT 1 ", "-A INPUT ")];
        let text = words.into_iter().fold(text, |text, (given, printed)| text.replace(given, printed));
        text.replace("169.254.169.254 ", "169.254.169.254/32 ").replace("fd20:ce::254 ", "fd20:ce::254/128 ")
    }

    #[test]
    fn rules_that_close_pods_are_told_from_what_is_left_of_them() {
        for family in [Family::V4, Family::V6] {
            let (plan, listing) = (node(), listed(family, &node()));
            assert!(closes(family, &listing, &plan), "{listing}");
            let without = |words: &str| -> String {
                listing.lines().filter(|line| !line.contains(words)).flat_map(|line| [line, "\n"]).collect()
            };
            let jump = "-A FORWARD -j GCE-METADATA-PROXY-BYPASS\n";
            for open in [
                without("-A "),
                without("-j REJECT"),
                without(" ! --sports"),
                without("-A FORWARD"),
                listing.replace(jump, "-A FORWARD -i eth7 -j GCE-METADATA-PROXY-BYPASS\n"),
                format!("-A GCE-METADATA-PROXY-BYPASS -j RETURN\n{listing}"),
                listed(family, &pod()),
                String::new(),
            ] {
                assert!(!closes(family, &open, &plan), "{family:?}: {open}");
            }
        }
        assert!(closes(Family::V4, &listed(Family::V4, &pod()), &pod()));
        assert!(closes(Family::V6, "", &pod()), "it leaves IPv6 open");
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
}
