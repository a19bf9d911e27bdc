//! Pods whose tokens are kept do not notice when the servers are unreachable for a while.

use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, sleep};
use tower::{Layer as _, ServiceExt as _, service_fn};

use super::lab::{Does, GOOGLE_ACCOUNT, Lab, Script, key, request_of};
use crate::tokens::{WorkloadSource, renew};
use protocol::metadata::Request;
use proxy::error::Error;
use proxy::layers::filter;
use proxy::layers::token_cache::{Audit, DEFAULT_LIMIT_BYTES, Store, TokenCache, Tokens};
use proxy::reply::Body;
use proxy::shares::Client;
use proxy::tokens::{Fetched, NoToken, TokenKey, TokenSource, Urgency};
use telemetry::Registry;

/// The interval between a pod's requests.
const INTERVAL: Duration = Duration::from_secs(5);

const WARM: [&str; 2] = ["default/token", "default/token?scopes=a"];

/// The lab's source, for a token cache.
pub(super) struct Source(pub(super) Arc<WorkloadSource>);

impl TokenSource for Source {
    fn deadline(&self) -> Duration {
        self.0.deadline()
    }

    async fn fetch(&self, key: &TokenKey, client: Client, urgency: Urgency) -> Result<Fetched, NoToken> {
        self.0.fetch(key, client, urgency).await
    }
}

/// A pod whose requests go through the token cache.
struct Pod {
    lab: Lab,
    tokens: Tokens<Source>,
}

impl Pod {
    /// A pod that has asked for nothing yet.
    fn new(annotation: &'static str) -> Self {
        let lab = Lab::new(annotation);
        let store = Store::new(DEFAULT_LIMIT_BYTES, &Registry::default());
        let tokens = Tokens::new(store, Source(Arc::clone(&lab.source)));
        let source = Arc::clone(&lab.source);
        tokio::spawn(async move { match renew(source).await {} });
        Self { lab, tokens }
    }

    /// A pod that has tokens.
    async fn warm(annotation: &'static str) -> Self {
        let pod = Self::new(annotation);
        for what in WARM {
            assert_eq!(pod.ask(what).await.expect("a token").status(), StatusCode::OK);
        }
        pod
    }

    async fn ask(&self, what: &str) -> Result<Response<Body>, Error> {
        let nothing_else = service_fn(async |request: Box<Request>| -> Result<Response<Body>, Error> {
            panic!("no token request: {request:?}")
        });
        // Without a peer it would be the proxy's own, whose tokens are renewed even without requests.
        let peer = Some(([10, 0, 0, 1], 40_000).into());
        let request = Box::new(Request { peer, ..request_of(self.lab.number, what) });
        filter::layer(TokenCache::new(&self.tokens, Audit::default())).layer(nothing_else).oneshot(request).await
    }

    /// A token, or the status.
    async fn text(&self, what: &str) -> Result<String, u16> {
        let answer = self.ask(what).await.map_err(|error| error.status().as_u16())?;
        let status = answer.status();
        let body = answer.into_body().collect().await.expect("in memory").to_bytes();
        if status == StatusCode::OK {
            Ok(String::from_utf8(body.to_vec()).expect("text"))
        } else {
            Err(status.as_u16())
        }
    }

    /// Requests the pod's tokens at intervals, for this number of minutes. Each request must get its answer, at once.
    async fn go_on(&self, minutes: u64, when: &str) {
        let until = Instant::now() + Duration::from_secs(minutes * 60);
        while Instant::now() < until {
            for what in WARM {
                let began = Instant::now();
                let answer = self.ask(what).await.unwrap_or_else(|error| panic!("{what}, {when}: {error}"));
                assert_eq!((answer.status(), began.elapsed()), (StatusCode::OK, Duration::ZERO), "{what}, {when}");
            }
            sleep(INTERVAL).await;
        }
    }
}

/// Lets the servers fail after `after` minutes, for `minutes`. Returns the time from then until tokens with other scopes
/// were there.
async fn outage(annotation: &'static str, after: u64, minutes: u64, away: impl FnOnce(&mut Script)) -> Duration {
    let pod = Pod::warm(annotation).await;
    pod.go_on(after, "before").await;
    pod.lab.servers.change(away);
    pod.go_on(minutes, &format!("minutes {after} to {}", after + minutes)).await;
    // A new token needs the servers.
    let _ = pod.ask("default/token?scopes=b").await;
    pod.lab.servers.change(|script| (script.sts, script.iam) = (Does::Issue(3600), Does::Issue(3600)));
    let began = Instant::now();
    while !pod.ask("default/token?scopes=b").await.is_ok_and(|answer| answer.status() == StatusCode::OK) {
        assert!(began.elapsed() < Duration::from_secs(60), "{annotation:?} after {after} minutes: nothing new");
        sleep(Duration::from_millis(50)).await;
    }
    let recovered = began.elapsed();
    pod.lab.servers.change(|script| script.kubernetes = Does::Issue(3600));
    pod.go_on(60, "afterwards").await;
    recovered
}

