//! Broken set-ups, one after the other: each must get the sentence and the command that mend it.

mod api;
mod cases;
mod google;
mod proxy;
mod ward;

use super::judge::google::{Seen, reached};
use super::judge::token::{Clocks, clock};
use super::*;
use crate::finding;
use api::Ask;
use cases::{Case, of_kubernetes, refuse};
use google::{of_the_exchange, of_the_link};
use http_client::reach::Unreachable;
use mock::google::{Endpoint as Method, Fault};
use telemetry::logging::Format;
use ward::{GOOGLE_ACCOUNT, ISSUER, Kind, NOBODY, Ward, endpoint};

const PROVIDER_FLAGS: &str = "cluster-1 --workload-identity-pool=my-pool --location=global --project=123";

#[tokio::test]
async fn broken_set_ups_get_the_sentence_and_the_command() {
    let cases = of_kubernetes().into_iter().chain(of_the_exchange()).chain(of_the_link());
    let mut wrong = Vec::new();
    for (number, case) in cases.enumerate() {
        let mut ward = Ward::healthy(case.kind, &number.to_string()).await;
        (case.breaks)(&mut ward);
        let report = ward.examine().await;
        println!("{}: {}", case.name, report.conclusion());
        if let Err(what) = judge(&case, &report) {
            wrong.push(format!("{}: {what} in\n{report}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Whether the first trouble has the sentence and the command.
fn judge(case: &Case, report: &Report) -> Result<(), String> {
    let is = |is_so: bool, what: String| if is_so { Ok(()) } else { Err(what) };
    let found = report.findings().iter().find(|finding| finding.verdict == Verdict::Trouble);
    let found = found.ok_or("there is no trouble")?;
    is(found.topic == case.step, format!("{:?} comes first", found.topic))?;
    is(found.seen.contains(case.seen), format!("{:?} is missing", case.seen))?;
    let todos = found.commands.iter().chain(&found.looks).chain(&found.advice).cloned().collect::<Vec<_>>().join("\n");
    is(todos.contains(case.todo), format!("{:?} is missing", case.todo))?;
    let mends = found.commands.iter().find(|command| only_looks(command));
    is(mends.is_none(), format!("{mends:?} mends nothing"))?;
    let looks = found.looks.iter().find(|command| !only_looks(command));
    is(looks.is_none(), format!("{looks:?} does more than look"))?;
    is(report.conclusion().contains(case.seen), "the conclusion has another cause".to_owned())?;
    is(report.exit_code() == 2, format!("the exit code is {}", report.exit_code()))?;
    [Format::Text, Format::Json].into_iter().try_for_each(|format| {
        let shown = finding::render(&report, format);
        is(!["eyJ", "ya29"].iter().any(|token| shown.contains(token)), "a token is shown".to_owned())
    })
}

/// Whether a command changes nothing. A file that it writes is for the next command.
fn only_looks(command: &str) -> bool {
    let looks = ["kubectl get ", " describe ", " list ", " list-", "nslookup"];
    looks.iter().any(|look| command.contains(look)) && !command.contains(" > ")
}

#[tokio::test]
async fn a_healthy_set_up_is_said_to_be_one() {
    for kind in [Kind::Provider, Kind::Gke] {
        let ward = Ward::healthy(kind, &format!("{kind:?}")).await;
        let report = ward.examine().await;
        println!("{report}");
        assert_eq!(report.conclusion(), format!("Pods of shop/checkout get tokens of {GOOGLE_ACCOUNT}."), "{report}");
        assert_eq!(report.exit_code(), 0);
        assert!(report.findings().iter().all(|finding| finding.verdict == Verdict::Ok), "{report}");
        ward.api.change(|state| state.annotation = "");
        let member = match kind {
            Kind::Gke => "serviceAccount:shop.svc.id.goog[shop/checkout]",
            Kind::Provider => {
                "principal://iam.googleapis.com/projects/123/locations/global/workloadIdentityPools/my-pool/subject/\
                 system:serviceaccount:shop:checkout"
            }
        };
        assert_eq!(ward.examine().await.conclusion(), format!("Pods of shop/checkout get tokens of {member}."));
    }
}

#[tokio::test]
async fn rights_that_are_too_wide_are_said() {
    let ward = Ward::healthy(Kind::Provider, "rights").await;
    ward.api.change(|state| state.right = "arbitrary-node");
    let report = ward.examine().await;
    let wide = report.findings().iter().find(|finding| finding.topic == Step::Rights).expect("it was asked");
    assert_eq!((wide.verdict, report.exit_code()), (Verdict::Exposed, 1), "{report}");
    assert!(wide.seen.starts_with("whoever takes over this node can act as any node of the cluster"), "{report}");
    assert_eq!(
        report.conclusion(),
        format!("Pods of shop/checkout get tokens of {GOOGLE_ACCOUNT}."),
        "and yet it works"
    );
}

#[test]
fn the_exit_code_says_first_whether_pods_get_tokens() {
    let code = |verdict, identity| {
        Report::new(vec![Finding::new(Step::Rights, verdict, "a", "b")], "x/y", identity).exit_code()
    };
    for (verdict, with_tokens) in
        [(Verdict::Ok, 0), (Verdict::NotTried, 0), (Verdict::Warning, 0), (Verdict::Exposed, 1), (Verdict::Trouble, 2)]
    {
        assert_eq!((code(verdict, Some("z")), code(verdict, None)), (with_tokens, 2), "{verdict:?}");
    }
}

#[tokio::test]
async fn steps_without_what_they_need_are_not_tried() {
    let ward = Ward::healthy(Kind::Provider, "skipped").await;
    refuse(&ward, Ask::Pods, 403, "no");
    let report = ward.examine().await;
    let verdicts: Vec<_> = report.findings().iter().map(|finding| (finding.topic, finding.verdict)).collect();
    let expected = [
        (Step::ApiServer, Verdict::Ok),
        (Step::Rights, Verdict::Ok),
        (Step::Pods, Verdict::Trouble),
        (Step::Account, Verdict::NotTried),
        (Step::Proc, Verdict::Ok),
        (Step::Token, Verdict::NotTried),
        (Step::Claims, Verdict::NotTried),
        (Step::Clock, Verdict::Ok),
        (Step::Keys, Verdict::Ok),
        (Step::Issuer, Verdict::NotTried),
        (Step::Settings, Verdict::Ok),
        (Step::Sts, Verdict::Ok),
        (Step::Iam, Verdict::Ok),
        (Step::Exchange, Verdict::NotTried),
        (Step::Link, Verdict::NotTried),
        (Step::Proxy, Verdict::NotTried),
    ];
    assert_eq!(verdicts, expected, "{report}");
    assert_eq!([Method::Sts, Method::AccessToken].map(|method| ward.google.count(method)), [0, 0]);
}

#[tokio::test]
async fn silent_servers_do_not_hold_it_up() {
    let ward = Ward::healthy(Kind::Provider, "silent").await;
    ward.google.fault(Method::Sts, Fault::Hang);
    let report = ward.examine_what_hangs().await.expect("it ends");
    assert!(
        report
            .conclusion()
            .contains("the Security Token Service gave no answer that makes sense: it did not answer within 4 s"),
        "{report}"
    );
}

/// The review of the rights takes all the time that there is.
#[tokio::test]
async fn a_slow_review_of_rights_takes_no_time_from_the_other_steps() {
    let ward = Ward::healthy(Kind::Provider, "review").await;
    ward.api.change(|state| {
        state.delays.insert(Ask::Right, Duration::from_secs(600));
    });
    let report = ward.examine_within(Duration::from_secs(10), Duration::from_secs(8)).await;
    let rights = report.findings().iter().find(|finding| finding.topic == Step::Rights).expect("it was asked");
    assert!(rights.seen.contains("it is not known whether they are too wide"), "{report}");
    assert_eq!(report.conclusion(), format!("Pods of shop/checkout get tokens of {GOOGLE_ACCOUNT}."), "{report}");
}

#[tokio::test]
async fn what_there_is_no_time_for_is_nobodys_fault() {
    let ward = Ward::healthy(Kind::Provider, "slow").await;
    let delays = [Ask::Pods, Ask::Account, Ask::Token].map(|ask| (ask, Duration::from_millis(3400)));
    ward.api.change(|state| state.delays = delays.into());
    let limit = Duration::from_secs(12);
    let report = ward.examine_within(limit, limit).await;
    for step in [Step::Exchange, Step::Proxy] {
        let finding = report.findings().iter().find(|finding| finding.topic == step).expect("it is there");
        assert_eq!(finding.seen, format!("not tried: {NO_TIME}"), "{report}");
    }
}

#[tokio::test(start_paused = true)]
async fn steps_that_hang_end_together() {
    let deadline = Deadline::new(MAX_TIME, MAX_STEP);
    let began = Instant::now();
    for _ in 0..5 {
        assert_eq!(deadline.within(std::future::pending::<()>()).await, None);
    }
    assert_eq!(began.elapsed(), MAX_TIME);
}

/// Whoever opens this file from now on waits for ever.
fn block(file: &std::path::Path) {
    std::fs::remove_file(file).expect("it is there");
    let made = std::process::Command::new("mkfifo").arg(file).status().expect("coreutils");
    assert!(made.success());
}

#[tokio::test]
async fn files_that_do_not_answer_do_not_hold_it_up() {
    let ward = Ward::healthy(Kind::Provider, "files").await;
    let identity::cluster::Credential::Kubeconfig(kubeconfig) = &ward.settings.cluster.credential else {
        panic!("one")
    };
    block(kubeconfig);
    block(&ward.proc.dir().join("1/stat"));
    let report = ward.examine_what_hangs().await.expect("it ends");
    let seen = |step| report.findings().iter().find(|finding| finding.topic == step).map(|finding| &*finding.seen);
    assert_eq!(seen(Step::ApiServer), Some("the credential could not be read within 4 s"), "{report}");
    assert_eq!(seen(Step::Rights), Some("not tried: the API server is not reached"), "{report}");
    assert_eq!(
        seen(Step::Proc),
        Some("they could not be read within 4 s, so pods are known late or never"),
        "{report}"
    );
}

#[test]
fn clocks_are_compared_with_googles() {
    let judged = |of_google, of_cluster| clock(Clocks { of_cluster, of_google }, "node-1");
    for (of_google, of_cluster, seen) in [
        (None, None, "not tried: no server has said what the time is"),
        (Some(-60), Some(60), "the API server's clock is 120 s behind Google's, so Google rejects its tokens"),
        (Some(0), Some(60), "they agree to 60 s"),
        (Some(600), Some(600), "this machine's clock is 10 min ahead of Google's"),
        (Some(-61), Some(0), "this machine's clock is 61 s behind Google's"),
        (Some(0), Some(-90_000), "the API server's clock is 25 h ahead of Google's, so Google rejects its tokens"),
        (None, Some(61), "this machine's clock is 61 s ahead of the API server's; one of them is wrong"),
    ] {
        assert_eq!(judged(of_google, of_cluster).seen, seen);
    }
}

#[test]
fn each_way_of_not_reaching_a_server_has_its_advice() {
    let host = || "sts.googleapis.com".to_owned();
    let (address, error) = ("sts.googleapis.com:443".to_owned(), || std::io::Error::other("it broke"));
    for (unreachable, seen, todo) in [
        (
            Unreachable::Name { host: host(), error: error() },
            "the name sts.googleapis.com has no address: it broke",
            "node/node-1 -it --profile=sysadmin --image=busybox -- chroot /host sh -c 'nslookup",
        ),
        (
            Unreachable::Proxy { proxy: "proxy:3128".to_owned(), address, error: error().into() },
            "the HTTP proxy proxy:3128 does not connect to sts.googleapis.com:443: it broke",
            "NO_PROXY",
        ),
        (
            Unreachable::Tls { host: host(), error: error() },
            "TLS with sts.googleapis.com fails: it broke",
            "captive portal",
        ),
    ] {
        let finding = reached(Step::Sts, "https://sts.googleapis.com", "node-1", &Err(unreachable));
        let todos = finding.looks.iter().chain(&finding.advice).cloned().collect::<String>();
        assert!(finding.seen.ends_with(seen) && todos.contains(todo), "{finding:?}");
    }
}

#[test]
fn no_failure_of_tls_reads_as_a_blocked_way() {
    use TlsFailure::{Certificate, Incompatible, NotTls, Other};
    use identity::cluster::{Acting, BadCertificate, Credential, NodeName, RequestError, Settings, TlsFailure};
    let node: NodeName = "node-1".parse().expect("a name");
    for credential in [Credential::Kubeconfig("/k".into()), Credential::OwnAccount(Acting::AsItsNode)] {
        let is_file = matches!(credential, Credential::Kubeconfig(_));
        let settings = Settings { node: node.clone(), credential };
        for (why, seen, todo) in [
            (
                Certificate(BadCertificate::Untrusted),
                "an authority that is not trusted",
                "something else answers at this address",
            ),
            (Certificate(BadCertificate::Expired), "has expired", "renew"),
            (Certificate(BadCertificate::Expired), "has expired", "clock"),
            (Certificate(BadCertificate::NotYetValid), "is not valid yet", "clock"),
            (Certificate(BadCertificate::WrongName), "for another name", "certificate"),
            (Certificate(BadCertificate::Other), "is not accepted", "see what answers"),
            (NotTls, "does not speak TLS", "HTTPS port"),
            (NotTls, "does not speak TLS", if is_file { "/k (server)" } else { "KUBERNETES_SERVICE_PORT" }),
            (Incompatible, "no version of TLS", "TLS 1.2 or 1.3"),
            (Other, "TLS with it fails", "its log"),
        ] {
            let error = RequestError::Tls { why, message: "so it is".to_owned() };
            let finding = super::judge::cluster::api_server("https://k", &settings, &Err(error));
            let text = finding.to_string();
            assert_eq!(finding.verdict, Verdict::Trouble);
            for part in [seen, todo, "so it is"] {
                assert!(text.contains(part), "{part} is missing from {text}");
            }
            assert!(!text.contains("firewall"), "{text}");
        }
    }
}

#[test]
fn an_issuer_that_does_not_answer_matters_only_until_google_has_its_keys() {
    let claims = claims::Claims {
        issuer: ISSUER.to_owned(),
        audiences: Vec::new(),
        issued: 0,
        expires: 0,
        key: "k1".to_owned(),
    };
    let federation = federation_of(Kind::Provider);
    let judged = |seen, is_exchanged| super::judge::google::issuer(&federation, &claims, &seen, is_exchanged);
    let nothing = judged(Seen::Nothing("no answer".to_owned()), false);
    assert_eq!(nothing.verdict, Verdict::Warning);
    assert!(
        nothing.commands[1].contains(&format!("update-oidc {PROVIDER_FLAGS} --jwk-json-path=jwks.json")),
        "{nothing:?}"
    );
    assert_eq!(judged(Seen::Nothing(String::new()), true).verdict, Verdict::Ok);
    for seen in [Seen::OtherKeys, Seen::Other("https://a".to_owned())] {
        assert_eq!(judged(seen, false).verdict, Verdict::Warning);
    }
    assert_eq!(judged(Seen::Same, false).verdict, Verdict::Ok);
}

fn federation_of(kind: Kind) -> identity::workloads::Federation {
    identity::workloads::Federation {
        trust: ward::trust(kind),
        token_audience: None,
        sts: endpoint(NOBODY),
        iam: endpoint(NOBODY),
        google_ca: None,
        prefetch: identity::workloads::Prefetch::default(),
        bound_tokens: false,
    }
}

#[test]
fn what_others_write_cannot_move_a_terminals_cursor() {
    let finding = Step::Link.trying("a").trouble("\u{1b}[2J\u{202e}b\r").saying("c\nd").running("e\u{7}");
    let report = Report::new(vec![finding.looking("f\u{200b}")], "x/y", None).to_string();
    let is_harmless = |char: char| char == '\n' || !(char.is_control() || char == '\u{202e}');
    assert!(report.chars().all(is_harmless), "{report:?}");
    assert_eq!(report.lines().count(), 5, "{report}");
}
