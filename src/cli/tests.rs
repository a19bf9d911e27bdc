use std::time::Duration;

use super::*;
use crate::config;

pub(super) fn parse_line(line: &str) -> Result<Command, Stop> {
    parse(std::iter::once("gce-metadata-proxy").chain(line.split_whitespace()).map(OsString::from))
}

pub(super) fn serve(line: &str) -> Config {
    match parse_line(line) {
        Ok(Command::Serve(config)) => config,
        other => panic!("{line}: {other:?}"),
    }
}

pub(super) fn mistakes(line: &str) -> String {
    match parse_line(line) {
        Err(Stop::Usage(text)) => text,
        other => panic!("{line}: {other:?}"),
    }
}

/// Every flag of every command with its variable and default, without the commands for development.
pub(crate) fn promised_flags() -> Vec<String> {
    fn of(command: &clap::Command, path: &str, lines: &mut Vec<String>) {
        for arg in command.get_arguments() {
            let Some(flag) = arg.get_long() else { continue };
            let variable = arg.get_env().map(|name| format!(" {}", name.display())).unwrap_or_default();
            let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
            let default = if defaults.is_empty() { String::new() } else { format!(" = {}", defaults.join(",")) };
            lines.push(format!("flag {path} --{flag}{variable}{default}"));
        }
        for below in command.get_subcommands().filter(|below| !["mock", "demo"].contains(&below.get_name())) {
            of(below, &format!("{path} {}", below.get_name()), lines);
        }
    }
    let mut lines = Vec::new();
    of(&Args::command(), "gce-metadata-proxy", &mut lines);
    lines
}

#[test]
fn defaults_match_k8s_metadata_proxy() {
    let config = serve("");
    assert_eq!((config.addrs, config.metrics_addr), (config::ADDRS.to_vec(), config::METRICS_ADDR));
    assert_eq!(config.upstream.to_string(), "169.254.169.254");
    assert_eq!(config.drain_timeout, Duration::from_secs(10));
}

#[test]
fn flags_may_have_a_single_dash() {
    let config = serve("-addr=127.0.0.2:988 -metrics-addr 127.0.0.2:989");
    assert_eq!((config.addrs, config.metrics_addr), (vec![([127, 0, 0, 2], 988).into()], ([127, 0, 0, 2], 989).into()));
}

#[test]
fn addresses_are_parsed_as_in_go() {
    let config = serve("--addr :988 --addr [::1]:988,localhost:1988");
    let addrs: Vec<String> = config.addrs.iter().map(ToString::to_string).collect();
    assert_eq!(addrs, ["0.0.0.0:988", "[::1]:988", "127.0.0.1:1988"]);
}

#[test]
fn pods_and_operators_have_no_address_in_common() {
    for (pods, operators, is_common) in [
        ("127.0.0.1:1", "127.0.0.1:1", true),
        ("127.0.0.1:1", "127.0.0.1:2", false),
        ("127.0.0.1:1", "127.0.0.2:1", false),
        ("127.0.0.1:0", "127.0.0.1:0", false),
        ("0.0.0.0:0", "0.0.0.0:0", false),
        ("0.0.0.0:1", "127.0.0.1:1", true),
        ("127.0.0.1:1", ":1", true),
        ("0.0.0.0:1", "[::1]:1", false),
        ("0.0.0.0:1", "[::]:1", true),
        ("[::]:1", "127.0.0.1:1", true),
        ("[::]:1", "[::1]:1", true),
        ("[::]:1", "[::1]:2", false),
        ("[::1]:1", "127.0.0.1:1", false),
        ("[::ffff:127.0.0.1]:1", "127.0.0.1:1", true),
        ("127.0.0.1:3,127.0.0.1:1", "127.0.0.1:1", true),
    ] {
        let line = format!("--addr {pods} --metrics-addr {operators} --reuse-port");
        if is_common {
            let text = mistakes(&line);
            assert!(text.contains("are one address: pods' connections would reach"), "{line}: {text}");
            assert_eq!(text.lines().count(), 2, "{text}");
        } else {
            serve(&line);
        }
    }
    for (line, is_twice) in [
        ("--addr 127.0.0.1:1 --addr 127.0.0.1:1", true),
        ("--addr 127.0.0.1:1 --addr 127.0.0.1:1 --reuse-port", true),
        ("--addr 127.0.0.1:1,127.0.0.1:2,0.0.0.0:1", true),
        ("--addr 127.0.0.1:1 --addr 0.0.0.0:1 --reuse-port", false),
        ("--addr 127.0.0.1:1 --addr 127.0.0.2:1", false),
        ("--addr 127.0.0.1:0 --addr 127.0.0.1:0", false),
    ] {
        if is_twice {
            let text = mistakes(line);
            assert!(text.contains("--addr 127.0.0.1:1 and --addr") && text.lines().count() == 2, "{line}: {text}");
        } else {
            serve(line);
        }
    }
    // A command that serves nobody has no such mistake.
    assert!(parse_line("--addr 127.0.0.1:1 status --metrics-addr 127.0.0.1:1").is_ok());
}

