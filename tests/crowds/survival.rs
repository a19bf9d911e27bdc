//! A stop under load. Crowds with little memory and little CPU are in `tests/tools`, hostile pods in `tests/siege`.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::stage::{LEAF, TOKEN, start_binary};
use crate::support::{Connection, Outcome};
use crate::turn;

/// A client that sends requests continuously on one connection and respects `Connection: close`. It ends when
/// the connection is announced to close, is closed before a request, or the time is up. Returns the number of
/// responses.
async fn diligent(addr: SocketAddr, number: u64, end: Instant) -> Result<u64, String> {
    let mut connection = Connection::open(addr).await;
    for answers in 0.. {
        if Instant::now() >= end || connection.is_closed() {
            return Ok(answers);
        }
        let target = if (number + answers).is_multiple_of(2) { TOKEN } else { LEAF };
        match connection.ask(target).await {
            Outcome::Answered(answer) if answer.status == 200 => {
                if answer.header("connection") == Some("close") {
                    return Ok(answers + 1);
                }
            }
            other => return Err(format!("client {number}, request {answers}, {target}: {other:?}")),
        }
        if number.is_multiple_of(5) {
            sleep(Duration::from_millis(20)).await;
        }
    }
    unreachable!("a number is enough for three seconds")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_under_load_loses_no_request() {
    let _turn = turn().await;
    let (_mock, mut binary, addr, _) = start_binary(&[]).await;
    let end = Instant::now() + Duration::from_secs(4);
    let clients: JoinSet<_> = (0..50).map(|number| diligent(addr, number, end)).collect();
    sleep(Duration::from_millis(1500)).await;
    binary.terminate();
    let told = Instant::now();
    assert_eq!(binary.ended().await.code(), Some(0));
    println!("the binary ended {:?} after SIGTERM", told.elapsed());
    assert!(Instant::now() < end, "it ended before its clients did");
    let outcomes = clients.join_all().await;
    let failed: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    let answers: u64 = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok()).sum();
    println!("{answers} answers to 50 clients");
    assert!(failed.is_empty(), "{} failed: {failed:?}", failed.len());
}
