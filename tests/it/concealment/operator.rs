//! An operator's work with policies, tested with the binary: trying a policy, changing it, making a mistake, asking
//! about it.

use std::fs;
use std::os::unix::fs::symlink;

use mock::SECRET_MARKER;
use proxy::layers::conceal::Mode;
use proxy::policy::{Choice, Recursive, Source};
use rustix::fs::{self as node, CWD, FileType, mknodat};

use crate::statusz::put;
use crate::support::{
    Binary, Connection, Proxy, Scratch, config, eventually, get, metric, metric_becomes, request, upstream,
};

const KUBE_ENV: &str = "/computeMetadata/v1/instance/attributes/kube-env";
const SSH_KEYS: &str = "/computeMetadata/v1/instance/attributes/ssh-keys";
const TREE: &str = "/computeMetadata/v1/instance/?recursive=true";
const HEAD: &str = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\n";

/// As the kubelet does it: the file is a link into a directory that is itself a link, and that link is swapped.
fn publish(scratch: &Scratch, generation: &str, text: &str) {
    let data = scratch.dir().join(generation);
    fs::create_dir_all(&data).expect("a directory");
    fs::write(data.join("policy.yaml"), text).expect("written");
    symlink(generation, scratch.dir().join("..data_tmp")).expect("a link");
    fs::rename(scratch.dir().join("..data_tmp"), scratch.dir().join("..data")).expect("swapped");
}

#[tokio::test]
async fn audit_refuses_nothing_tells_once_a_rule_and_counts_all() {
    let mock = upstream().await;
    let (mut binary, addr, metrics_addr) =
        Binary::ready(None, mock.addr(), &["--policy-mode=audit", "--recursive=refuse"]).await;
    // Whatever the levels.
    assert_eq!(put(metrics_addr, "/loglevel?levels=off").await.status, 200);
    for target in [KUBE_ENV, KUBE_ENV, KUBE_ENV, SSH_KEYS, TREE, "/computeMetadata/v1/instance/id?unknown"] {
        assert_eq!(get(addr, target).await.status, 200, "{target}");
    }
    assert!(get(addr, KUBE_ENV).await.body.contains(SECRET_MARKER), "nothing is refused");
    assert!(get(addr, TREE).await.body.contains(SECRET_MARKER), "nothing is cut");
    let counted =
        |verdict: &str| format!("metadata_proxy_policy_verdicts_total{{mode=\"audit\",verdict=\"{verdict}\"}}");
    assert_eq!(metric(metrics_addr, &counted("concealed")).await, Some(8.0));
    assert_eq!(mock.log().iter().filter(|seen| seen.target.contains("unknown")).count(), 0, "even here");
    binary.terminate();
    let text = binary.stderr_to_end().await;
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("audit: this request would be refused")).collect();
    for (rule, count) in [("rule=1", 1), ("rule=4", 1), ("cause=\"recursive\"", 1), ("cause=\"query_key\"", 1)] {
        let told = lines.iter().filter(|line| line.contains(&format!("{rule} "))).count();
        assert_eq!(told, count, "{rule}: {text}");
    }
    assert_eq!(lines.len(), 4, "{text}");
    let first = lines[0];
    for named in ["client=127.0.0.1", KUBE_ENV, "policy=\"compat\"", "credentials with which a node joins"] {
        assert!(first.contains(named), "{named} is missing from {first}");
    }
    assert!(!text.contains(SECRET_MARKER));
}