#[test]
fn the_proxy_is_not_its_own_metadata_server() {
    for (own, upstream, is_itself) in [
        ("--addr 127.0.0.1:1988", "127.0.0.1:1988", true),
        ("--addr 127.0.0.1:1988", "127.0.0.1:1989", false),
        ("--addr 127.0.0.1:1988", "127.0.0.2:1988", false),
        ("--addr 127.0.0.1:1988", "LocalHost:1988", true),
        ("--addr [::1]:1988", "localhost:1988", true),
        ("--addr 127.0.0.1:1988", "0.0.0.0:1988", true),
        ("--addr 127.0.0.1:1988", "[::ffff:127.0.0.1]:1988", true),
        ("--addr 10.0.0.5:1988,10.0.0.6:1988", "10.0.0.6:1988", true),
        ("--addr 127.0.0.1:1988 --metrics-addr 127.0.0.1:80", "127.0.0.1", true),
        ("--addr 0.0.0.0:1988", "127.0.0.2:1988", true),
        ("--addr [::]:1988", "[::1]:1988", true),
        ("--addr [::]:1988", "127.0.0.1:1988", true),
        ("--addr 0.0.0.0:1988", "[::1]:1988", false),
        // The port of the metadata server, which is not this machine.
        ("--addr 0.0.0.0:80", "169.254.169.254", false),
        ("--addr 127.0.0.1:80", "metadata.google.internal", false),
    ] {
        let line = format!("{own} --upstream http://{upstream}");
        if is_itself {
            let text = mistakes(&line);
            assert!(text.contains("leads to this proxy itself") && text.contains(upstream), "{line}: {text}");
        } else {
            serve(&line);
        }
    }
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let text =
        mistakes("--addr nowhere --frobnicate=1 --upstream https://a -x --log-format xml --drain-timeout 10 extra");
    for named in [
        "--addr: \"nowhere\"",
        "--frobnicate",
        "--upstream: \"https://a\"",
        "-x",
        "--log-format: \"xml\"",
        "--drain-timeout: \"10\"",
        "extra",
    ] {
        assert!(text.contains(named), "{named} is missing from\n{text}");
    }
    assert_eq!(text.lines().count(), 8, "{text}");
}

/// As in a manifest whose variable has no value.
#[test]
fn an_empty_value_is_the_default() {
    let command = Args::command();
    let flags =
        command.get_arguments().filter_map(clap::Arg::get_long).filter(|flag| !["help", "version"].contains(flag));
    for flag in flags {
        let line = format!("--{flag}=");
        assert_eq!(super::flags(&serve(&line)), super::flags(&Config::default()), "{line}");
    }
    let identity = "--workload-identity --node-name n --workload-pool p.svc.id.goog \
                    --cluster-uri https://container.googleapis.com/v1/projects/p";
    let of_federation =
        ["prefetch", "sts-endpoint", "iam-endpoint", "attest", "host-proc", "bound-tokens", "impersonate-node"];
    for flag in of_federation {
        let line = format!("{identity} --{flag}=");
        assert_eq!(super::flags(&serve(&line)), super::flags(&serve(identity)), "{line}");
    }
    assert_eq!(serve("--addr=,127.0.0.1:1988").addrs, [([127, 0, 0, 1], 1988).into()]);
}

