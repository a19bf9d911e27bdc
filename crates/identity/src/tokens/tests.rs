//! The cost of a workload's requests, and their results when a server fails.

mod cannot_cross;
pub(super) mod lab;
mod outage;
mod prefetch;
mod refusals;
mod stalled;

use std::io;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::sleep;

use super::metrics::Step;
use super::quotas::Payer;
use super::*;
use crate::cluster::Annotations;
use crate::pods::Pod;
use crate::tests::pod;
use crate::workloads::{Endpoint, Link};
use lab::{Does, GOOGLE_ACCOUNT, Lab, Servers, bound_key, federation, issued, key};
use protocol::metadata::Fingerprint;
use proxy::failure::{Failure, Withheld};

const TOKEN: &str = "default/token";
const IDENTITY: &str = "default/identity?audience=https://a";
const SLOW_STS: &str =
    "Google's Security Token Service did not answer within 2400 ms; its answer is still being waited for";
const SLOW_IAM: &str =
    "Google's IAM Credentials API did not answer within 2400 ms; its answer is still being waited for";

/// The seconds after which a refused client should retry.
fn retry_after(refused: &proxy::tokens::Refused) -> u64 {
    http_client::retry_after(&refused.headers).expect("it is named").as_secs()
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_of_one_workload_cost_one_request_to_each_server() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    let five = tokio::join!(lab.ask(TOKEN), lab.ask(TOKEN), lab.ask(TOKEN), lab.ask(TOKEN), lab.ask(TOKEN));
    for outcome in [five.0, five.1, five.2, five.3, five.4] {
        let (token, seconds) = outcome.expect("a token");
        assert_eq!(token, "google-1");
        assert!((3595..=3600).contains(&seconds), "{seconds}");
    }
    assert_eq!(lab.servers.counts(), [1, 1, 1]);

    // Scopes and audiences share the steps before them.
    let others =
        tokio::join!(lab.token("default/token?scopes=a"), lab.token("default/token?scopes=b"), lab.token(IDENTITY));
    assert!(others.2.starts_with("e30."), "{}", others.2);
    assert_eq!(lab.servers.counts(), [1, 1, 4]);
    assert_eq!(lab.source.means.metrics.counts(Step::Iam), [4, 0, 0, 0, 0, 0]);
    assert!(lab.source.kept.of(lab.number, BootTime::now()).google_is_empty(), "the token cache has them");
}

#[test]
fn a_pod_whose_account_was_not_read_is_told_when_it_will_be() {
    let (account, again) = ("a/app".to_owned(), Duration::from_secs(7));
    let why = unknown(&LinkError::Unread { account, why: "it is busy".into(), again });
    let NoToken::Failed(failure) = why else { panic!("{why:?}") };
    assert_eq!(failure.rests(), again);
}

