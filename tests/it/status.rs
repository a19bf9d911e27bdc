//! How an operator learns of each bad state: `/statusz`, `/readyz?verbose` and the command `status`.

use std::net::SocketAddr;
use std::time::Duration;

use gce_metadata_proxy::config::Config;
use mock::Fault;
use proxy::layers::conceal::Mode;
use proxy::policy::Source;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::support::{Binary, Proxy, Scratch, config, get, get_until, metric_becomes, raw, upstream};

const LEAF: &str = "/computeMetadata/v1/instance/cpu-platform";
const KUBE_ENV: &str = "/computeMetadata/v1/instance/attributes/kube-env";

/// The output of the page, the JSON, the readiness and the command, which must agree.
struct Told {
    page: String,
    json: Value,
    ready: Value,
    text: String,
    code: Option<i32>,
}

async fn told(admin: SocketAddr) -> Told {
    let parse = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    let page = get(admin, "/statusz").await.body;
    let json = parse(&get(admin, "/statusz?format=json").await.body);
    let ready = parse(&get(admin, "/readyz?verbose").await.body);
    let (code, text, _) = Binary::output(&["status", "--metrics-addr", &admin.to_string()]).await;
    Told { page, json, ready, text, code }
}

impl Told {
    /// Checks that this is the only problem, and that all outputs show it.
    fn is(&self, condition: &str, topic: &str, seen: &str) {
        let class = match condition {
            "ok" => "good",
            "degraded" => "warn",
            _ => "bad",
        };
        let Self { page, json, ready, text, code } = self;
        assert!(page.contains(&format!("<h1 class=\"banner {class}\">{condition}: ")), "{page}");
        assert_eq!(page.matches("class=\"banner good\"").count(), usize::from(condition == "ok"), "{page}");
        for json in [json, ready] {
            assert_eq!((json["condition"].as_str(), json["facts"][0]["fact"].as_str()), (Some(condition), Some(topic)));
            assert!(
                json["facts"][0]["seen"].as_str().is_some_and(|line| line.contains(seen)),
                "{seen} is not in {json}"
            );
            assert!(json["facts"][0]["advice"].is_string(), "{json}");
        }
        assert_eq!(page.matches("<div class=\"banner").count(), json["facts"].as_array().map_or(0, Vec::len), "{page}");
        assert!(text.starts_with(&format!("{:9}gce-metadata-proxy ", condition.to_uppercase())), "{text}");
        assert!(text.contains(seen), "{seen} is missing from\n{text}");
        assert_eq!(*code, Some(1), "{text}");
    }
}

#[tokio::test]
async fn a_proxy_that_is_well_says_so_with_all_that_an_operator_asks_first() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    get(proxy.addr, &format!("{KUBE_ENV}?alt=text")).await;
    let Told { page, json, ready, text, code } = told(proxy.metrics_addr).await;
    assert!(page.contains("<h1 class=\"banner good\">ok: ") && !page.contains("<div class=\"banner"), "{page}");
    assert_eq!((json["condition"].as_str(), json["facts"].as_array().map(Vec::len)), (Some("ok"), Some(0)));
    assert_eq!((ready["status"].as_str(), ready["condition"].as_str()), (Some("ready"), Some("ok")));
    assert!(text.starts_with("ok       gce-metadata-proxy "), "{text}");
    assert_eq!(code, Some(0), "{text}");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    let refused = "refused      127.0.0.1: 1 x 403 concealed, last ";
    for part in [
        host.trim(),
        env!("CARGO_PKG_VERSION"),
        "\nreadiness    ready\n",
        "\npolicy       compat, version ",
        "mode enforce",
        &format!("\nserver       available at {}\n", mock.addr()),
        "\nidentity     off: ",
        "\nredirect     not known here",
        "\ncanary       not known here",
        "\nlast minute  1 requests, 1 of them refused or failed, 0 shed, in ",
        "\nclient       127.0.0.1: 1 requests, 0 shed, 1 refused\n",
        refused,
        KUBE_ENV,
    ] {
        assert!(text.contains(part), "{part} is missing from\n{text}");
    }
    let (code, json, _) =
        Binary::output(&["status", "--json", "--metrics-addr", &proxy.metrics_addr.to_string()]).await;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let refusal = &json["last_refusals"][0];
    assert_eq!((code, refusal["path"].as_str(), refusal["status"].as_u64()), (Some(0), Some(KUBE_ENV), Some(403)));
    proxy.stop().await;
}

