//! What a test pretends to have, in its own thread: tools, addresses, IPv6, interfaces, routes and a sysctl. Nothing of the machine's is
//! changed, and what decides about rules is not read.
//!
//! `iptables` keeps its rules, a table at a time. There is no `nft` unless a test answers for it; it must not answer the probe, as a
//! tool that has worked once counts as usable in the whole process.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Metadata, Subscriber, subscriber};

use super::{Error, PROXY};
use base::links::Link;
use base::routes::{Route, parse_v4};

type Answer = Result<String, Error>;

/// A test's own answer to a tool's name, arguments and input, if any.
type Answers = Box<dyn FnMut(&str, &[&str], &str) -> Option<Answer>>;

/// The rules of each chain, in order.
type Chains = BTreeMap<String, Vec<String>>;

thread_local! {
    static TOOLS: RefCell<Option<Tools>> = const { RefCell::new(None) };
}

struct Tools {
    answers: Answers,
    /// Each call, as a command line.
    asked: Vec<String>,
    /// By whether they are of IPv6, and by their names.
    tables: BTreeMap<(bool, String), Chains>,
    /// Those that the redirect added to `lo`.
    addresses: Vec<IpAddr>,
    has_nft_table: bool,
    has_ipv6: bool,
    links: Vec<Link>,
    /// `None` if they cannot be read.
    routes: Option<Vec<Route>>,
    /// The sysctl `route_localnet`.
    is_loopback_routed: bool,
    /// There is no descriptor for a request to the kernel before.
    netlink_fails_until: Option<Instant>,
    /// Requests before, and the numbers of those that it has no descriptor for, either.
    netlink_requests: usize,
    netlink_failures: Range<usize>,
    /// Packets that each rule of `mangle` has met since it was last changed.
    met: u64,
}

/// Pretends until it is dropped.
pub(super) struct Pretence;

impl Drop for Pretence {
    fn drop(&mut self) {
        TOOLS.set(None);
    }
}

/// Pretends to have these tools. `answers`: what they answer instead of what they would.
pub(super) fn pretend(answers: impl FnMut(&str, &[&str], &str) -> Option<Answer> + 'static) -> Pretence {
    let (answers, asked, tables) = (Box::new(answers), Vec::new(), BTreeMap::new());
    TOOLS.set(Some(Tools {
        answers,
        asked,
        tables,
        addresses: PROXY.map(|to| to.ip()).to_vec(),
        has_nft_table: false,
        has_ipv6: true,
        links: Vec::new(),
        routes: Some(default_route("ens4")),
        is_loopback_routed: false,
        netlink_fails_until: None,
        netlink_requests: 0,
        netlink_failures: 0..0,
        met: 0,
    }));
    Pretence
}

/// An error of a tool that refuses what it reads.
pub(super) fn refused() -> Error {
    Error::Tool { tool: "a tool", said: "not in this kernel".to_owned() }
}

/// An error of a tool that may work the next time.
pub(super) fn busy() -> Error {
    Error::Busy { tool: "a tool", said: "Another app is currently holding the xtables lock.".to_owned() }
}

/// The calls of tools, as command lines.
pub(super) fn asked() -> Vec<String> {
    with(|tools| tools.asked.clone()).expect("a test pretends")
}

pub(super) fn meet(packets: u64) {
    with(|tools| tools.met += packets);
}

pub(super) fn have_no_ipv6() {
    with(|tools| tools.has_ipv6 = false);
}

pub(super) fn have_nft_table() {
    with(|tools| tools.has_nft_table = true);
}

/// The routes of a node with one uplink.
pub(super) fn default_route(uplink: &str) -> Vec<Route> {
    parse_v4(&format!("Iface\tDestination\n{uplink}\t00000000\t0100800A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"))
}

pub(super) fn have_links(links: Vec<Link>) {
    with(|tools| tools.links = links);
}

/// `None` if they cannot be read.
pub(super) fn have_routes(routes: Option<Vec<Route>>) {
    with(|tools| tools.routes = routes);
}

pub(super) fn route_loopback(is_routed: bool) {
    with(|tools| tools.is_loopback_routed = is_routed);
}

pub(super) fn break_netlink_for(time: Duration) {
    with(|tools| tools.netlink_fails_until = Some(Instant::now() + time));
}

/// Breaks it for these of the next requests.
pub(super) fn break_netlink_requests(failures: Range<usize>) {
    with(|tools| (tools.netlink_requests, tools.netlink_failures) = (0, failures));
}

fn with<T>(then: impl FnOnce(&mut Tools) -> T) -> Option<T> {
    TOOLS.with_borrow_mut(|tools| tools.as_mut().map(then))
}

/// The redirect's addresses on `lo`, or the kernel's error. `None` if no test pretends.
pub(super) fn with_addresses<T>(then: impl FnOnce(io::Result<&mut Vec<IpAddr>>) -> T) -> Option<T> {
    let is_broken = |tools: &mut Tools| {
        let fails = tools.netlink_failures.contains(&tools.netlink_requests);
        tools.netlink_requests += 1;
        fails || tools.netlink_fails_until.is_some_and(|until| Instant::now() < until)
    };
    with(|tools| then(if is_broken(tools) { Err(Errno::MFILE.into()) } else { Ok(&mut tools.addresses) }))
}