#[test]
fn a_missing_value_is_an_error() {
    assert!(mistakes("--addr").contains("--addr"));
    for levels in ["nonsense=nonsense=x", "verbose", "info,verbose"] {
        assert!(mistakes(&format!("--log {levels}")).contains("--log"), "{levels}");
    }
    for name in ["a:80", "*", "foo.*", "*.foo", "a..b", ".", "a/b", "[::1]"] {
        for flag in ["--allowed-host", "--metrics-allowed-host"] {
            let text = mistakes(&format!("{flag} {name}"));
            assert!(text.contains(flag) && text.contains("wildcard"), "{flag} {name}: {text}");
        }
    }
}

#[test]
fn help_and_version_are_not_errors() {
    assert!(matches!(parse_line("--help"), Err(Stop::Shown(text)) if text.contains("METADATA_PROXY_ADDR")));
    assert!(matches!(parse_line("-V"), Err(Stop::Shown(text)) if text.contains(env!("CARGO_PKG_VERSION"))));
}

/// A flag that a command does not use would be read as one that it does.
#[test]
fn commands_have_only_flags_that_they_use() {
    fn leaves(command: &clap::Command, path: &str) -> Vec<(String, Vec<String>)> {
        let name = format!("{path} {}", command.get_name());
        let flags = command.get_arguments().filter_map(clap::Arg::get_long).map(str::to_owned).collect();
        let below = command.get_subcommands().flat_map(|command| leaves(command, &name)).collect::<Vec<_>>();
        if below.is_empty() { vec![(name, flags)] } else { below }
    }
    let commands: Vec<_> = Args::command().get_subcommands().flat_map(|command| leaves(command, "")).collect();
    let with = |flag: &str| -> Vec<&str> {
        let has = commands.iter().filter(|(_, flags)| flags.iter().any(|known| known == flag));
        has.map(|(name, _)| name.trim()).collect()
    };
    assert_eq!(with("policy"), ["explain", "policy show", "policy diff"]);
    assert_eq!(with("metrics-addr"), ["explain", "redirect install", "status", "check", "identity doctor"]);
}

#[test]
fn flags_are_formatted_so_that_they_parse() {
    let command = Args::command();
    let known: Vec<String> =
        command.get_arguments().filter_map(clap::Arg::get_long).map(|flag| format!("--{flag}")).collect();
    for line in [
        "",
        "--addr 127.0.0.2:1 --metrics-addr [::1]:2 --metrics-allowed-host c --upstream http://m:3 --policy strict \
         --policy-mode audit --recursive refuse --allowed-host a,b --reuse-port --max-in-flight 4 --max-connections 5 \
         --max-hanging 0 --overload unavailable --log-format json --log debug --audit --drain-timeout 1500ms --redirect \
         --redirect-allow 443,ipv6 --redirect-drop-spoofed --redirect-max-new-connections 0",
        "--upstream none --project-id shop --numeric-project-id 12 --cluster-name one --cluster-location eu \
         --cluster-uid 5f0c --zone eu-a --instance-name node-1 --instance-id 7",
        "--workload-identity --node-name n --kubeconfig /k --host-proc /p --state-dir /s --reuse-port \
         --handover 5f0c8d2e-1b7a-4c3d-9e5f-0a1b2c3d4e5f \
         --attest kernel --passthrough kube-system/a,b/c --google-ca /c --token-audience a --prefetch all --bound-tokens \
         --sts-endpoint https://s --iam-endpoint https://i --workload-pool p.svc.id.goog \
         --cluster-uri https://container.googleapis.com/v1/projects/p",
        "--workload-identity --node-name n --impersonate-node=false --workload-identity-provider \
         //iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/c",
        "--workload-identity --node-name n --workload-identity-provider none",
    ] {
        let config = serve(line);
        let (names, values): (Vec<String>, Vec<String>) = flags(&config).into_iter().unzip();
        assert_eq!(names, known);
        let typed: Vec<String> = names.iter().zip(values).map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(format!("{:?}", serve(&typed.join(" "))), format!("{config:?}"), "{line}");
    }
}

