//! `explain` and the running proxy agree for all generated requests.

use std::net::SocketAddr;

use mock::Handle;
use operator::explain::explain;
use proptest::test_runner::{Config, TestRunner};
use proxy::policy::Policy;

use super::built_in;
use super::spellings::target;
use crate::support::{Answer, Proxy, config, raw, upstream};

/// Number of requests for each of the two built-in policies.
const CASES: u32 = 5_000;

#[test]
fn explain_agrees_with_a_proxy_under_compat() {
    explain_agrees("compat");
}

#[test]
fn explain_agrees_with_a_proxy_under_strict() {
    explain_agrees("strict");
}

fn explain_agrees(name: &str) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let policy = built_in(name).load().expect("built in");
    let (mock, proxy) = runtime.block_on(async {
        let mock = upstream().await;
        mock.enable_legacy();
        let config = gce_metadata_proxy::config::Config { policy: built_in(name), ..config(mock.addr()) };
        let proxy = Proxy::with(config).await;
        (mock, proxy)
    });
    let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let result = runner.run(&target(), |target| {
        let disagreement = runtime.block_on(disagreement(&policy, proxy.addr, &mock, &target));
        match disagreement {
            None => Ok(()),
            Some(disagreement) => Err(proptest::test_runner::TestCaseError::fail(disagreement)),
        }
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// The output of `explain` for a request.
#[derive(Debug)]
struct Explained<'a> {
    verdict: Option<&'a str>,
    /// Status and message of the client's response, if it is a refusal.
    client: Option<(u16, &'a str)>,
    /// The target that is sent upstream.
    upstream: Option<&'a str>,
}

impl<'a> Explained<'a> {
    fn read(text: &'a str) -> Self {
        let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim_start);
        let client = line("client ").map(|client| {
            let (status, sentence) = client.split_once(": ").expect("a status and a sentence");
            (status[..3].parse().expect("a status"), sentence)
        });
        let upstream = line("upstream ").and_then(|upstream| upstream.strip_prefix("GET "));
        Self { verdict: line("verdict "), client, upstream }
    }
}

async fn disagreement(policy: &Policy, addr: SocketAddr, mock: &Handle, target: &str) -> Option<String> {
    let text = explain(policy, target);
    let explained = Explained::read(&text);
    mock.reset_counters();
    let request =
        format!("GET {target} HTTP/1.1\r\nHost: metadata\r\nMetadata-Flavor: Google\r\nConnection: close\r\n\r\n");
    let came = raw(addr, request).await;
    let (answer, _) = Answer::parse(&came, false)?;
    // Tokens are renewed independently of requests.
    let sent: Vec<_> = mock.log().into_iter().filter(|seen| !seen.path().ends_with("/token")).collect();
    let is_as_explained = match (explained.client, explained.upstream) {
        // A target that the HTTP parser rejects is refused before it becomes a request, with another message.
        (Some((400, _)), None) => answer.status == 400 && sent.is_empty(),
        (Some((status, sentence)), None) => {
            answer.status == status && answer.body.trim_end() == sentence && sent.is_empty()
        }
        (None, None) => explained.verdict == Some("redirect to the directory") && answer.status == 301,
        (None, Some(upstream)) => {
            // For an error of the server, the proxy may pass on only the status, with its own message.
            let is_refusal =
                sent.is_empty() && answer.header("server") == Some("gce-metadata-proxy") && answer.status >= 400;
            !is_refusal && sent.iter().all(|seen| seen.target == upstream)
        }
        (Some(_), Some(_)) => false,
    };
    (!is_as_explained).then(|| format!("{target}: {text}\nbut {} {}\nupstream: {sent:?}", answer.status, answer.body))
}
