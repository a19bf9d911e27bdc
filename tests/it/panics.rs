//! Panics in the log of a process.

use std::net::SocketAddr;
use std::panic::catch_unwind;
use std::process::Command;
use std::sync::Arc;

use proxy::error::Error;
use proxy::layers::catch_panic;
use serde_json::Value;
use telemetry::logging::{self, Format};
use telemetry::requests::Requests;
use tower::{Layer, ServiceExt, service_fn};

/// Set in the process that panics. The log and the hook are the process's.
const PANICS: &str = "METADATA_PROXY_TEST_PANICS";

#[tokio::test]
async fn a_panic_is_one_line_of_json_with_its_message_and_its_place() {
    if std::env::var_os(PANICS).is_some() {
        return panic_in_all_ways().await;
    }
    let mut process = Command::new(std::env::current_exe().expect("a path"));
    process.args(["--exact", "--nocapture", "panics::a_panic_is_one_line_of_json_with_its_message_and_its_place"]);
    let run = process.env(PANICS, "1").env("RUST_BACKTRACE", "1").output().expect("it runs");
    let log = String::from_utf8(run.stderr).expect("text");
    assert!(run.status.success(), "{log}");
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    // One for a hundred panics at one place; and one for a request's, with one that says which request.
    let [hundred, at_request, request] = &lines[..] else { panic!("{log}") };
    for line in [hundred, at_request, request] {
        assert!(line["location"].as_str().is_some_and(|place| place.starts_with("tests/it/panics.rs:")), "{line}");
        assert_eq!((&line["level"], &line["count"]), (&"ERROR".into(), &1.into()), "{line}");
    }
    assert_eq!(hundred["panic"], "first line\nsecond");
    assert_eq!(hundred["target"], "gce_metadata_proxy::panics");
    assert!(at_request["panic"].as_str().is_some_and(|said| said.len() == 243), "{at_request}");
    assert_eq!((&request["panic"], &request["location"]), (&at_request["panic"], &at_request["location"]));
    assert_eq!(request["peer"], "10.0.0.7:1");
}

async fn panic_in_all_ways() {
    logging::start(Format::Json, &"off,proxy=error".parse().expect("levels"));
    for _ in 0..100 {
        assert!(catch_unwind(|| panic!("first line\nsecond")).is_err());
    }
    let requests = Arc::<Requests>::default();
    let peer: SocketAddr = ([10, 0, 0, 7], 1).into();
    let panics = service_fn(async |()| -> Result<(), Error> { panic!("{}", "x".repeat(1000)) });
    for _ in 0..100 {
        assert!(catch_panic::layer(&requests, peer).layer(panics).oneshot(()).await.is_err());
    }
}