#[tokio::test]
async fn audit_mode_is_degraded_and_says_that_secrets_are_served() {
    let mock = upstream().await;
    let proxy = Proxy::with(Config { policy_mode: Mode::Audit, ..config(mock.addr()) }).await;
    assert_eq!(get(proxy.addr, KUBE_ENV).await.status, 200);
    let told = told(proxy.metrics_addr).await;
    told.is(
        "degraded",
        "policy_mode",
        "secrets are served to pods: nothing is concealed; 1 requests for concealed paths",
    );
    proxy.stop().await;
}

#[tokio::test]
async fn a_rejected_policy_is_degraded_with_the_mistake_and_what_a_restart_does() {
    let scratch = Scratch::new("status");
    let write = |text: &str| scratch.file("policy.yaml", text);
    let valid =
        "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nversion: '1'\nextends: strict\n";
    write(valid);
    let mut settings = config(upstream().await.addr());
    settings.policy.source = Source::File(scratch.path("policy.yaml").into());
    let proxy = Proxy::with(settings).await;
    write(&format!("{valid}surprise: true\n"));
    metric_becomes_slowly(proxy.metrics_addr, "metadata_proxy_policy_rejected", 1).await;
    let told = told(proxy.metrics_addr).await;
    told.is("degraded", "policy_file", "a restart fails (exit code 1) until the file is valid");
    assert!(told.text.contains("it said: ") && told.text.contains(":6:1: unknown field `surprise`"), "{}", told.text);
    let rejected = &told.json["policy"]["rejected"];
    assert!(rejected["error"].as_str().is_some_and(|error| error.contains("`surprise`")), "{rejected}");
    assert!(rejected["a_restart"].is_string(), "{rejected}");
    assert!(!told.ready.to_string().contains("surprise"), "pods do not read the file here: {}", told.ready);
    write(valid);
    metric_becomes_slowly(proxy.metrics_addr, "metadata_proxy_policy_rejected", 0).await;
    assert_eq!(
        get_until(proxy.metrics_addr, "/readyz?verbose", |answer| answer.body.contains("\"ok\"")).await.status,
        200
    );
    proxy.stop().await;
}

/// The file is checked every five seconds, and a change counts at the second check that finds it.
async fn metric_becomes_slowly(admin: SocketAddr, series: &str, wanted: u32) {
    let wanted = format!("\n{series} {wanted}\n");
    for _ in 0..300 {
        if get(admin, "/metrics").await.body.contains(&wanted) {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("not in time: {wanted}");
}

#[tokio::test]
async fn an_overload_is_degraded_and_names_reason_and_client() {
    let mock = upstream().await;
    let proxy = Proxy::with(Config { max_in_flight: 1, ..config(mock.addr()) }).await;
    mock.fault(Fault::Hang);
    let addr = proxy.addr;
    let held = tokio::spawn(async move { get(addr, LEAF).await });
    metric_becomes(proxy.metrics_addr, "metadata_proxy_in_flight", 1).await;
    let request = "GET /computeMetadata/v1/instance/tags HTTP/1.1\r\nHost: metadata\r\nMetadata-Flavor: Google\r\n\r\n";
    assert_eq!(raw(addr, request).await, b"", "it was reset");
    let told = told(proxy.metrics_addr).await;
    held.abort();
    told.is("degraded", "overload", "in the last minute, 1 requests or connections were shed: in_flight 1");
    assert!(told.text.contains("it said: the client shed most is 127.0.0.1: "), "{}", told.text);
    assert!(told.text.contains("\nshed         in_flight: 1\n"), "{}", told.text);
    assert_eq!(told.json["last_minute"]["sheds"][0]["reason"], "in_flight");
    assert_eq!(told.json["last_refusals"].as_array().map(Vec::len), Some(0), "it was not refused");
    assert!(!told.ready.to_string().contains("client shed most is"), "pods do not read who asks: {}", told.ready);
    proxy.stop().await;
}

#[tokio::test]
async fn a_dead_metadata_server_is_degraded() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    mock.stop().await;
    assert_eq!(get(proxy.addr, LEAF).await.status, 503);
    let told = told(proxy.metrics_addr).await;
    told.is("degraded", "metadata_server", "; no request has succeeded for ");
    assert!(
        told.text.contains(&format!("\nserver       unavailable at {}: cannot connect", mock.addr())),
        "{}",
        told.text
    );
    assert!(told.text.contains(": 1 x 503 upstream_connect, last "), "{}", told.text);
    proxy.stop().await;
}

#[tokio::test]
async fn a_metadata_server_that_answers_500_is_degraded_and_one_that_answers_404_is_not() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    for (status, told_of) in [(404, None), (500, Some("it answers 500")), (404, None), (429, Some("it answers 429"))] {
        mock.fault(Fault::Status(status, "no".to_owned()));
        assert_eq!(get(proxy.addr, LEAF).await.status, status);
        let told = told(proxy.metrics_addr).await;
        match told_of {
            Some(why) => told.is("degraded", "metadata_server", why),
            None => assert_eq!(told.json["condition"], "ok", "{}", told.text),
        }
    }
    proxy.stop().await;
}

