//! Instruction counts of the hot paths, measured with callgrind and compared with committed bounds. This
//! detects regressions even on machines whose timings are unreliable.
//!
//! `cargo bench --bench instructions` compares with `benches/instructions.txt` and fails if a count exceeds its
//! bound by more than 5 %. `cargo bench --bench instructions -- --write` writes the counts as the new bounds.
//!
//! This program runs itself under valgrind, once per subject. Only [`counted`] is counted, not the preparation.

mod support;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::process::{Command, ExitCode};

use http::uri::PathAndQuery;
use protocol::metadata::{MetadataPath, Query, Request};
use proxy::layers::filter;
use proxy::layers::in_flight::SeatedBody;
use proxy::layers::latency::TimedBody;
use proxy::layers::token_cache::{Audit, DEFAULT_LIMIT_BYTES, Store, TokenCache, Tokens};
use proxy::policy::Choice;
use proxy::reply::Body;
use proxy::server::Stack;
use proxy::tokens::TokenKey;
use support::Pipe;
use telemetry::Registry;
use tower::{Layer, Service, service_fn};

const BOUNDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.txt");

/// Tolerance above a bound, in per cent.
const TOLERANCE_PERCENT: u64 = 5;

/// Calls before counting, so that one-time initialisation is not counted.
const WARM_UP: usize = 50;

/// Number of calls to average over, because hash maps are seeded at random.
const TIMES: usize = 500;

type Subject = (&'static str, fn());

const SUBJECTS: &[Subject] = &[
    ("parse and conceal, a common path", || parse_and_conceal(support::TOKEN)),
    ("parse and conceal, another path", || parse_and_conceal(support::CLUSTER_UID)),
    ("token hit, token layer alone", token_layer),
    ("known leaf, whole stack", || whole_stack(support::ZONE)),
    ("token hit, whole stack", || whole_stack(support::TOKEN)),
    ("token hit, whole stack, with identity", || hits(support::stack_with_identity(), support::TOKEN)),
    ("bare hyper, a request on a pipe", bare_hyper),
    ("token hit, a request on a pipe", || on_a_pipe(support::stack(), support::TOKEN)),
    ("passed on, a request on a pipe", || on_a_pipe(support::stack_in_front(), support::CLUSTER_UID)),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => compare(false),
        ["--write"] => compare(true),
        ["--count", subject] => {
            let found = SUBJECTS.iter().find(|(name, _)| *name == subject);
            found.expect("one of the subjects").1();
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("usage: cargo bench --bench instructions [-- --write]");
            ExitCode::from(64)
        }
    }
}

/// The function that is counted, found by its name. It must not be inlined.
#[inline(never)]
fn counted<T>(run: impl FnOnce() -> T) -> T {
    black_box(run())
}

fn times<I, T>(mut ready: impl FnMut() -> I, mut run: impl FnMut(I) -> T) {
    for _ in 0..WARM_UP {
        drop(run(ready()));
    }
    for _ in 0..TIMES {
        let input = ready();
        counted(|| drop(run(input)));
    }
}

fn parse_and_conceal(target: &str) {
    let policy = Choice::default().load().expect("built in");
    let target: PathAndQuery = target.parse().expect("a target");
    times(
        || target.clone(),
        |target| {
            let path = MetadataPath::parse(&target).expect("a path");
            let request = Request::get(path, Query::parse(target.query()).expect("a query"));
            black_box(policy.judge(&request));
            request
        },
    );
}

fn token_layer() {
    let runtime = support::runtime();
    let _entered = runtime.enter();
    let tokens = Tokens::new(Store::new(DEFAULT_LIMIT_BYTES, &Registry::default()), support::Source);
    runtime.block_on(tokens.warm(TokenKey::default_account())).expect("the source gives a token");
    let mut cache = filter::layer(TokenCache::new(&tokens, Audit::Off)).layer(service_fn(support::nothing));
    times(|| support::parsed(support::TOKEN), |request| support::now(cache.call(request)));
}

