//! Tokens through the real binary: one upstream request for any number of clients, and valid tokens are always
//! served.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use mock::{BUILDER_ACCOUNT, Fault, Handle};

use crate::support::tokens::{crowd, path_of, secret};
use crate::support::{Binary, Connection, Proxy, close_pooled, eventually, get, get_until, upstream};

const DEFAULT: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

/// Starts a mock with slow responses, so that callers overlap, and the binary in front of it.
async fn start() -> (Handle, Binary, SocketAddr) {
    let mock = upstream().await;
    let (binary, addr, _) = Binary::ready(None, mock.addr(), &[]).await;
    mock.reset_counters();
    (mock, binary, addr)
}

#[tokio::test]
async fn the_client_that_began_a_flight_may_leave() {
    let (mock, _binary, addr) = start().await;
    mock.fault(Fault::Delay(Duration::from_millis(800)));
    let path = path_of(BUILDER_ACCOUNT);
    let mut leader = Connection::open(addr).await;
    leader.send(format!("GET {path} HTTP/1.1\r\nHost: metadata\r\nMetadata-Flavor: Google\r\n\r\n")).await;
    eventually("the flight is upstream", || mock.in_flight() == 1).await;
    drop(leader);
    let answers = crowd(addr, std::iter::repeat_n(path, 99)).await;
    assert!(answers.iter().all(|answer| !secret(answer).is_empty()));
    assert_eq!(mock.requests(), 1);
}

#[tokio::test]
async fn what_is_known_is_answered_while_the_upstream_is_away() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    let before = secret(&get(proxy.addr, DEFAULT).await);
    let zone = get(proxy.addr, "/computeMetadata/v1/instance/zone").await;
    let email = get(proxy.addr, "/computeMetadata/v1/instance/service-accounts/default/email").await.body;
    mock.stop().await;

    assert_eq!(secret(&get(proxy.addr, DEFAULT).await), before);
    assert_eq!(secret(&get(proxy.addr, &path_of(&email)).await), before, "default and its e-mail are one account");
    let zone_now = get(proxy.addr, "/computeMetadata/v1/instance/zone").await;
    assert_eq!((zone_now.status, &zone_now.body), (200, &zone.body));
    for name in ["etag", "server", "content-type", "metadata-flavor"] {
        assert_eq!(zone_now.header(name), zone.header(name), "{name} is the server's own");
    }
    assert_eq!(get(proxy.addr, "/").await.status, 200);
    let redirect = get(proxy.addr, "/computeMetadata/v1/instance").await;
    assert_eq!(redirect.header("location"), Some(&*format!("http://{}/computeMetadata/v1/instance/", proxy.addr)));
    assert_eq!((redirect.status, redirect.body.as_str()), (301, "/computeMetadata/v1/instance/\n"));
    for universe in ["universe-domain", "universe_domain"] {
        let universe = get(proxy.addr, &format!("/computeMetadata/v1/universe/{universe}")).await;
        assert_eq!((universe.status, universe.body.as_str()), (200, "googleapis.com"));
    }
    assert_eq!(get(proxy.addr, "/computeMetadata/v1/instance/cpu-platform").await.status, 503);
    assert_eq!(get(proxy.addr, &path_of(BUILDER_ACCOUNT)).await.status, 503, "a token that was never known");
}