pub(super) fn is_pretended() -> bool {
    with(|_| ()).is_some()
}

/// Whether the kernel has nft's table, which the pretended tools do not show. `None` if no test pretends.
pub(super) fn has_nft_table() -> Option<bool> {
    with(|tools| tools.has_nft_table)
}

/// Whether the kernel has IPv6, and this node an address. `None` if no test pretends.
pub(super) fn has_ipv6() -> Option<bool> {
    with(|tools| tools.has_ipv6)
}

/// `None` if no test pretends.
pub(super) fn links() -> Option<Vec<Link>> {
    with(|tools| tools.links.clone())
}

/// `None` if no test pretends.
pub(super) fn routes() -> Option<io::Result<Vec<Route>>> {
    with(|tools| tools.routes.clone().ok_or_else(|| Errno::MFILE.into()))
}

/// `None` if no test pretends.
pub(super) fn is_loopback_routed() -> Option<bool> {
    with(|tools| tools.is_loopback_routed)
}

/// A tool's answer. `None` if no test pretends.
pub(super) fn answer(tool: &'static str, args: &[&str], input: &str) -> Option<Answer> {
    with(|tools| {
        tools.asked.push(format!("{tool} {}", args.join(" ")));
        if let Some(answer) = (tools.answers)(tool, args, input) {
            return answer;
        }
        let is_v6 = tool.starts_with("ip6");
        match (tool, args) {
            ("nft", _) => Err(Error::Tool { tool, said: "it is not installed".to_owned() }),
            (_, [.., "--test"]) => Ok(String::new()),
            (_, ["-t", table]) => Ok(tools.saved(is_v6, table, "")),
            (_, ["-c", "-t", table]) => Ok(tools.saved(is_v6, table, &format!("[{}:0] ", tools.met))),
            _ => {
                tools.restore(is_v6, input);
                Ok(String::new())
            }
        }
    })
}

impl Tools {
    fn saved(&self, is_v6: bool, table: &str, counted: &str) -> String {
        let Some(chains) = self.tables.get(&(is_v6, table.to_owned())) else { return String::new() };
        let declared = chains.keys().map(|chain| format!(":{chain} - [0:0]\n"));
        let rules = chains.iter().flat_map(|(chain, rules)| rules.iter().map(move |rule| (chain, rule)));
        let rules = rules.map(|(chain, rule)| format!("{counted}-A {chain} {}\n", as_listed(rule)));
        let text: String = declared.chain(rules).collect();
        text.replace("169.254.169.254 ", "169.254.169.254/32 ").replace("fd20:ce::254 ", "fd20:ce::254/128 ")
    }

    fn restore(&mut self, is_v6: bool, input: &str) {
        let mut table = String::new();
        for line in input.lines() {
            if let Some(name) = line.strip_prefix('*') {
                name.clone_into(&mut table);
                self.met = if name == "mangle" { 0 } else { self.met };
            }
            let chains = self.tables.entry((is_v6, table.clone())).or_default();
            let mut words = line.splitn(3, ' ');
            let (what, chain, rule) = (words.next(), words.next().unwrap_or_default(), words.next());
            let (chain, rule) = (chain.to_owned(), rule.unwrap_or_default().to_owned());
            match what.unwrap_or_default() {
                "-A" => chains.entry(chain).or_default().push(rule),
                "-I" => chains.entry(chain).or_default().insert(0, rule.trim_start_matches("1 ").to_owned()),
                "-D" => chains.entry(chain).or_default().retain(|other| *other != rule),
                "-X" => drop(chains.remove(&chain)),
                declared => {
                    if let Some(name) = declared.strip_prefix(':') {
                        chains.insert(name.to_owned(), Vec::new());
                    }
                }
            }
        }
    }
}

/// A rule as `iptables-save` prints it: its comment is before its target.
fn as_listed(rule: &str) -> String {
    let listed = rule.split_once(" -m comment ").and_then(|(rule, comment)| {
        let (conditions, target) = rule.split_once("-j ")?;
        Some(format!("{conditions}-m comment {comment} -j {target}"))
    });
    listed.unwrap_or_else(|| rule.to_owned())
}

/// What a thread logs.
#[derive(Default, Clone)]
pub(super) struct Log(Arc<Mutex<String>>);

impl Log {
    /// The log of this thread, until what is returned beside it is dropped.
    pub(super) fn of_this_thread() -> (Self, impl Sized) {
        let log = Self::default();
        // With one subscriber alone, tracing lets a thread that has none turn off the log lines that it comes to first.
        let second = Dispatch::new(subscriber::NoSubscriber::default());
        let logging = subscriber::set_default(log.clone());
        tracing::callsite::rebuild_interest_cache();
        (log, (logging, second))
    }

    pub(super) fn count(&self, words: &str) -> usize {
        self.0.lock().matches(words).count()
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Text(&mut self.0.lock()));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
        let _ = writeln!(self.0, "{value:?}");
    }
}