#[test]
fn flags_have_the_values_of_the_configuration() {
    let shown = |config: &Config| -> Vec<String> {
        flags(config).iter().map(|(flag, value)| format!("{flag}={value}")).collect()
    };
    let lines =
        shown(&serve("--allowed-host a,b --addr :988,[::1]:988 --node-name n --redirect --redirect-allow 443,ipv6"));
    for line in [
        "--addr=0.0.0.0:988,[::1]:988",
        "--metrics-allowed-host=",
        "--upstream=http://169.254.169.254",
        "--recursive=",
        "--allowed-host=a,b",
        "--reuse-port=false",
        "--max-hanging=64",
        "--drain-timeout=10000ms",
        "--redirect=true",
        "--redirect-allow=443,ipv6",
        "--redirect-max-new-connections=500",
        "--workload-identity=false",
        "--node-name=",
        "--host-proc=/host/proc",
    ] {
        assert!(lines.iter().any(|shown| shown == line), "{line} is missing from {lines:#?}");
    }
    assert_eq!(shown(&serve("")), shown(&Config::default()), "the defaults are those of Config");
}

#[test]
fn the_documentation_has_every_flag_with_its_variable() {
    let page = include_str!("../../docs/configuration.md");
    for arg in Args::command().get_arguments() {
        let (Some(flag), Some(variable)) = (arg.get_long(), arg.get_env()) else { continue };
        let variable = variable.display();
        let mut rows = page.lines().filter_map(|line| line.strip_prefix(&format!("| `--{flag}")));
        let is_there = rows.any(|row| row.starts_with([' ', '`', '[']) && row.contains(&format!("| `{variable}`")));
        assert!(is_there, "a line for --{flag} ({variable}) is missing from docs/configuration.md");
    }
}

#[test]
fn a_container_that_only_logs_has_the_flags_of_the_log_behind_its_command() {
    let format = |line: &str| match parse_line(line) {
        Ok(Command::Redirect { log: (format, _), .. } | Command::Check { log: (format, _), .. }) => format,
        other => panic!("{line}: {other:?}"),
    };
    for (line, expected) in [
        ("redirect install --keep --log-format=json", Format::Json),
        ("check --interval=30s --log-format=json --log=debug", Format::Json),
        ("--log-format=json redirect install", Format::Json),
        ("redirect remove --log-format=json", Format::Json),
        ("--log-format=json check --log-format=text", Format::Text),
        ("--log-format=json redirect check", Format::Json),
        ("redirect install", Format::Text),
    ] {
        assert_eq!(format(line), expected, "{line}");
    }
    for line in ["redirect install --log-format=xml", "check --log-format=xml"] {
        let text = mistakes(line);
        assert!(text.contains("--log-format: \"xml\" is not valid") && text.lines().count() == 2, "{line}: {text}");
    }
}

#[test]
fn help_and_messages_list_the_same_enum_values() {
    let Err(Stop::Shown(help)) = parse_line("--help") else { panic!("no help") };
    for flag in ["--policy-mode", "--recursive", "--overload", "--log-format"] {
        let text = mistakes(&format!("{flag} nonsense"));
        let values = text.lines().next().and_then(|line| line.split_once("expected ")).expect("a mistake").1;
        assert!(help.contains(&format!("{flag} <{}>", values.replace(" or ", "|"))), "{flag}: {values}");
        for value in values.split(" or ") {
            assert!(parse_line(&format!("{flag} {value}")).is_ok(), "{flag} {value}");
        }
    }
}