#[tokio::test(start_paused = true)]
async fn google_may_be_away_for_ten_minutes() {
    for annotation in [GOOGLE_ACCOUNT, ""] {
        // At any time in the life of a token.
        for after in (1..60).step_by(6) {
            let away = |script: &mut Script| (script.sts, script.iam) = (Does::Fail, Does::Fail);
            let recovered = outage(annotation, after, 10, away).await;
            // A step rests for 0.9 s, the cache for 0.2 s, and the servers take 0.1 s each.
            assert!(recovered <= Duration::from_millis(1_400), "{annotation:?} after {after} minutes: {recovered:?}");
        }
    }
}

/// Its life began when it was asked for, not when a pod came.
#[tokio::test(start_paused = true)]
async fn what_was_fetched_in_advance_is_renewed_as_early_as_any_other_token() {
    for annotation in [GOOGLE_ACCOUNT, ""] {
        let pod = Pod::new(annotation);
        let steps = pod.lab.source.steps(pod.lab.number).await.expect("a known account");
        steps.prepare().await.expect("a token");
        sleep(Duration::from_secs(23 * 60)).await;
        let counts = pod.lab.servers.counts();
        let first = access_token(&pod.text("default/token").await.expect("a token"));
        assert_eq!(pod.lab.servers.counts(), counts, "it was there");
        // At 80 % of its life at the latest.
        sleep(Duration::from_secs(25 * 60 + 15)).await;
        let later = access_token(&pod.text("default/token").await.expect("a token"));
        assert_ne!(later, first, "{annotation:?}");
    }
}

fn access_token(body: &str) -> String {
    let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
    body["access_token"].as_str().expect("text").to_owned()
}

#[tokio::test(start_paused = true)]
async fn an_identity_token_that_was_collected_late_is_replaced_when_it_is_a_minute_old() {
    const IDENTITY: &str = "default/identity?audience=https://a";
    let pod = Pod::warm(GOOGLE_ACCOUNT).await;
    pod.lab.servers.change(|script| script.delay = Duration::from_secs(4));
    assert_eq!(pod.text(IDENTITY).await, Err(503), "it comes too late");
    sleep(Duration::from_secs(25)).await;
    pod.lab.servers.change(|script| script.delay = Duration::ZERO);
    let first = pod.text(IDENTITY).await.expect("it is there now");
    sleep(Duration::from_secs(25)).await;
    assert_eq!(pod.text(IDENTITY).await.as_ref(), Ok(&first));
    sleep(Duration::from_secs(9)).await;
    assert_ne!(pod.text(IDENTITY).await.as_ref(), Ok(&first));
}

#[tokio::test(start_paused = true)]
async fn identity_tokens_are_served_to_their_end_while_iam_fails() {
    const IDENTITY: &str = "default/identity?audience=https://a";
    for away in [Does::Fail, Does::Stall, Does::Refuse(503, "busy"), Does::PutOff(429, "1")] {
        let pod = Pod::warm(GOOGLE_ACCOUNT).await;
        let first = pod.text(IDENTITY).await.expect("an identity token");
        sleep(Duration::from_secs(61)).await;
        let second = pod.text(IDENTITY).await.expect("an identity token");
        assert_ne!(first, second, "it is served for a minute while IAM answers");
        pod.lab.servers.change(|script| script.iam = away.clone());
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3400) {
            let got = pod.text(IDENTITY).await;
            assert_eq!(got.as_ref(), Ok(&second), "{away:?} for {:?}", began.elapsed());
            sleep(Duration::from_secs(7)).await;
        }
        pod.lab.servers.change(|script| script.iam = Does::Issue(3600));
        // After 429 none is fetched in advance for minutes, but when it has ended.
        sleep(Duration::from_secs(if matches!(away, Does::PutOff(..)) { 210 } else { 100 })).await;
        assert_ne!(pod.text(IDENTITY).await.as_ref(), Ok(&second), "{away:?}: a new one soon after");
    }
}