#[tokio::test]
async fn a_changed_file_is_in_force_and_a_broken_one_is_not() {
    let scratch = Scratch::new("reload");
    let opens = |version: &str, name: &str| {
        format!(
            "{HEAD}version: '{version}'\nextends: strict\nrules:\n  - paths: [instance/attributes/{name}]\n    verdict: allow\n"
        )
    };
    publish(&scratch, "1", &opens("1", "enable-oslogin"));
    symlink("..data/policy.yaml", scratch.dir().join("policy.yaml")).expect("a link");

    let mock = upstream().await;
    let file = scratch.path("policy.yaml");
    let (mut binary, addr, metrics_addr) = Binary::ready(None, mock.addr(), &["--policy", &file]).await;
    let opened = async |name: &str| get(addr, &format!("/computeMetadata/v1/instance/attributes/{name}")).await.status;
    assert_eq!((opened("enable-oslogin").await, opened("enable-guest-attributes").await), (200, 404));

    let mut watcher = Connection::open(addr).await;
    watcher.send(request("/computeMetadata/v1/instance/attributes/enable-oslogin?wait_for_change=true")).await;
    eventually("the watch is upstream", || mock.in_flight() == 1).await;

    publish(&scratch, "2", &opens("2", "enable-guest-attributes"));
    binary.stderr_line("policy reloaded").await;
    let ended = watcher.answer().await.expect("an answer");
    assert_eq!(ended.status, 503, "the new policy conceals what it waits for: {}", ended.body);
    assert_eq!((opened("enable-oslogin").await, opened("enable-guest-attributes").await), (404, 200));
    let page = get(metrics_addr, "/metrics").await.body;
    let info: Vec<&str> = page.lines().filter(|line| line.starts_with("metadata_proxy_policy_info{")).collect();
    assert!(info.len() == 1 && info[0].contains("name=\"mine\"") && info[0].contains("version=\"2\""), "{info:?}");

    publish(&scratch, "3", &format!("{}surprise: true\n", opens("3", "kube-env")));
    let line = binary.stderr_line("keeping the previous policy").await;
    assert!(line.contains("unknown field `surprise`") && line.contains(&format!("{file}:9:1: ")), "{line}");
    assert_eq!((opened("kube-env").await, opened("enable-guest-attributes").await), (404, 200));
    assert_eq!(metric(metrics_addr, "metadata_proxy_policy_rejected").await, Some(1.0));

    publish(&scratch, "4", &opens("4", "enable-oslogin"));
    binary.stderr_line("policy reloaded").await;
    assert_eq!((opened("enable-oslogin").await, opened("enable-guest-attributes").await), (200, 404));
    metric_becomes(metrics_addr, "metadata_proxy_policy_rejected", 0).await;
    assert_eq!(metric(metrics_addr, "metadata_proxy_policy_reloads_total{outcome=\"applied\"}").await, Some(2.0));
    assert_eq!(metric(metrics_addr, "metadata_proxy_policy_reloads_total{outcome=\"rejected\"}").await, Some(1.0));
}

#[tokio::test]
async fn what_waits_for_a_change_goes_on_when_the_policy_changes_in_audit_mode() {
    let scratch = Scratch::new("audited");
    let policy = |version: u8| format!("{HEAD}version: '{version}'\nextends: strict\n");
    let file = scratch.file("policy.yaml", &policy(1));
    let mock = upstream().await;
    let (mut binary, addr, _) = Binary::ready(None, mock.addr(), &["--policy-mode=audit", "--policy", &file]).await;
    mock.set("instance/attributes/watched", "old");
    let mut watcher = Connection::open(addr).await;
    watcher.send(request("/computeMetadata/v1/instance/attributes/watched?wait_for_change=true")).await;
    eventually("the watch is upstream", || mock.in_flight() == 1).await;

    scratch.file("policy.yaml", &policy(2));
    binary.stderr_line("policy reloaded").await;
    // A request after the reload: what it ends has ended by then.
    assert_eq!(get(addr, KUBE_ENV).await.status, 200);
    mock.set("instance/attributes/watched", "new");
    let answer = watcher.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.body.as_str()), (200, "new"));
}

#[tokio::test]
async fn a_mistake_ends_the_start_with_its_place() {
    let scratch = Scratch::new("mistake");
    let file = scratch.file("policy.yaml", &format!("{HEAD}version: '1'\nextends: lax\n"));
    let ports = ["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0", "--upstream=http://127.0.0.1:9"];
    for (policy, told) in [
        (
            file.as_str(),
            format!(
                "gce-metadata-proxy: {file}:5:10: unknown variant `lax`, expected one of compat, strict, k8s-metadata-proxy"
            ),
        ),
        ("/nowhere/policy.yaml", "gce-metadata-proxy: cannot read policy file /nowhere/policy.yaml: ".to_owned()),
    ] {
        let (code, text) = Binary::run(&[&ports[..], &["--policy", policy]].concat()).await;
        assert_eq!((code, text.lines().count()), (Some(1), 1), "{text}");
        assert!(text.starts_with(&told), "{text}");
    }
    let (code, _, text) = Binary::output(&["policy", "check", &file]).await;
    assert!(code == Some(1) && text.contains(":5:10: unknown variant `lax`"), "{text}");
}

#[tokio::test]
async fn a_policy_that_is_no_file_is_refused_at_once() {
    let scratch = Scratch::new("fifo");
    let fifo = scratch.path("policy.yaml");
    mknodat(CWD, &fifo, FileType::Fifo, node::Mode::RUSR | node::Mode::WUSR, 0).expect("a FIFO");
    let expected = format!(
        "gce-metadata-proxy: cannot read policy file {fifo}: it is a FIFO, not a regular file; give the path of a regular \
         file, or of a symbolic link to one\n"
    );
    let serve =
        ["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0", "--upstream=http://127.0.0.1:9", "--policy", &fifo];
    let (code, text) = Binary::run(&serve).await;
    assert_eq!((code, text), (Some(1), expected.clone()));
    for args in [
        &["explain", "--policy", &fifo, "/"][..],
        &["policy", "check", &fifo],
        &["policy", "show", "--policy", &fifo],
        &["policy", "diff", &fifo],
    ] {
        let (code, _, text) = Binary::output(args).await;
        assert_eq!((code, text), (Some(1), expected.clone()), "{args:?}");
    }
}