/// Of this pod, all requests fail, and the next request of another one succeeds.
#[tokio::test]
async fn a_path_for_which_the_server_fails_is_told_although_others_succeed() {
    let (mock, proxy) = Proxy::of_a_mock().await;
    mock.fault_at(LEAF, Fault::Status(503, "no".to_owned()));
    assert_eq!(get(proxy.addr, LEAF).await.status, 503);
    assert_eq!(get(proxy.addr, "/computeMetadata/v1/instance/tags").await.status, 200);
    let told = told(proxy.metrics_addr).await;
    assert_eq!((told.code, told.json["condition"].as_str()), (Some(0), Some("ok")), "a pod could cause it");
    for part in [
        "it answered 1 requests of the last minute with 429 or 5xx",
        "\nlast minute  2 requests, 1 of them refused or failed, ",
        "\nrefused      127.0.0.1: 1 x 503 upstream_status, last ",
        "; this is the metadata server's own answer\n",
    ] {
        assert!(told.text.contains(part), "{part} is missing from\n{}", told.text);
    }
    proxy.stop().await;
}

/// Which pod it is, is in no metric.
#[tokio::test]
async fn a_connection_that_is_closed_for_others_is_told_with_its_client() {
    let mock = upstream().await;
    let proxy = Proxy::with(Config { max_connections: 1, ..config(mock.addr()) }).await;
    let _idle = TcpStream::connect(proxy.addr).await.expect("a place");
    metric_becomes(proxy.metrics_addr, "metadata_proxy_connections", 1).await;
    assert_eq!(get(proxy.addr, LEAF).await.status, 200);
    let told = told(proxy.metrics_addr).await;
    told.is("degraded", "overload", "1 requests or connections were shed: idle_connection 1");
    assert!(told.text.contains("it said: the client shed most is 127.0.0.1: 2 requests, 1 shed\n"), "{}", told.text);
    proxy.stop().await;
}

#[tokio::test]
async fn a_node_whose_account_is_refused_is_failing_and_an_account_that_a_pod_invents_is_nothing() {
    let mock = upstream().await;
    let no = || Fault::Status(404, "no such account".to_owned());
    let accounts = "/computeMetadata/v1/instance/service-accounts/";
    mock.fault_at(&format!("{accounts}invented@"), no());
    let proxy = Proxy::start(mock.addr()).await;
    assert_eq!(get(proxy.addr, &format!("{accounts}invented@b.c/token")).await.status, 404);
    let well = told(proxy.metrics_addr).await;
    assert_eq!((&well.json["condition"], well.code), (&Value::from("ok"), Some(0)), "{}", well.text);
    proxy.stop().await;

    // The machine has an account, since it has its e-mail.
    mock.fault_at(&format!("{accounts}default/token"), no());
    let proxy = Proxy::start(mock.addr()).await;
    assert_eq!(get(proxy.addr, &format!("{accounts}default/token")).await.status, 404);
    let told = told(proxy.metrics_addr).await;
    told.is("failing", "node_token", "there is no valid token of the node's account");
    for part in ["answered 404", "deleted or disabled", "do not restart the proxy"] {
        assert!(told.text.contains(part), "{part} is missing from\n{}", told.text);
    }
    proxy.stop().await;
}

#[tokio::test]
async fn a_proxy_that_does_not_answer_is_not_said_to_be_well() {
    let (code, text, error) = Binary::output(&["status", "--metrics-addr=127.0.0.1:9"]).await;
    assert_eq!((code, text.as_str()), (Some(2), ""));
    assert!(error.contains("cannot reach the proxy at 127.0.0.1:9 (--metrics-addr)"), "{error}");
}

/// The proxy has `/readyz`, too, which would be an all-clear about what nobody checked.
#[tokio::test]
async fn the_proxy_is_not_taken_for_the_canary() {
    let proxy = Proxy::start(upstream().await.addr()).await;
    let addr = proxy.metrics_addr.to_string();
    let (code, text, _) = Binary::output(&["check", "--last", "--metrics-addr", &addr]).await;
    assert_eq!((code, text.lines().count()), (Some(1), 1), "{text}");
    assert!(text.contains(&format!("no 'check --interval' answers at {addr}")) && text.contains("canary's"), "{text}");
    proxy.stop().await;
}