#[tokio::test(start_paused = true)]
async fn an_old_identity_token_is_not_served_past_its_end_or_after_a_refusal() {
    const IDENTITY: &str = "default/identity?audience=https://a";
    let pod = Pod::warm(GOOGLE_ACCOUNT).await;
    pod.text(IDENTITY).await.expect("an identity token");
    pod.lab.servers.change(|script| script.iam = Does::Refuse(403, "no"));
    sleep(Duration::from_secs(61)).await;
    for _ in 0..20 {
        assert_eq!(pod.text(IDENTITY).await, Err(403), "its binding is gone");
        sleep(Duration::from_secs(7)).await;
    }
    pod.lab.servers.change(|script| script.iam = Does::Issue(3600));
    sleep(Duration::from_secs(61)).await;
    pod.text(IDENTITY).await.expect("an identity token");
    pod.lab.servers.change(|script| script.iam = Does::Fail);
    sleep(Duration::from_secs(3590)).await;
    pod.text(IDENTITY).await.expect("the last seconds");
    sleep(Duration::from_secs(15)).await;
    assert_eq!(pod.text(IDENTITY).await, Err(503));
}

/// IAM is not away, and the next one comes soon.
#[tokio::test(start_paused = true)]
async fn an_old_identity_token_is_not_served_while_only_the_account_itself_asks_for_too_many() {
    const IDENTITY: &str = "default/identity?audience=https://a";
    let pod = Pod::warm(GOOGLE_ACCOUNT).await;
    let first = pod.text(IDENTITY).await.expect("an identity token");
    pod.lab.servers.change(|script| script.delay = Duration::from_millis(1));
    sleep(Duration::from_secs(61)).await;
    for number in 0..150 {
        let _ = pod.text(&format!("default/identity?audience=https://{number}")).await;
    }
    for _ in 0..2 {
        assert_eq!(pod.text(IDENTITY).await, Err(503));
    }
    sleep(Duration::from_secs(3)).await;
    let second = pod.text(IDENTITY).await.expect("a turn of the pace");
    assert_ne!(second, first);
}

#[tokio::test(start_paused = true)]
async fn a_short_absence_of_the_api_server_takes_nothing_from_the_next() {
    let pod = Pod::warm(GOOGLE_ACCOUNT).await;
    pod.go_on(29, "before").await;
    pod.lab.servers.change(|script| script.kubernetes = Does::Fail);
    pod.go_on(2, "the first").await;
    pod.lab.servers.change(|script| script.kubernetes = Does::Issue(3600));
    // Paused steps resume by then.
    pod.go_on(5, "between").await;
    pod.lab.servers.change(|script| script.kubernetes = Does::Fail);
    pod.go_on(20, "the second").await;
    let other = pod.ask("default/token?scopes=b").await.expect("its Kubernetes token was renewed between");
    assert_eq!(other.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn the_api_server_may_be_away_for_twenty_minutes() {
    for annotation in [GOOGLE_ACCOUNT, ""] {
        for after in (1..60).step_by(6) {
            let recovered = outage(annotation, after, 20, |script| script.kubernetes = Does::Fail).await;
            let what = "other scopes need Google only";
            assert!(recovered <= Duration::from_millis(300), "{what}, {annotation:?} after {after}: {recovered:?}");
        }
    }
}

/// The exchanges of a fleet in the time after Google was away for 20 minutes.
#[tokio::test(start_paused = true)]
async fn a_fleet_does_not_come_back_all_at_once() {
    const NODES: usize = 30;
    const ACCOUNTS: u8 = 10;
    let fleet: Vec<_> = (0..NODES).map(|_| Arc::new(Lab::new(""))).collect();
    for lab in &fleet {
        let source = Arc::clone(&lab.source);
        tokio::spawn(async move { match renew(source).await {} });
        for account in 0..ACCOUNTS {
            let number = lab.add(account + 2, &format!("direct{account}"));
            let (lab, key) = (Arc::clone(lab), key(number, "default/token"));
            // Like a keeper of the token cache that gets the same token or none.
            tokio::spawn(async move {
                loop {
                    let _ = lab.ask_for(&key).await;
                    sleep(Duration::from_secs(10)).await;
                }
            });
        }
    }
    let exchanges = || fleet.iter().map(|lab| lab.servers.counts()[1]).sum::<usize>();
    let all = |sts: Does| fleet.iter().for_each(|lab| lab.servers.change(|script| script.sts = sts.clone()));
    sleep(Duration::from_secs(24 * 60)).await;
    all(Does::Fail);
    sleep(Duration::from_secs(20 * 60)).await;
    all(Does::Issue(3600));
    let before = exchanges();
    sleep(Duration::from_secs(15)).await;
    let soon = exchanges() - before;
    assert!(soon <= NODES / 2, "{soon} exchanges within 15 s, and each node has one in 150 s");
    sleep(Duration::from_secs(20 * 60)).await;
    assert!(exchanges() - before >= NODES * usize::from(ACCOUNTS) / 2, "{}", exchanges() - before);
}
