//! Invalid input: each mistake is reported in one line that names it, says what is wrong, and what to do.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Addresses where nothing else listens, and no metadata server runs.
const FIXED: [&str; 2] = ["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0"];

/// Invalid flags, with the line that is printed; none starts the proxy. Exit code 64.
const FLAGS: [(&str, &str); 26] = [
    ("--upstream=https://a", r#"--upstream: "https://a" is not valid; expected http://HOST or"#),
    ("--upstream=http://a/path", r#"--upstream: "http://a/path" is not valid; expected http://HOST or"#),
    ("--upstream", "a value is required for '--upstream <URL|none>'"),
    ("--max-in-flight=-5", r#"--max-in-flight: "-5" is not valid; expected a whole number from 1 to 1000000"#),
    ("--max-in-flight -5", r#"--max-in-flight: "-5" is not valid; expected a whole number from 1 to 1000000"#),
    ("--max-connections=1e3", r#"--max-connections: "1e3" is not valid; expected a whole number"#),
    ("--drain-timeout=10", r#"--drain-timeout: "10" is not valid; expected a number followed by ms, s or m"#),
    ("--log=verbose", r#"--log: "verbose" is not valid; expected error, warn, info"#),
    ("--log-format=xml", r#"--log-format: "xml" is not valid; expected text or json"#),
    ("--overload=queue", r#"--overload: "queue" is not valid; expected reset or unavailable"#),
    ("--policy-mode=off", r#"--policy-mode: "off" is not valid; expected enforce or audit"#),
    ("--recursive=yes", r#"--recursive: "yes" is not valid; expected refuse or redact"#),
    ("--reuse-port=perhaps", r#"--reuse-port: "perhaps" is not valid; expected true or false"#),
    ("--audt", "unexpected argument '--audt' found; did you mean '--audit'?"),
    ("serve", "unrecognized subcommand 'serve'"),
    ("--allowed-host=a:80", r#"--allowed-host: "a:80" is not valid; expected a host name without a port"#),
    ("--node-name=Node_1", r#"--node-name: "Node_1" is not valid; expected the name of a node"#),
    ("--passthrough=a/b", "--passthrough has no effect without --workload-identity"),
    ("--redirect-allow=443", "--redirect-allow has no effect without --redirect"),
    (
        "--redirect --redirect-allow=80",
        r#"--redirect-allow: "80" is not valid; expected ipv6 or a port number other than 80"#,
    ),
    ("--project-id=shop", "--project-id has no effect without --upstream=none"),
    (
        "--workload-identity --node-name=n",
        "--workload-identity requires --workload-pool or --workload-identity-provider",
    ),
    (
        "--workload-identity --node-name=n --workload-pool=p.svc.id.goog",
        "--workload-pool requires --cluster-uri, the URI by which Google knows the cluster",
    ),
    (
        "--workload-identity --workload-identity-provider=none",
        "--workload-identity requires --node-name (or NODE_NAME)",
    ),
    ("policy", "policy needs a command: show, diff, check or schema"),
    ("redirect install --mode=sidecar", "--proxy-uid"),
];

/// Invalid environment variables, with the same outcome.
const VARIABLES: [(&str, &str, &str); 4] = [
    (
        "METADATA_PROXY_ADDR",
        "nowhere",
        r#"--addr (from METADATA_PROXY_ADDR): "nowhere" is not valid; expected HOST:PORT"#,
    ),
    (
        "METADATA_PROXY_WORKLOAD_POOL",
        "p.svc.id.goog",
        "--workload-pool (from METADATA_PROXY_WORKLOAD_POOL) has no effect without --workload-identity",
    ),
    ("METADATA_PROXY_REDIRECT_ALLOW", "ipv6", "(from METADATA_PROXY_REDIRECT_ALLOW) has no effect without --redirect"),
    (
        "METADATA_PROXY_AUDIT",
        "yes",
        r#"--audit (from METADATA_PROXY_AUDIT): "yes" is not valid; expected true or false"#,
    ),
];

/// Invalid policy files, with the reported line and column. Exit code 1.
const POLICIES: [(&str, &str); 6] = [
    ("rules: 5", ":1:8: expected a list"),
    ("- a", ":1:1: expected `name: value`"),
    ("name: x\nname: y", ":2:1: duplicate mapping key: name not allowed here"),
    ("extends: strickt", ":1:10: unknown variant `strickt`, expected one of compat, strict, k8s-metadata-proxy"),
    ("name: [x]", ":1:7: expected a text"),
    ("rules:\n- path: /a\n  verdict: conceal", ":2:3: unknown field `path`, expected one of paths"),
];

/// The exit code, and the text on standard error. Variables of the tests themselves, such as `METADATA_PROXY_FULL_SIZE`, are none of
/// the binary's.
fn run(args: &[&str], variable: Option<(&str, &str)>) -> (Option<i32>, String) {
    let mut binary = Command::new(env!("CARGO_BIN_EXE_gce-metadata-proxy"));
    let output = binary.args(args).env_clear().envs(variable).output().expect("it runs");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn a_wrong_flag_is_one_line_that_names_it_and_says_what_to_do() {
    for (line, expected) in FLAGS {
        // It serves no metrics, and none of its flags may be without an effect.
        let fixed = if line.starts_with("redirect") { &FIXED[..1] } else { &FIXED };
        let args: Vec<&str> = fixed.iter().copied().chain(line.split(' ')).collect();
        let (code, text) = run(&args, None);
        assert_eq!((code, text.lines().count()), (Some(64), 2), "{line}: {text}");
        assert!(text.contains(expected) && text.contains("--help"), "{line}: {text}");
    }
}

#[test]
fn a_wrong_variable_is_one_line_that_names_it_and_says_what_to_do() {
    for (name, value, expected) in VARIABLES {
        let args = if name == "METADATA_PROXY_ADDR" { &FIXED[1..] } else { &FIXED };
        let (code, text) = run(args, Some((name, value)));
        assert_eq!((code, text.lines().count()), (Some(64), 2), "{name}={value}: {text}");
        assert!(text.contains(expected), "{name}={value}: {text}");
    }
}

#[test]
fn a_flag_before_a_subcommand_counts_more_than_the_variable() {
    let (_, text) =
        run(&["--metrics-addr=127.0.0.1:1", "status"], Some(("METADATA_PROXY_METRICS_ADDR", "127.0.0.1:2")));
    assert!(text.contains("127.0.0.1:1"), "{text}");
}

#[test]
fn a_misspelt_variable_is_named_by_each_command_with_a_log() {
    for line in ["redirect check", "check --last --metrics-addr=127.0.0.1:1", "--upstream=none --policy=strickt"] {
        let args: Vec<&str> = line.split(' ').collect();
        let (_, text) = run(&args, Some(("METADATA_PROXY_REDIRECT_ALOW", "443")));
        let expected = "METADATA_PROXY_REDIRECT_ALOW is not a variable of this version and has no effect; did you mean \
                        METADATA_PROXY_REDIRECT_ALLOW?";
        assert!(text.contains(expected), "{line}: {text}");
    }
}

#[test]
fn why_it_ends_is_json_where_the_log_is() {
    let policy = "--policy=strickt";
    for levels in ["--log=info", "--log=off"] {
        let (code, text) = run(&[FIXED[0], FIXED[1], "--upstream=none", policy, levels, "--log-format=json"], None);
        let lines: Result<Vec<serde_json::Value>, _> = text.lines().map(serde_json::from_str).collect();
        let lines = lines.unwrap_or_else(|error| panic!("{error}: {text}"));
        let message = lines.last().and_then(|line| line["message"].as_str());
        assert!(code == Some(1) && message.is_some_and(|message| message.contains("strickt")), "{text}");
    }
}

#[test]
fn a_wrong_policy_is_one_line_that_names_the_place() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wrong-policy.yaml");
    let path = file.to_str().expect("text");
    for (policy, expected) in POLICIES {
        fs::write(&file, policy).expect("it can be written");
        for args in [&["policy", "check", path] as &[&str], &[FIXED[0], FIXED[1], "--upstream=none", "--policy", path]]
        {
            let (code, text) = run(args, None);
            assert_eq!((code, text.lines().count()), (Some(1), 1), "{policy}: {text}");
            assert!(text.contains(&format!("{path}{expected}")), "{policy}: {text}");
        }
    }
    let (code, text) = run(&[FIXED[0], FIXED[1], "--upstream=none", "--policy=strickt"], None);
    assert_eq!((code, text.lines().count()), (Some(1), 1), "{text}");
    assert!(text.contains("strickt") && text.contains("the built-in policies are compat, strict"), "{text}");
}
