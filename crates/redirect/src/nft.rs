//! The rules for nftables: our own table, replaced atomically.

use std::fmt::Write;

use base::netlink::{NLM_F_ACK, add_attribute, ask_netfilter};
use rustix::io::Errno;

use super::plan::{Plan, SOURCE_SECONDS, SOURCES};
use super::rule::{Chain, Hook, Name, Rule, Then, When};
use super::state::are_reset;
use super::{Error, State, process};

const TABLE: &str = "inet gce_metadata_proxy";

/// An empty chain, which marks that the first edition enabled the kernel's loopback routing.
pub(super) const OPENED_LOOPBACK: &str = "opened_loopback";

/// Name and type of the sets that count new connections by source, of IPv4 and of IPv6.
const NEW_CONNECTIONS: [(&str, &str); 2] = [("new_connections", "ipv4_addr"), ("new_connections_v6", "ipv6_addr")];

/// Fails unless `nft` is installed and the kernel supports nftables.
pub(super) async fn probe() -> Result<(), Error> {
    process::run("nft", &["list", "tables"], "").await.map(drop)
}

/// Whether the kernel has the table, which needs no `nft`. One that cannot be asked may have it. The kernel may load its module for
/// nftables to answer, as it does for `nft`.
pub(super) fn may_have_table() -> bool {
    // `NFNL_SUBSYS_NFTABLES` and `NFT_MSG_GETTABLE`.
    const GET_TABLE: u16 = (10 << 8) | 1;
    const NFPROTO_INET: u8 = 1;
    const NFTA_TABLE_NAME: u16 = 1;
    // The table is not there, or the kernel has no nftables, or none for tables of both IP versions. It refuses a subsystem that it
    // does not have as it refuses a malformed request (`INVAL`), so `tests/node` asks a real kernel.
    const NONE: [Errno; 5] = [Errno::NOENT, Errno::INVAL, Errno::PROTONOSUPPORT, Errno::OPNOTSUPP, Errno::AFNOSUPPORT];
    #[cfg(test)]
    if let Some(has_table) = super::fake::has_nft_table() {
        return has_table;
    }
    // `nfgenmsg`, whose version and number are 0.
    let mut request = vec![NFPROTO_INET, 0, 0, 0];
    let name = TABLE.split(' ').next_back().unwrap_or_default();
    add_attribute(&mut request, NFTA_TABLE_NAME, &[name.as_bytes(), b"\0"].concat());
    match ask_netfilter(GET_TABLE, NLM_F_ACK, &request) {
        Ok(tables) => !tables.is_empty(),
        Err(error) => !Errno::from_io_error(&error).is_some_and(|error| NONE.contains(&error)),
    }
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

fn hook_of(hook: Hook) -> String {
    hook.to_string().to_ascii_lowercase()
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
mod tests;
