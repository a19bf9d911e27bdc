//! The cost of a workload's requests, and their results when a server fails.

mod bound;
mod cannot_cross;
pub(super) mod lab;
mod outage;
mod prefetch;
mod refusals;
mod renewal;
mod sent;
mod stalled;

use std::io;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
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
        assert_eq!(retry_after(&refused), 1, "{:?}", refused.headers);
        let text = String::from_utf8_lossy(&refused.body).into_owned();
        assert!(text.starts_with("Pods of a/app on this node have asked for more than 120 tokens"), "{text}");
        lab.token(TOKEN).await;
        sleep(Duration::from_secs(5)).await;
        assert!(lab.ask("default/token?scopes=y").await.is_ok());
    }
}

/// Without a Google account, the default token is the federated token, which has no scopes.
#[tokio::test(start_paused = true)]
async fn the_default_token_does_not_wait_for_invented_scopes() {
    for scopes in [40, 200] {
        let lab = Arc::new(Lab::new(GOOGLE_ACCOUNT));
        lab.servers.change(|script| script.delay = Duration::from_millis(300));
        let asked: JoinSet<()> = (0..scopes)
            .map(|number| {
                let lab = Arc::clone(&lab);
                async move { drop(lab.ask(&format!("default/token?scopes=s{number}")).await) }
            })
            .collect();
        sleep(Duration::from_millis(100)).await;
        lab.token(TOKEN).await;
        drop(asked);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_turns_others_of_its_account_took_gets_the_next_one() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    lab.servers.change(|script| script.delay = Duration::from_millis(1));
    let invent = async |from: usize, number| {
        for scope in from..from + number {
            let _ = lab.ask(&format!("default/token?scopes=s{scope}")).await;
        }
    };
    invent(0, 400).await;
    for round in 1..=6 {
        sleep(Duration::from_secs(1)).await;
        invent(round * 1000, 4).await;
        assert!(lab.ask("default/token?scopes=fixed").await.is_err(), "the turns of this second are taken");
    }
    sleep(Duration::from_secs(1)).await;
    assert!(lab.ask("default/token?scopes=fixed").await.is_ok());
}

/// What a thread logs.
#[derive(Clone, Default)]
struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

impl Log {
    /// The log of this thread, until what is returned beside it is dropped.
    fn of_this_thread() -> (Self, impl Sized) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().json().flatten_event(true).with_writer(move || writer.clone()).finish();
        // With one subscriber alone, tracing lets a thread that has none turn off the log lines that it comes to first. With a second
        // one, all are asked.
        let second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
        let logging = tracing::subscriber::set_default(subscriber);
        tracing::callsite::rebuild_interest_cache();
        (log, (logging, second))
    }

    /// What was written since the last call.
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().expect("no panic"))).expect("text")
    }
}

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
    let (log, _logging) = Log::of_this_thread();
    for iam in [Does::Issue(3600), Does::Refuse(400, "no such scope"), Does::Fail] {
        let lab = Arc::new(Lab::new(GOOGLE_ACCOUNT));
        lab.token(TOKEN).await;
        lab.servers.change(|script| (script.delay, script.iam) = (Duration::from_millis(1), iam.clone()));
        log.take();
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
        let log = log.take();
        assert!(log.len() <= 10 << 10, "{iam:?}: {} lines, {} bytes", log.lines().count(), log.len());
        assert!(
            log.contains("no token for pods of a/app: Pods of a/app on this node have asked for more than"),
            "{log}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_log_says_which_account_waits_for_a_slow_server_and_for_one_that_gets_no_requests() {
    let (log, _logging) = Log::of_this_thread();
    for (does, others, said) in [
        (Does::Fail, 7, "Google's Security Token Service: it has failed several times in a row"),
        (
            Does::PutOff(429, "9"),
            1,
            "Google's Security Token Service: it returned 429 Too Many Requests, and is asked less",
        ),
        (Does::Stall, 0, SLOW_STS),
    ] {
        let lab = Lab::new("");
        lab.servers.change(|script| script.sts = does.clone());
        for other in 0..others {
            let number = lab.add(other + 2, &format!("app{other}"));
            assert!(lab.ask_for(&key(number, TOKEN)).await.is_err());
        }
        log.take();
        if matches!(does, Does::Fail) {
            let steps = lab.source.steps(lab.number).await.expect("a link");
            assert!(steps.prepare().await.is_err());
            assert_eq!(log.take(), "", "no pod waits for it");
        }
        for _ in 0..9 {
            assert!(lab.ask(TOKEN).await.is_err());
        }
        let log = log.take();
        assert_eq!(log.matches(&format!("no token for pods of a/app: {said}")).count(), 1, "{does:?}: {log}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_log_says_that_pods_have_no_token_only_once_they_have_none() {
    let (log, _logging) = Log::of_this_thread();
    for does in [Does::PutOff(429, "9"), Does::Fail, Does::Refuse(403, "no")] {
        let lab = Lab::new("");
        lab.token(TOKEN).await;
        sleep(Duration::from_secs(3310)).await;
        lab.servers.change(|script| script.sts = does.clone());
        log.take();
        for _ in 0..270 {
            assert_eq!(lab.token(TOKEN).await, "fed-1");
            sleep(Duration::from_secs(1)).await;
        }
        let told = log.take();
        assert!(!told.contains("no token for pods"), "{does:?}: {told}");
        assert!(told.contains("no token in advance for pods of a/app: "), "{does:?}: {told}");
        sleep(Duration::from_secs(90)).await;
        assert!(lab.ask(TOKEN).await.is_err());
        let told = log.take();
        assert!(told.contains("no token for pods of a/app: "), "{does:?}: {told}");
    }
    // The token cache has the token.
    let lab = Lab::new(GOOGLE_ACCOUNT);
    lab.token(TOKEN).await;
    lab.servers.change(|script| script.iam = Does::PutOff(429, "9"));
    log.take();
    for _ in 0..60 {
        let next = lab.source.fetch(&key(lab.number, TOKEN), None, Urgency::Soon).await;
        assert!(next.is_err());
        sleep(Duration::from_secs(1)).await;
    }
    let told = log.take();
    assert!(!told.contains("no token for pods"), "{told}");
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
async fn no_token_is_shown() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    let fetched = lab.source.fetch(&key(lab.number, TOKEN), None, Urgency::Demanded).await.expect("a token");
    let identity = lab.source.fetch(&key(lab.number, IDENTITY), None, Urgency::Demanded).await.expect("a token");
    let federated = lab.source.steps(lab.number).await.expect("a link");
    let secret =
        federated.federated(Want::Valid, Instant::now() + TIMEOUT, &Urgency::Demanded.into()).await.expect("kept");
    assert_eq!(secret.text.as_str(), "fed-1");
    let shown =
        format!("{:?} {fetched:?} {identity:?} {federated:?} {secret:?} {:#?}", lab.source, federated.stages.federated);
    for token in ["ksa-", "fed-", "google-", "e30."] {
        assert!(!shown.contains(token), "{token} in {shown}");
    }
}