#[tokio::test]
async fn garbage_is_never_handed_out_as_a_token() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    let body = |body: &str| Fault::Body(body.to_owned());
    for (at, fault) in [
        Fault::Html,
        Fault::HugeBody { bytes: 10 * 1024 * 1024 },
        Fault::CutBody { after: 100 },
        Fault::TokenLife(0),
        Fault::TokenLife(-5),
        Fault::TokenLife(1_000_000_000),
        body(r#"{"access_token":"a","expires_in":"3599","token_type":"Bearer"}"#),
        body(r#"{"access_token":"a","expires_in":3599.5,"token_type":"Bearer"}"#),
        body("{}"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("{fault:?}");
        mock.fault(fault);
        let answer = get(proxy.addr, &format!("{DEFAULT}?scopes=s{at}")).await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{name}: {}", answer.body);
        assert!(!secret(&get(proxy.addr, DEFAULT).await).is_empty(), "{name}: the known token is still handed out");
    }
    let too_large = proxy.metric("metadata_proxy_refusals_total{reason=\"upstream_too_large\"}").await;
    assert_eq!(too_large, Some(1.0), "the huge one is known for what it is");
}

#[tokio::test]
async fn a_refusal_of_the_servers_is_passed_on_and_remembered() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    mock.reset_counters();
    for _ in 0..3 {
        let answer = get(proxy.addr, &path_of("nobody@mock-project.iam.gserviceaccount.com")).await;
        assert_eq!((answer.status, answer.header("server")), (404, Some("Metadata Server for VM")));
    }
    assert_eq!(mock.requests(), 1);
}

#[tokio::test]
async fn a_503_is_asked_about_again_once() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    mock.reset_counters();
    mock.fault_next(1, Fault::Status(503, "migrating".to_owned()));
    secret(&get(proxy.addr, &path_of(BUILDER_ACCOUNT)).await);
    assert_eq!(mock.requests(), 2);
}

/// Retries help while a machine migrates. If a server responds 503 to everything, they are only additional load.
#[tokio::test]
async fn a_server_that_says_503_to_everything_is_asked_hardly_more_often_than_clients_ask() {
    const ASKED: u64 = 60;
    let (mock, proxy) = Proxy::of_a_mock().await;
    mock.fault(Fault::Status(503, "overloaded".to_owned()));
    mock.reset_counters();
    let targets = (0..ASKED).map(|n| format!("{DEFAULT}?scopes=https://www.googleapis.com/auth/{n}"));
    for answer in crowd(proxy.addr, targets).await {
        assert_eq!(answer.status, 503);
    }
    let second_tries = mock.requests() - ASKED;
    assert!(
        (1..=15).contains(&second_tries),
        "one a second, of ten seconds, and a few for what was answered: {second_tries}"
    );
}

/// The server at the metadata server's address is not a metadata server.
#[tokio::test]
async fn a_server_that_knows_nothing_is_not_taken_for_warm() {
    let mock = upstream().await;
    for status in [404, 403] {
        mock.fault(Fault::Status(status, "nothing here".to_owned()));
        let proxy = Proxy::start_cold(mock.addr()).await;
        mock.reset_counters();
        eventually("it warms up", || mock.requests() >= 20).await;
        assert_eq!(get(proxy.metrics_addr, "/readyz").await.body, "starting\n", "{status}");
    }
}

#[tokio::test]
async fn readiness_waits_for_what_pods_ask_first() {
    let mock = upstream().await;
    mock.fault_at(DEFAULT, Fault::Hang);
    let proxy = Proxy::start_cold(mock.addr()).await;
    eventually("it warms up", || mock.requests_to(DEFAULT) > 0).await;
    let ready = get(proxy.metrics_addr, "/readyz").await;
    assert_eq!((ready.status, ready.body.as_str()), (503, "starting\n"));
    assert_eq!(get(proxy.metrics_addr, "/healthz").await.status, 200);
    assert_eq!(get(proxy.addr, "/").await.status, 200, "who comes all the same is served");
    mock.heal();
    get_until(proxy.metrics_addr, "/readyz", |answer| answer.body == "ready\n").await;
}

/// No part of a token appears in anything that the proxy logs and counts at the most verbose level, while
/// tokens are served, refused, invalid and truncated.
#[tokio::test]
async fn no_log_and_no_metric_holds_a_token() {
    let mock = upstream().await;
    let upstream = format!("http://{}", mock.addr());
    let args = ["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0", "--upstream", &upstream, "--log=trace"];
    let mut binary = Binary::start(&args);
    let metrics_addr = Binary::addr_in(&binary.stderr_line("serving operators").await);
    let addr = Binary::addr_in(&binary.stderr_line("serving pods").await);

    let mut secrets = vec![secret(&get(addr, DEFAULT).await), secret(&get(addr, &path_of(BUILDER_ACCOUNT)).await)];
    for fault in
        [Fault::CutBody { after: 150 }, Fault::Html, Fault::TokenLife(0), Fault::Reset, Fault::Status(500, "x".into())]
    {
        mock.fault(fault);
        get(addr, &format!("{DEFAULT}?scopes=s{}", secrets.len())).await;
        mock.heal();
        secrets.push(secret(&get(addr, &format!("{DEFAULT}?scopes=t{}", secrets.len())).await));
    }
    get(addr, &format!("{DEFAULT}?alt=text")).await;
    let metrics = get(metrics_addr, "/metrics").await.body;
    binary.terminate();
    let log = binary.stderr_to_end().await;

    assert!(log.contains("TRACE") || log.contains("DEBUG"), "it was talkative: {log}");
    for secret in secrets {
        // Parts of a token are secret too.
        let middle = &secret[secret.len() / 2..secret.len() / 2 + 20];
        assert!(!log.contains(middle), "a token is in the log: {log}");
        assert!(!metrics.contains(middle), "a token is in the metrics");
    }
    assert!(!log.contains("ya29.") && !metrics.contains("ya29."));
}