#[tokio::test(start_paused = true)]
async fn a_workload_that_invents_scopes_leaves_googles_quota_to_others() {
    for annotation in [GOOGLE_ACCOUNT, ""] {
        let lab = Lab::new(annotation);
        lab.servers.change(|script| script.delay = Duration::from_millis(1));
        lab.token(TOKEN).await;
        let mut issued = 0;
        for number in 0..400 {
            issued += usize::from(lab.ask(&format!("default/token?scopes=s{number}")).await.is_ok());
        }
        // The burst, and the exchanges that time has allowed meanwhile.
        assert!((120..=130).contains(&issued), "{issued}");
        let Err(NoToken::Refused(refused)) = lab.ask("default/token?scopes=x").await else { panic!("a token") };
        assert_eq!(refused.status.as_u16(), 503);
        // The step rests for a second, and up to half of one more.
        assert!((1..=2).contains(&retry_after(&refused)), "{:?}", refused.headers);
        let text = String::from_utf8_lossy(&refused.body).into_owned();
        assert!(text.starts_with("Pods of a/app on this node have asked for more than 120 tokens"), "{text}");
        lab.token(TOKEN).await;
        sleep(Duration::from_secs(5)).await;
        assert!(lab.ask("default/token?scopes=y").await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_bound_token_is_an_exchange_of_its_own_for_each_certificate() {
    let lab = Lab::new("");
    let bound = |certificate: u8, target: &str| bound_key(lab.number, certificate, target);
    assert_eq!(lab.token(TOKEN).await, "fed-1");
    assert_eq!(lab.ask_for(&bound(1, TOKEN)).await.expect("a token").0, "fed-2");
    assert_eq!(lab.ask_for(&bound(2, TOKEN)).await.expect("a token").0, "fed-3");
    assert_eq!(lab.ask_for(&bound(2, "default/token?scopes=a")).await.expect("a token").0, "fed-4");
    assert_eq!(lab.token(TOKEN).await, "fed-1", "a plain one is not bound");
    let sent = lab.servers.read(|script| script.exchanges.clone());
    let of = |exchange: &Value| (exchange["scope"].clone(), exchange["options"].clone());
    let options = |certificate: u8| {
        json!(json!({"bindCertFingerprint": Fingerprint::from([certificate; 32]).to_string()}).to_string())
    };
    assert_eq!(
        sent.iter().map(of).collect::<Vec<_>>(),
        [
            (json!(sts::CLOUD_PLATFORM), Value::Null),
            (json!(sts::CLOUD_PLATFORM), options(1)),
            (json!(sts::CLOUD_PLATFORM), options(2)),
            (json!("a"), options(2)),
        ]
    );
    assert_eq!(lab.servers.counts()[0], 1, "all for one Kubernetes token");

    lab.servers.change(|script| script.delay = Duration::from_millis(1));
    // Certificates that are made up leave what is not bound alone.
    let mut refused = 0;
    for number in 0..200 {
        let target = format!("default/token?scopes=s{number}");
        refused += usize::from(lab.ask_for(&bound(3, &target)).await.is_err());
    }
    assert!(refused > 70, "{refused}");
    assert!(lab.ask("default/token?scopes=x").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_is_not_bound_is_not_found_with_the_setting_that_helps() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    for (target, why) in [(TOKEN, "is linked to a Google account"), (IDENTITY, "identity tokens are not bound")] {
        let asked = lab.ask_for(&bound_key(lab.number, 1, target)).await;
        let Err(NoToken::Refused(refused)) = asked else { panic!("{target}: a token") };
        let text = String::from_utf8_lossy(&refused.body).into_owned();
        assert_eq!(refused.status, StatusCode::NOT_FOUND);
        assert!(text.contains(why) && text.contains("GOOGLE_API_ENABLE_RUNTIME_BOUND_TOKEN=false"), "{text}");
    }
    assert_eq!(lab.servers.counts()[1..], [0, 0]);
}

#[derive(Clone, Default)]
struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_invents_scopes_writes_little_into_the_log() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().json().flatten_event(true).with_writer(move || writer.clone()).finish();
    // With one subscriber alone, tracing lets a thread that has none turn off the log lines that it comes to first. With a second
    // one, all are asked.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let _logging = tracing::subscriber::set_default(subscriber);
    tracing::callsite::rebuild_interest_cache();
    for iam in [Does::Issue(3600), Does::Refuse(400, "no such scope"), Does::Fail] {
        let lab = Arc::new(Lab::new(GOOGLE_ACCOUNT));
        lab.token(TOKEN).await;
        lab.servers.change(|script| (script.delay, script.iam) = (Duration::from_millis(1), iam.clone()));
        log.0.lock().expect("no panic").clear();
        let began = Instant::now();
        let connections = (0..4).map(|connection| {
            let lab = Arc::clone(&lab);
            tokio::spawn(async move {
                for number in 0.. {
                    if began.elapsed() >= Duration::from_secs(60) {
                        break;
                    }
                    let _ = lab.ask(&format!("default/token?scopes=s{connection}-{number}")).await;
                    sleep(Duration::from_millis(10)).await;
                }
            })
        });
        for connection in connections.collect::<Vec<_>>() {
            connection.await.expect("no panic");
        }
        let log = String::from_utf8(log.0.lock().expect("no panic").clone()).expect("text");
        assert!(log.len() <= 10 << 10, "{iam:?}: {} lines, {} bytes", log.lines().count(), log.len());
        assert!(
            log.contains("no token for pods of a/app: Pods of a/app on this node have asked for more than"),
            "{log}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn each_server_is_asked_what_it_expects() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    lab.token(TOKEN).await;
    lab.token(IDENTITY).await;
    lab.servers.read(|script| {
        let (path, body) = &script.token_requests[0];
        assert_eq!(path, "/api/v1/namespaces/a/serviceaccounts/app/token");
        let uid = pod(1, "a", "app").uid.to_string();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "name": "p1", "uid": uid});
        let spec = json!({"audiences": ["shop.svc.id.goog"], "expirationSeconds": 3600, "boundObjectRef": pod});
        assert_eq!(body["spec"], spec);
        let exchange = &script.exchanges[0];
        assert_eq!((&exchange["subjectToken"], &exchange["scope"]), (&json!("ksa-1"), &json!(sts::CLOUD_PLATFORM)));
        let audience = "identitynamespace:shop.svc.id.goog:https://container.googleapis.com/v1/projects/shop/c";
        assert_eq!(exchange["audience"], audience);
        let urls: Vec<_> =
            script.impersonations.iter().map(|(url, bearer, _)| (url.as_str(), bearer.as_str())).collect();
        let account = format!("https://iam.example/v1/projects/-/serviceAccounts/{GOOGLE_ACCOUNT}");
        let (access, identity) = (format!("{account}:generateAccessToken"), format!("{account}:generateIdToken"));
        assert_eq!(urls, [(access.as_str(), "Bearer fed-1"), (identity.as_str(), "Bearer fed-1")]);
        assert_eq!(script.impersonations[1].2, json!({"audience": "https://a", "includeEmail": true}));
    });
}

#[tokio::test(start_paused = true)]
async fn an_account_without_a_link_gets_what_the_exchange_gives() {
    let lab = Lab::new("");
    assert_eq!(lab.token(TOKEN).await, "fed-1");
    assert_eq!(lab.token("shop.svc.id.goog/token").await, "fed-1", "the pool stands for it");
    assert_eq!(lab.token(&format!("default/token?scopes={}", sts::CLOUD_PLATFORM)).await, "fed-1");
    assert_eq!(lab.token("default/token?scopes=b,a").await, "fed-2");
    assert_eq!(lab.servers.counts(), [1, 2, 0]);
    assert_eq!(lab.servers.read(|script| script.exchanges[1]["scope"].clone()), "a b");
    let (status, text) = lab.refusal(IDENTITY).await;
    assert_eq!(status, 404);
    assert!(
        text.starts_with("Your Kubernetes service account (a/app) is not annotated with a target Google"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn names_of_other_accounts_are_not_found_and_an_audience_is_required() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    assert_eq!(lab.refusal("other@shop.iam.gserviceaccount.com/token").await, (404, "Not Found\n".to_owned()));
    for what in ["default/identity", "default/identity?audience="] {
        assert_eq!(lab.refusal(what).await, (400, "non-empty audience parameter required\n".to_owned()), "{what}");
    }
    assert_eq!(lab.servers.counts(), [0, 0, 0]);
    assert_eq!(lab.token(&format!("{GOOGLE_ACCOUNT}/token")).await, "google-1");
    let mut foreign = key(lab.number, TOKEN);
    foreign.principal = Principal::Node;
    let why = lab.source.fetch(&foreign, None, Urgency::Demanded).await.expect_err("the node's").to_string();
    assert_eq!(why, "it has no tokens for this caller");
}

#[tokio::test(start_paused = true)]
async fn a_fetch_that_runs_out_of_time_goes_on_where_it_was() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    lab.servers.change(|script| script.delay = Duration::from_secs(2));
    let began = Instant::now();
    assert_eq!(lab.failure(TOKEN).await, SLOW_STS);
    assert_eq!((began.elapsed(), lab.servers.counts()), (TIMEOUT, [1, 1, 0]));
    assert_eq!(lab.failure(TOKEN).await, SLOW_IAM);
    assert_eq!(lab.token(TOKEN).await, "google-1");
    assert_eq!((began.elapsed().as_secs(), lab.servers.counts()), (6, [1, 1, 1]), "each server once");

    // A token that came while nobody waited is given to the next request, and not kept for later ones.
    lab.servers.change(|script| script.delay = Duration::from_secs(4));
    assert_eq!(lab.failure(IDENTITY).await, SLOW_IAM);
    sleep(Duration::from_secs(3)).await;
    let began = Instant::now();
    let first = lab.token(IDENTITY).await;
    assert_eq!((began.elapsed(), lab.servers.counts()), (Duration::ZERO, [1, 1, 2]));
    lab.servers.change(|script| script.delay = Duration::ZERO);
    assert_ne!(lab.token(IDENTITY).await, first);
}

#[tokio::test(start_paused = true)]
async fn what_leads_to_a_token_is_renewed_from_40_to_60_percent_of_its_life_on() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    lab.token(TOKEN).await;
    sleep(Duration::from_secs(1430)).await;
    lab.token(IDENTITY).await;
    assert_eq!(lab.servers.counts(), [1, 1, 2]);
    sleep(Duration::from_secs(731)).await;
    lab.token(IDENTITY).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(lab.servers.counts(), [2, 2, 3], "in the background");
    let bearer = |at: usize| lab.servers.read(|script| script.impersonations[at].1.clone());
    lab.token(IDENTITY).await;
    assert_eq!([bearer(2), bearer(3)], ["Bearer fed-1", "Bearer fed-2"]);

    // While the API server and STS are unreachable, existing tokens are used to their end, and never longer.
    lab.servers.change(|script| (script.kubernetes, script.sts) = (Does::Fail, Does::Fail));
    sleep(Duration::from_secs(3580)).await;
    lab.token(IDENTITY).await;
    sleep(Duration::from_secs(15)).await;
    let why = lab.failure(IDENTITY).await;
    assert!(why.contains("the API server cannot be reached"), "{why}");
    assert_eq!(lab.servers.counts()[2], 5);
    lab.servers.change(|script| (script.kubernetes, script.sts) = (Does::Issue(3600), Does::Issue(3600)));
    sleep(Duration::from_secs(1)).await;
    lab.token(IDENTITY).await;
}

#[tokio::test(start_paused = true)]
async fn an_unlinked_token_is_replaced_when_half_of_its_life_is_over_and_kept_if_that_fails() {
    let lab = Lab::new("");
    let (_, seconds) = lab.ask(TOKEN).await.expect("a token");
    assert!((3598..=3600).contains(&seconds), "{seconds}");
    sleep(Duration::from_secs(2700)).await;
    lab.servers.change(|script| script.sts = Does::Fail);
    let (old, left) = lab.ask(TOKEN).await.expect("the token before");
    assert_eq!(old, "fed-1");
    assert!((895..=900).contains(&left), "{left}");
    lab.servers.change(|script| script.sts = Does::Issue(3600));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(lab.token(TOKEN).await, "fed-3");
}

#[tokio::test(start_paused = true)]
async fn a_federated_token_ends_with_the_kubernetes_token() {
    let lab = Lab::new("");
    lab.servers.change(|script| script.kubernetes = Does::Issue(900));
    let (_, seconds) = lab.ask(TOKEN).await.expect("a token");
    assert!((895..=900).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn another_pod_vouches_when_one_is_gone() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    let gone = "Operation cannot be fulfilled on Pod \"p1\": the UID in the bound object reference does not match";
    lab.servers.change(|script| script.kubernetes = Does::Refuse(409, gone));
    lab.source.means.pods.apply(Pod { created: 7, ..pod(2, "a", "app") });
    let why = lab.failure(TOKEN).await;
    assert_eq!(why, format!("no Kubernetes token for the pod's service account: the pod p1 is gone: {gone}"));
    let asked = lab.servers.read(|script| {
        let name = |(_, body): &(String, Value)| body["spec"]["boundObjectRef"]["name"].clone();
        script.token_requests.iter().map(name).collect::<Vec<_>>()
    });
    assert_eq!(asked, ["p2", "p1"], "the youngest first");
    lab.source.means.pods.replace([]);
    sleep(Duration::from_secs(1)).await;
    let spent = format!("{:?}", lab.source.spent());
    assert!(lab.failure(TOKEN).await.ends_with("no running pod of a/app is known any more"));
    assert_eq!(format!("{:?}", lab.source.spent()), spent, "nothing was sent");
}

#[tokio::test(start_paused = true)]
async fn a_malformed_annotation_is_refused_with_googles_text() {
    for annotation in ["nobody", "a".repeat(200_000).leak()] {
        let lab = Lab::new(annotation);
        let (status, text) = lab.refusal(TOKEN).await;
        assert_eq!(status, 403);
        assert!(text.starts_with("Annotated service account must be in format of"), "{text}");
        assert_eq!(lab.servers.counts(), [0, 0, 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_annotation_is_a_new_workload_and_the_old_ones_tokens_are_forgotten() {
    let mut lab = Lab::new(GOOGLE_ACCOUNT);
    assert_eq!(lab.token(TOKEN).await, "google-1");
    let workloads = Arc::clone(&lab.source.means.workloads);
    let old = lab.number;
    lab.servers.change(|script| script.annotation = "");
    workloads.recheck(old);
    sleep(Duration::from_millis(10)).await;
    assert!(workloads.has(old), "it was read with its first token");
    sleep(Duration::from_secs(60)).await;
    workloads.recheck(old);
    sleep(Duration::from_millis(10)).await;
    for number in workloads.retain(|| lab.source.means.pods.all()) {
        assert_eq!(number, old);
        lab.source.kept.forget(number);
    }
    let why = lab.failure(TOKEN).await;
    assert_eq!(why, "the pod's service account has changed");
    assert!(lab.source.kept.is_empty(), "nobody would forget it again");
    let Principal::Workload(new) = workloads.of_pod(&pod(1, "a", "app")).principal() else { panic!("a workload") };
    lab.number = new;
    assert_eq!(lab.token(TOKEN).await, "fed-2", "not what was kept for the old one");
    assert_eq!(lab.servers.counts(), [2, 2, 1]);
}

#[tokio::test(start_paused = true)]
async fn annotations_are_looked_at_with_each_renewal() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    lab.token(TOKEN).await;
    lab.servers.change(|script| script.annotation = "");
    sleep(Duration::from_secs(2161)).await;
    lab.token(IDENTITY).await;
    sleep(Duration::from_secs(1)).await;
    assert!(!lab.source.means.workloads.has(lab.number));
}

#[tokio::test(start_paused = true)]
async fn no_token_is_shown() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    let fetched = lab.source.fetch(&key(lab.number, TOKEN), None, Urgency::Demanded).await.expect("a token");
    let identity = lab.source.fetch(&key(lab.number, IDENTITY), None, Urgency::Demanded).await.expect("a token");
    let federated = lab.source.steps(lab.number).await.expect("a link");
    let secret = federated.federated(Want::Valid, Instant::now() + TIMEOUT, Urgency::Demanded).await.expect("kept");
    assert_eq!(secret.text.as_str(), "fed-1");
    let shown =
        format!("{:?} {fetched:?} {identity:?} {federated:?} {secret:?} {:#?}", lab.source, federated.stages.federated);
    for token in ["ksa-", "fed-", "google-", "e30."] {
        assert!(!shown.contains(token), "{token} in {shown}");
    }
}

/// A server on loopback that answers each connection once, and passes on the request.
async fn served(answers: Vec<String>) -> (String, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (sender, requests) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = vec![0; 16 << 10];
            let mut read = 0;
            while !request[..read].ends_with(b"}") {
                read += stream.read(&mut request[read..]).await.expect("a request");
            }
            let _ = sender.send(String::from_utf8_lossy(&request[..read]).into_owned());
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: ";
            stream.write_all(format!("{head}{}\r\n\r\n{answer}", answer.len()).as_bytes()).await.expect("sent");
        }
    });
    (url, requests)
}

#[tokio::test]
async fn the_requests_are_http() {
    let (url, mut requests) = served(vec![issued("/v1/token", 1, 3600), issued("", 1, 3600)]).await;
    let endpoint = Endpoint::parse(&url).expect("loopback");
    let federation = Federation { sts: endpoint.clone(), iam: endpoint, ..federation() };
    let google = Google::new(&federation).expect("no file");
    let lab = Lab::with(Servers::new(GOOGLE_ACCOUNT), federation, google);
    assert_eq!(lab.token(TOKEN).await, "google-1");
    let exchange = requests.recv().await.expect("a request").to_lowercase();
    assert!(exchange.starts_with("post /v1/token http/1.1\r\n") && !exchange.contains("authorization"), "{exchange}");
    let impersonation = requests.recv().await.expect("a request");
    let line = format!("POST /v1/projects/-/serviceAccounts/{GOOGLE_ACCOUNT}:generateAccessToken HTTP/1.1\r\n");
    assert!(impersonation.starts_with(&line), "{impersonation}");
    assert!(impersonation.contains("authorization: Bearer fed-1\r\n"), "{impersonation}");

    // Nothing listens any more.
    let why = lab.failure(IDENTITY).await;
    assert!(why.starts_with("Google's IAM Credentials API: cannot connect: "), "{why}");
    let failure = TokenFailure::from(Failure::Closed);
    assert_eq!(failure.what(), "The metadata server");
}
