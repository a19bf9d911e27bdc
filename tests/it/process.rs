//! The binary as a process: start, shutdown and messages.

use std::process::Stdio;
use std::time::Duration;

use mock::Fault;
use operator::pages::MAX_ADMIN_CONNECTIONS;
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::{Instant, timeout};

use crate::statusz::put;
use crate::support::{Answer, Binary, Connection, Outcome, eventually, get, raw, request, upstream};

#[tokio::test]
async fn bad_usage_names_every_mistake_and_exits_with_64() {
    let (code, text) = Binary::run(&["--addr=x", "--upstream=https://169.254.169.254", "--no-such-flag"]).await;
    assert_eq!(code, Some(64), "{text}");
    for named in ["--addr", "--upstream", "--no-such-flag", "--help"] {
        assert!(text.contains(named), "{named} is missing from {text}");
    }
}

/// Runs it until it exits, with this standard output. Returns the exit code and standard error.
async fn run_into(stdout: Stdio, args: &[&str]) -> (Option<i32>, String) {
    let mut binary = Command::new(env!("CARGO_BIN_EXE_gce-metadata-proxy"));
    let ended = binary.args(args).stdout(stdout).stderr(Stdio::piped()).kill_on_drop(true).spawn().expect("built");
    let output = ended.wait_with_output().await.expect("it can be waited for");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

/// Commands that print, with their exit codes.
const PRINTING: [(&[&str], i32); 3] = [
    (&["policy", "show"], 0),
    (&["explain", "--expect=conceal", "/computeMetadata/v1/instance/id"], 1),
    (&["--help"], 0),
];

/// The first half of a policy is a valid policy that conceals less.
#[tokio::test]
async fn output_that_a_full_disk_cuts_short_is_an_error_of_its_own() {
    for (args, _) in PRINTING {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
        let (code, text) = run_into(full.into(), args).await;
        assert_eq!((code, text.lines().count()), (Some(74), 1), "{args:?}: {text}");
        assert!(text.contains("No space left on device") && text.contains("is incomplete"), "{args:?}: {text}");
    }
}

#[tokio::test]
async fn a_reader_that_leaves_early_is_no_error() {
    for (args, expected) in PRINTING {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        assert_eq!(run_into(writer.into(), args).await, (Some(expected), String::new()), "{args:?}");
    }
}

#[tokio::test]
async fn a_taken_port_is_one_line_with_the_address_and_a_remedy_and_exits_with_1() {
    let taken = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = taken.local_addr().expect("bound").to_string();
    for args in [["--addr", &addr, "--metrics-addr", "127.0.0.1:0"], ["--metrics-addr", &addr, "--addr", "127.0.0.1:0"]]
    {
        let (code, text) = Binary::run(&[&args as &[&str], &["--upstream=none"]].concat()).await;
        assert_eq!((code, text.lines().count()), (Some(1), 1), "{text}");
        assert!(text.contains(&addr) && text.contains(args[0]) && text.contains("choose another address"), "{text}");
    }
}

/// Logging must not affect behaviour.
#[tokio::test]
async fn it_serves_until_it_is_told_to_stop_also_when_it_says_nothing() {
    let mock = upstream().await;
    let upstream = format!("http://{}", mock.addr());
    let args = ["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0", "--upstream", &upstream, "--log=off"];
    let mut binary = Binary::start(&args);
    eventually("it asks for the token that it warms itself with", || mock.requests() > 0).await;
    assert!(timeout(Duration::from_millis(300), binary.ended()).await.is_err(), "it ended by itself");
    binary.terminate();
    assert_eq!(binary.ended().await.code(), Some(0));
    assert_eq!(binary.stderr_to_end().await, "");
}

#[tokio::test]
async fn no_level_mutes_a_misspelt_module_or_secrets_that_are_served() {
    let own = ["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0", "--upstream=none", "--policy-mode=audit"];
    let mut binary = Binary::start(&[&own[..], &["--log=gce_metadata_proxi=debug"]].concat());
    let doubt = binary.stderr_line(" WARN ").await;
    assert!(doubt.contains("--log gce_metadata_proxi=debug: This program has no crate gce_metadata_proxi"), "{doubt}");
    let warning = binary.stderr_line(" WARN ").await;
    assert!(warning.contains("secrets are served to pods"), "{warning}");
    binary.terminate();
}

#[tokio::test]
async fn a_log_that_nobody_reads_stops_nothing() {
    let mock = upstream().await;
    let (mut binary, addr, metrics_addr) = Binary::ready(None, mock.addr(), &[]).await;
    assert_eq!(put(metrics_addr, "/loglevel?levels=trace").await.status, 200);
    // Several times what a pipe has room for.
    for _ in 0..1000 {
        assert_eq!(get(addr, "/computeMetadata/v1/instance/zone").await.status, 200);
    }
    assert!(binary.stderr_line("log lines were dropped here").await.starts_with(" WARN "));
    binary.terminate();
    assert_eq!(binary.ended().await.code(), Some(0));
}

/// Other daemons read their configuration again.
#[tokio::test]
async fn sighup_ends_nothing() {
    let mock = upstream().await;
    let (mut binary, addr) = Binary::proxy(mock.addr()).await;
    binary.signal(Signal::HUP);
    binary.stderr_line("received SIGHUP; ignored").await;
    assert_eq!(get(addr, "/computeMetadata/v1/instance/cpu-platform").await.status, 200);
    binary.terminate();
    assert_eq!(binary.ended().await.code(), Some(0));
}

/// An address needs up to 256 sockets.
#[tokio::test]
async fn too_few_files_are_named_and_a_soft_limit_is_raised_first() {
    let run = |limit: &str| {
        let start = format!("ulimit {limit} 100; exec {} \"$@\"", env!("CARGO_BIN_EXE_gce-metadata-proxy"));
        let mut shell = Command::new("sh");
        let args = ["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0", "--upstream=none"];
        Binary::spawn(shell.args(["-c", &start, "sh"]).args(args))
    };
    let mut binary = run("-n");
    assert_eq!(binary.ended().await.code(), Some(1));
    let text = binary.stderr_to_end().await;
    let wanted =
        "(--addr): Too many open files (os error 24); this process may open no more files: raise its hard limit";
    assert!(text.contains(wanted), "{text}");
    run("-Sn").stderr_line("serving pods").await;
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let mock = upstream().await;
    let (mut binary, addr, _) = Binary::ready(None, mock.addr(), &[]).await;
    mock.fault(Fault::Hang);
    let mut client = Connection::open(addr).await;
    client.send(request("/computeMetadata/v1/instance/cpu-platform")).await;
    eventually("the request is upstream", || mock.in_flight() == 1).await;
    binary.terminate();
    binary.stderr_line("SIGTERM: draining").await;
    binary.signal(Signal::INT);
    assert_eq!(binary.ended().await.code(), Some(1), "the drain would go on");
    let last = binary.stderr_to_end().await;
    assert!(last.contains("received SIGINT while draining: exited immediately"), "{last}");
}

#[tokio::test]
async fn sigterm_finishes_what_is_in_flight_and_exits_with_0() {
    let mock = upstream().await;
    let (mut binary, addr, _) = Binary::ready(None, mock.addr(), &[]).await;
    mock.reset_counters();
    mock.fault(Fault::Delay(Duration::from_millis(700)));
    let in_flight = tokio::spawn(async move { get(addr, "/computeMetadata/v1/instance/cpu-platform").await });
    while mock.requests() == 0 {
        tokio::task::yield_now().await;
    }
    binary.terminate();
    assert_eq!(in_flight.await.expect("no panic").body, "Intel Broadwell");
    assert_eq!(binary.ended().await.code(), Some(0));
    assert!(tokio::net::TcpStream::connect(addr).await.is_err(), "nothing listens any more");
}

#[tokio::test]
async fn the_drain_timeout_cuts_what_takes_too_long_and_says_so() {
    let mock = upstream().await;
    let (mut binary, addr, _) = Binary::ready(None, mock.addr(), &["--drain-timeout=200ms"]).await;
    mock.fault(Fault::Hang);
    let mut client = Connection::open(addr).await;
    client.send(request("/computeMetadata/v1/instance/cpu-platform")).await;
    eventually("the request is upstream", || mock.in_flight() == 1).await;
    binary.terminate();
    binary.stderr_line("requests in flight").await;
    assert_eq!(binary.ended().await.code(), Some(0));
    let outcome = client.outcome().await;
    assert!(matches!(outcome, Outcome::Reset), "clients repeat a request that is reset: {outcome:?}");
}

#[tokio::test]
async fn sigterm_answers_those_who_wait_for_a_change_and_does_not_wait_for_it() {
    let mock = upstream().await;
    let (mut binary, addr, _) = Binary::ready(None, mock.addr(), &[]).await;
    let mut watcher = Connection::open(addr).await;
    watcher.send(request("/computeMetadata/v1/instance/cpu-platform?wait_for_change=true")).await;
    eventually("the watch is upstream", || mock.in_flight() == 1).await;
    binary.terminate();
    let told = Instant::now();
    let answer = watcher.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{}", answer.body);
    assert!(answer.body.contains("stopped or replaced"), "{}", answer.body);
    assert_eq!(binary.ended().await.code(), Some(0));
    assert!(told.elapsed() < Duration::from_secs(8), "the drain may take 10 s");
}

#[tokio::test]
async fn the_demo_prints_lines_that_work() {
    let mut demo = Binary::start(&["demo"]);
    for (wanted, found) in [
        ("/token", "\"access_token\":\"ya29."),
        ("/kube-env", "concealed"),
        ("/metrics", "metadata_proxy_requests_total"),
    ] {
        let line = demo.stdout_line(wanted).await;
        let output = Command::new("sh").args(["-c", line.trim()]).output().await.expect("a shell");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains(found), "{line}: {text} {output:?}");
    }
    demo.terminate();
    assert_eq!(demo.ended().await.code(), Some(0));
}

