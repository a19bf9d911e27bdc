//! The verdicts of the fixture, tested with the binary.

#[path = "../../fixtures/verdicts.rs"]
#[allow(dead_code, reason = "the unit test needs more of it")]
mod fixture;

use std::net::SocketAddr;

use fixture::{Fate, Row, Verdict, rows};
use mock::{Handle, SECRET_MARKER};
use proxy::policy::Policy;

use super::{built_in, misread};
use crate::support::{Answer, Binary, Connection, upstream};

#[tokio::test]
async fn compat_answers_as_the_fixture_says() {
    answers_as_the_fixture_says("compat", |row| row.compat).await;
}

#[tokio::test]
async fn strict_answers_as_the_fixture_says() {
    answers_as_the_fixture_says("strict", |row| row.strict).await;
}

#[tokio::test]
async fn the_policy_of_k8s_metadata_proxy_answers_as_the_fixture_says() {
    answers_as_the_fixture_says("k8s-metadata-proxy", |row| row.published).await;
}

async fn answers_as_the_fixture_says(name: &str, verdict: impl Fn(&Row) -> Verdict) {
    let mock = upstream().await;
    mock.enable_legacy();
    let (_binary, addr, _) = Binary::ready(None, mock.addr(), &["--policy", name]).await;
    let policy = built_in(name).load().expect("built in");
    let rows = rows();
    assert!(rows.len() >= 250, "{} rows are fewer than there were", rows.len());
    let mut failures = Vec::new();
    for row in rows {
        let problems = ask(addr, &mock, &policy, &row, verdict(&row)).await;
        failures.extend(problems.into_iter().map(|problem| format!("line {}: {}: {problem}", row.line, row.request)));
    }
    assert!(failures.is_empty(), "{} rows are answered otherwise:\n{}", failures.len(), failures.join("\n"));
}

async fn ask(addr: SocketAddr, mock: &Handle, policy: &Policy, row: &Row, expected: Verdict) -> Vec<String> {
    mock.reset_counters();
    let mut connection = Connection::open(addr).await;
    connection.send(row.bytes()).await;
    // This request closes a connection that is still open, so that all responses are read.
    connection.send("GET / HTTP/1.1\r\nHost: metadata\r\nConnection: close\r\n\r\n").await;
    let came = connection.rest().await;
    let text = String::from_utf8_lossy(&came);
    let first = Answer::parse(&came, row.request.starts_with("HEAD ")).map(|(answer, _)| answer);

    let mut problems = Vec::new();
    let status = first.as_ref().map(|answer| answer.status);
    if status != expected.status {
        problems.push(format!("the status is {status:?}, not {:?}", expected.status));
    }
    if text.contains(SECRET_MARKER) != matches!(expected.fate, Fate::Open | Fate::Part) {
        problems.push(format!("that it holds a secret is no longer what the fixture says: {text}"));
    }
    if let Some(answer) = first.filter(|answer| answer.header("metadata-flavor") != Some("Google")) {
        problems.push(format!("without flavor: {answer:?}"));
    }
    if matches!(expected.fate, Fate::Own | Fate::Refuse | Fate::Drop) && mock.requests() != 0 {
        problems.push(format!("it reached the upstream as {:?}", mock.log()));
    }
    problems.extend(misread(mock, policy).into_iter().map(|target| format!("{target} went upstream")));
    problems
}