#[tokio::test]
async fn policies_can_be_looked_at() {
    let scratch = Scratch::new("looked-at");
    let file = scratch.file("policy.yaml", &format!("{HEAD}version: '7'\nextends: strict\n"));
    let (code, text, _) = Binary::output(&["policy", "check", &file]).await;
    assert!(
        code == Some(0) && text.starts_with("The policy mine, version 7 (") && text.ends_with("is valid: 2 rules.\n"),
        "{text}"
    );
    let (code, text, _) = Binary::output(&["policy", "show", "--policy", &file]).await;
    assert_eq!(code, Some(0));
    assert!(text.starts_with(HEAD) && text.ends_with(include_str!("../../../policies/strict.yaml")), "{text}");
    let (code, text, _) = Binary::output(&["policy", "show"]).await;
    assert_eq!((code, text.as_str()), (Some(0), include_str!("../../../policies/compat.yaml")));
    let (code, text, _) = Binary::output(&["policy", "schema"]).await;
    let schema: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((code, &schema["title"]), (Some(0), &"ConcealmentPolicy".into()));
}

#[tokio::test]
async fn a_policy_can_be_tested_by_the_exit_code() {
    let url = |path: &str| format!("/computeMetadata/v1/{path}");
    for (expected, path, code) in [
        ("allow", url("instance/id"), 0),
        ("allow", url("instance/?recursive=true"), 0),
        ("allow", url("instance/attributes/kube-env"), 1),
        ("conceal", url("instance/attributes/kube-env"), 0),
        ("conceal", url("instance/id"), 1),
        ("conceal", url("instance%2Fid"), 1),
    ] {
        let (found, text, _) = Binary::output(&["explain", "--expect", expected, &path]).await;
        assert_eq!(found, Some(code), "{expected} {path}: {text}");
    }
}

#[tokio::test]
async fn a_refused_request_is_explained() {
    let (code, text, _) = Binary::output(&["explain", &format!("http://metadata{KUBE_ENV}/?alt=json")]).await;
    assert_eq!(code, Some(0));
    for line in ["verdict    conceal", "upstream   nothing is sent", "source     k8s-metadata-proxy"] {
        assert!(text.contains(line), "{line} is missing from\n{text}");
    }
    let (_, text, _) = Binary::output(&["explain", "--policy", "strict", TREE]).await;
    assert!(text.contains("upstream   GET /computeMetadata/v1/instance/?recursive=true\n"), "{text}");
    let (_, text, _) = Binary::output(&["explain", "--recursive", "redact", TREE]).await;
    assert!(text.contains("verdict    allow, with concealed values removed from the response\n"), "{text}");
}

#[tokio::test]
async fn explain_says_if_the_running_proxy_has_another_policy() {
    let mut settings = config(upstream().await.addr());
    settings.policy = Choice { source: Source::parse("strict"), recursive: Some(Recursive::Refuse) };
    settings.policy_mode = Mode::Audit;
    let proxy = Proxy::with(settings).await;
    let admin = proxy.metrics_addr.to_string();
    let ask = async |flags: &[&str]| {
        let (code, text, _) = Binary::output(&[&["explain", KUBE_ENV, "--metrics-addr", &admin], flags].concat()).await;
        assert_eq!(code, Some(0), "{text}");
        let running = text.lines().find_map(|line| line.strip_prefix("running    ")).map(str::to_owned);
        assert_eq!(text.matches("\nverdict    ").count(), 1, "{text}");
        running
    };
    let other = ask(&[]).await.expect("a proxy runs");
    for part in [
        &*format!("the proxy at {admin} judges by ANOTHER POLICY: strict, version "),
        "recursive refuse; for its verdict, add --policy strict --recursive refuse; ",
        "it is in audit mode, so pods get what the policy conceals",
    ] {
        assert!(other.contains(part), "{part} is missing from {other}");
    }
    let its_own = ["--policy", "strict", "--recursive", "refuse"];
    let same = ask(&its_own).await.expect("a proxy runs");
    assert!(same.contains(" judges by this policy; it is in audit mode"), "{same}");
    assert!(ask(&["--policy", "strict"]).await.is_some_and(|line| line.contains("ANOTHER POLICY")), "of trees");
    assert_eq!(ask(&["--expect", "conceal"]).await, None, "a test of a policy");
    proxy.stop().await;
    assert_eq!(ask(&its_own).await, None, "nothing runs");
}