#[tokio::test]
async fn the_mock_runs_alone() {
    let mut mock = Binary::start(&["mock", "--addr", "127.0.0.1:0"]);
    let line = mock.stdout_line("http://").await;
    let addr = line.rsplit_once("http://").expect("an address").1.trim().parse().expect("an address");
    assert_eq!(get(addr, "/computeMetadata/v1/project/project-id").await.body, "mock-project");
    mock.terminate();
    assert_eq!(mock.ended().await.code(), Some(0));
}

#[tokio::test]
async fn operators_find_their_pages() {
    let mock = upstream().await;
    let proxy = crate::support::Proxy::start(mock.addr()).await;
    let index = get(proxy.metrics_addr, "/").await.body;
    for page in ["/metrics", "/healthz", "/readyz", "/readyz?verbose"] {
        assert!(index.contains(page));
        assert_eq!(get(proxy.metrics_addr, page).await.status, 200, "{page}");
    }
    assert_eq!(get(proxy.metrics_addr, "/nothing").await.status, 404);
    let post = "POST /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let refused = Answer::parse(&raw(proxy.metrics_addr, post).await, false).expect("an answer").0;
    assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, HEAD")));
    let metrics = get(proxy.metrics_addr, "/metrics").await;
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(metrics.body.contains("metadata_proxy_build_info{version="));
    proxy.stop().await;
}