fn whole_stack(target: &str) {
    hits(support::stack(), target);
}

fn hits(stack: impl Future<Output = impl Stack<Future: Send>>, target: &str) {
    let runtime = support::runtime();
    let _entered = runtime.enter();
    let mut stack = runtime.block_on(stack);
    times(|| support::request(target), |request| support::now(stack.call(request)));
}

fn bare_hyper() {
    let runtime = support::runtime();
    let _entered = runtime.enter();
    let body = http_body_util::Full::new(bytes::Bytes::from_static(&[b'x'; 250]));
    let answer = move |_| std::future::ready(Ok::<_, std::convert::Infallible>(http::Response::new(body.clone())));
    let mut pipe = Pipe::to(hyper::service::service_fn(answer), support::TOKEN);
    times(|| (), |()| runtime.block_on(pipe.exchange()));
}

fn on_a_pipe<S>(stack: impl Future<Output = S>, target: &str)
where
    S: Stack<Body = TimedBody<SeatedBody<Body>>>,
{
    let runtime = support::runtime();
    let _entered = runtime.enter();
    let stack = runtime.block_on(stack);
    let mut pipe = Pipe::to_stack(stack, target);
    times(|| (), |()| runtime.block_on(pipe.exchange()));
}

/// Counts all subjects and prints the counts with their bounds. Fails if one exceeds its bound.
fn compare(write: bool) -> ExitCode {
    let text = std::fs::read_to_string(BOUNDS).unwrap_or_default();
    let bounds: BTreeMap<&str, u64> = text
        .lines()
        .filter_map(|line| Some((line.split_once(": ")?.0, line.split_once(": ")?.1.parse().ok()?)))
        .collect();
    let mut counts = Vec::new();
    let mut outcome = ExitCode::SUCCESS;
    println!("{:40} {:>12} {:>12}", "instructions a request", "counted", "bound");
    for (name, _) in SUBJECTS {
        let count = match count(name) {
            Ok(count) => count,
            Err(why) => {
                eprintln!("instructions: {why}");
                return ExitCode::FAILURE;
            }
        };
        let bound = bounds.get(name).copied();
        let verdict = match bound {
            None => "has no bound yet",
            Some(bound) if count * 100 > bound * (100 + TOLERANCE_PERCENT) => "TOO MANY",
            Some(bound) if count * (100 + TOLERANCE_PERCENT) < bound * 100 => "fewer: lower the bound (--write)",
            Some(_) => "",
        };
        println!(
            "{name:40} {count:12} {:>12} {verdict}",
            bound.map_or_else(|| "-".to_owned(), |bound| bound.to_string())
        );
        if bound.is_none() || verdict == "TOO MANY" {
            outcome = ExitCode::FAILURE;
        }
        counts.push(format!("{name}: {count}\n"));
    }
    if write {
        return match std::fs::write(BOUNDS, counts.concat()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("instructions: {BOUNDS}: {error}");
                ExitCode::FAILURE
            }
        };
    }
    outcome
}

/// Mean count of one subject.
fn count(subject: &str) -> Result<u64, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let valgrind = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*instructions*counted*"])
        .arg(this)
        .args(["--count", subject])
        // The C library selects implementations by processor features. Disable those that not every processor
        // has.
        .env("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2,-AVX512F,-AVX512VL,-ERMS,-FSRM")
        .output()
        .map_err(|error| format!("valgrind does not run ({error}); apt-get install valgrind"))?;
    let said = String::from_utf8_lossy(&valgrind.stderr);
    let collected = said.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse::<u64>().ok());
    match collected {
        Some(collected @ 1..) if valgrind.status.success() => Ok(collected / TIMES as u64),
        _ => Err(format!("{subject} was not counted; valgrind said:\n{said}")),
    }
}