#[tokio::test]
async fn a_server_that_fails_again_and_again_is_left_alone_by_other_keys_too() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    let of_key = |key: &str| format!("{}?scopes={key}", path_of(BUILDER_ACCOUNT));
    close_pooled(&mock, &proxy).await;
    mock.fault(Fault::Reset);
    let mut answers = Vec::new();
    for key in 0..20 {
        answers.push(get(proxy.addr, &of_key(&key.to_string())).await);
    }
    assert!(answers.iter().all(|answer| answer.status == 503));
    assert!(answers[19].body.contains("several times in a row"), "{}", answers[19].body);
    assert!(mock.requests() <= 8, "{} requests for 20 keys", mock.requests());

    mock.heal();
    get_until(proxy.addr, &of_key("probe"), |answer| answer.status == 200).await;
    secret(&get(proxy.addr, &of_key("next")).await);
}

/// One pod's keys fail in many ways; the keys of other pods are still fetched.
#[tokio::test]
async fn one_pods_failing_keys_fail_nobody_elses() {
    const BAD_ACCOUNT: &str = "bad@mock-project.iam.gserviceaccount.com";
    let (mock, proxy) = Proxy::of_a_mock().await;
    mock.fault_at(&path_of(BAD_ACCOUNT), Fault::Reset);
    let mut hostile = Connection::open_from(Ipv4Addr::new(127, 0, 0, 9), proxy.addr).await;
    let mut honest = Connection::open_from(Ipv4Addr::new(127, 0, 0, 2), proxy.addr).await;
    let mut told_to_wait = 0;
    for n in 0..40 {
        let failed = hostile.ask(&format!("{}?scopes={n}", path_of(BAD_ACCOUNT))).await.answer();
        assert_eq!(failed.status, 503);
        told_to_wait += usize::from(failed.body.contains("several times in a row"));
        if n % 10 == 9 {
            secret(&honest.ask(&format!("{}?scopes={n}", path_of(BUILDER_ACCOUNT))).await.answer());
        }
    }
    assert!(told_to_wait >= 20, "the server is spared that pod's requests: {told_to_wait}");
    proxy.stop().await;
}

/// One pod waits for 150 keys for which the server never responds, while others need new tokens.
#[tokio::test]
async fn one_pods_slow_keys_hold_up_nobody_elses() {
    const SLOW_ACCOUNT: &str = "slow@mock-project.iam.gserviceaccount.com";
    let (mock, proxy) = Proxy::of_a_mock().await;
    mock.fault_at(&path_of(SLOW_ACCOUNT), Fault::Hang);
    let mut honest = Connection::open_from(Ipv4Addr::new(127, 0, 0, 2), proxy.addr).await;
    let mut hostile = Vec::new();
    for n in 0..150 {
        let mut connection = Connection::open_from(Ipv4Addr::new(127, 0, 0, 9), proxy.addr).await;
        let target = format!("{}?scopes={n}", path_of(SLOW_ACCOUNT));
        connection.send(format!("GET {target} HTTP/1.1\r\nHost: metadata\r\nMetadata-Flavor: Google\r\n\r\n")).await;
        hostile.push(connection);
    }
    eventually("all seats for new tokens are taken", || mock.in_flight() >= 12).await;
    for n in 0..20 {
        secret(&honest.ask(&format!("{}?scopes={n}", path_of(BUILDER_ACCOUNT))).await.answer());
    }
    drop(hostile);
    proxy.stop().await;
}