#[tokio::test]
async fn the_log_says_that_it_was_operators_whose_connections_were_shed() {
    let mock = upstream().await;
    let upstream = format!("http://{}", mock.addr());
    let args = ["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0", "--upstream", &upstream];
    let mut binary = Binary::start(&args);
    let addr = Binary::addr_in(&binary.stderr_line("serving operators").await);
    let mut idle = Vec::new();
    for _ in 0..=MAX_ADMIN_CONNECTIONS {
        idle.push(Connection::open(addr).await);
    }
    let line = binary.stderr_line("overloaded").await;
    assert!(line.contains("listener=\"operators\" reason=\"idle_connection\""), "{line}");
}

#[tokio::test]
async fn the_demo_shows_what_pods_get() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_gce-metadata-proxy"));
    demo.args(["demo", "--traffic"]).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut demo = demo.spawn().expect("it was built for this test");
    let mut lines = BufReader::new(demo.stdout.take().expect("piped")).lines();
    let mut shown = String::new();
    while !shown.ends_with("\nCtrl-C ends both.\n") {
        let line = timeout(Duration::from_secs(60), lines.next_line()).await.expect("in time").expect("text");
        shown += &(line.expect("it goes on until it is stopped") + "\n");
    }
    for part in [
        "/statusz\n",
        "110 pods request the same new token at once: 110 get it. Requests to the server: 1.\n",
        "A pod requests kube-env: 403: Refused: ",
        " of 100 requests answered, the slowest in ",
        "says in a pod, without its checks of the redirect:\n\nok      GET http://127.0.0.1/: ",
        "ok      GET http://127.0.0.1/computeMetadata/v1/instance/attributes/kube-env: 403: the proxy conceals it",
        "\n\nCtrl-C ends both.\n",
    ] {
        assert!(shown.contains(part), "{part} is missing from {shown}");
    }
    // Without a redirect, pods are not protected.
    assert!(!shown.contains("Protected"), "{shown}");
}
