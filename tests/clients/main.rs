//! The client libraries in use, as real processes against the real binary, in good and bad weather.
//!
//! Most problems with metadata proxies come from client libraries that the proxy's authors never tested. Here
//! each of them acts as in an application ([`client`]), in each weather ([`weather`]), and the outcome is
//! compared with the expectation ([`expected`]). A client that fails because of its own rules is expected to
//! fail, for a documented reason; any other failure, or unexpected success, fails the test. [`refusal`] counts
//! how often each client asks when it is refused. [`fault`] checks the tests themselves: it spoils responses
//! on purpose, and the right clients must notice.
//!
//! Each client in each weather is a test, named `client: weather`, so `cargo test --test clients -- curl` runs
//! some of them. A run ends with a table of outcomes; `METADATA_PROXY_CLIENTS_TABLE=FILE` writes it as
//! Markdown.
//!
//! Clients are installed below `target/` when first needed, with the versions in the lock files in this folder.
//! A client whose runtime is missing is reported as ignored (`tests/support/needs.rs`).

mod client;
mod expected;
mod fault;
mod gate;
mod refusal;
mod stage;
#[allow(dead_code, unreachable_pub, unused_imports, reason = "each test binary uses a part of it")]
#[path = "../support/mod.rs"]
mod support;
mod table;
mod told;
mod weather;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Trial};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use client::{Client, clients};
use support::{needs, stall};

use fault::{FAULTS, SpoiledAnswers};
use refusal::Refusal;
use table::Table;
use weather::{WEATHERS, Weather};

/// Number of concurrent tests, unless the command line sets it. Most of them wait most of the time; the others take
/// turns.
const AT_ONCE: usize = 8;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    support::open_many_files();
    // At the niceness of the clients.
    stall::watch(10);

    let runtime = Arc::new(Runtime::new().expect("a runtime"));
    let table = Arc::new(Table::default());
    let mut trials = Vec::new();
    for weather in WEATHERS {
        for client in clients().filter(|client| client.meets(weather)) {
            trials.push(test_of(client, weather, &runtime, &table));
        }
    }
    for fault in FAULTS {
        trials.push(test_of_fault(fault, &runtime));
    }
    // Last, because they mostly wait.
    for refusal in Refusal::ALL {
        for client in clients().filter(|client| client.gets_tokens()) {
            trials.push(test_of_refusal(client, refusal, &runtime, &table));
        }
    }

    let conclusion = libtest_mimic::run(&arguments, trials);
    table.print();
    conclusion.exit_code()
}

fn test_of(client: &'static Client, weather: &'static Weather, runtime: &Arc<Runtime>, table: &Arc<Table>) -> Trial {
    let (runtime, table) = (Arc::clone(runtime), Arc::clone(table));
    let name = format!("{}: {}", client.name, weather.name);
    needs::trial(name, client.needs().to_vec(), move || {
        let (cell, judged) = runtime.block_on(play(client, weather, None))?;
        table.note(client, weather, cell);
        judged?;
        Ok(Completion::Completed)
    })
}

/// Runs a client in a weather, and judges the result.
pub(crate) async fn play(
    client: &'static Client,
    weather: &'static Weather,
    fault: Option<&'static SpoiledAnswers>,
) -> Played<weather::Cell> {
    let should_fail = fault.is_some_and(|fault| fault.is_noticed_by(client));
    let spoil = fault.map(|fault| fault.spoil);
    let name = format!("{}: {}", client.name, weather.name);
    until_it_counts(&name, should_fail, move |again| async move {
        let cell = weather.meet(client, spoil, again && !should_fail).await?;
        let judged = expected::judge(client, weather, &cell);
        Ok((cell, judged))
    })
    .await
}

fn test_of_refusal(client: &'static Client, refusal: Refusal, runtime: &Arc<Runtime>, table: &Arc<Table>) -> Trial {
    let (runtime, table) = (Arc::clone(runtime), Arc::clone(table));
    let name = format!("{}: refused with {}", client.name, refusal.name());
    needs::trial(name.clone(), client.needs().to_vec(), move || {
        let refused = until_it_counts(&name, false, move |again| async move {
            let attempts = refusal.meet(client, again).await?;
            Ok((attempts, attempts.judge(client, refusal)))
        });
        let (attempts, judged) = runtime.block_on(refused)?;
        table.note_refused(client, refusal, attempts);
        judged?;
        Ok(Completion::Completed)
    })
}

/// The result of a client, and whether it is as expected; an error if there is no result.
type Played<T> = Result<(T, Result<(), String>), String>;

/// Maximum times that a client is run, if the machine stalls meanwhile.
const MAX_PLAYS: usize = 4;

/// A stall after which an expected failure may have another cause than the expected one.
const LONG_STALL: Duration = Duration::from_secs(1);

/// Runs a client until the result counts: a failure, expected or not, does not count if the machine stalled meanwhile.
/// `play` is told whether it is another time.
async fn until_it_counts<T: Send + 'static, F: Future<Output = Played<T>> + Send + 'static>(
    name: &str,
    should_fail: bool,
    play: impl Fn(bool) -> F,
) -> Played<T> {
    for plays in 1.. {
        let began = Instant::now();
        // A task of its own, so that a panic is a failure of this play.
        let played = tokio::spawn(play(plays > 1)).await.unwrap_or_else(|panic| Err(panic.to_string()));
        let is_doubtful = should_fail || !matches!(played, Ok((_, Ok(()))));
        let least = if should_fail { LONG_STALL } else { Duration::ZERO };
        match stall::longest_since(began) {
            Some(stall) if is_doubtful && stall >= least && plays < MAX_PLAYS => {
                println!("{name}: again, because the computer stood still for {stall:?}");
            }
            _ => return played,
        }
    }
    unreachable!("the last play counts")
}

fn test_of_fault(fault: &'static SpoiledAnswers, runtime: &Arc<Runtime>) -> Trial {
    let runtime = Arc::clone(runtime);
    needs::trial(format!("a fault turns the right rows red: {}", fault.name), fault.needs(), move || {
        runtime.block_on(fault.check())?;
        Ok(Completion::Completed)
    })
}
