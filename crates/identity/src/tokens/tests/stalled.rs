//! A stalled server takes nothing from the other servers.

use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower::{Layer as _, ServiceExt as _, service_fn};

use super::lab::{DIRECT, Does, GOOGLE_ACCOUNT, Lab, Script, request_of};
use super::outage::Source;
use protocol::metadata::{Request, WorkloadId};
use proxy::error::Error;
use proxy::layers::filter;
use proxy::layers::token_cache::{Audit, DEFAULT_LIMIT_BYTES, Store, TokenCache, Tokens};
use proxy::reply::Body;
use telemetry::Registry;

/// Pods of the node, each with an account of its own that is linked.
const LINKED: u8 = 110;

/// Interval between the rounds of [`Node::rounds`].
const INTERVAL: Duration = Duration::from_millis(3500);

/// A request that got its answer too late, or no token: the pod that sent it, the answer and the time.
type Late = (u8, String, Duration);

/// A node whose pods send requests through one token cache.
#[derive(Clone)]
struct Node {
    lab: Arc<Lab>,
    tokens: Tokens<Source>,
    linked: Vec<(u8, WorkloadId)>,
}

impl Node {
    /// Gives each of the linked accounts federated tokens, which are due for renewal.
    async fn warm() -> Self {
        let lab = Arc::new(Lab::new(GOOGLE_ACCOUNT));
        let store = Store::new(4 * DEFAULT_LIMIT_BYTES, &Registry::default());
        let tokens = Tokens::new(store, Source(Arc::clone(&lab.source)));
        let linked = (2..LINKED + 2).map(|pod| (pod, lab.add(pod, &format!("app{pod}")))).collect();
        let node = Self { lab, tokens, linked };
        while !node.round("default/token").await.is_empty() {
            sleep(INTERVAL).await;
        }
        sleep(Duration::from_secs(2200)).await;
        node
    }

    async fn ask(&self, pod: u8, number: WorkloadId, what: &str) -> Result<Response<Body>, Error> {
        let nothing_else = service_fn(async |request: Box<Request>| -> Result<Response<Body>, Error> {
            panic!("no token request: {request:?}")
        });
        let request = Request { peer: Some(([10, 0, 0, pod], 40_000).into()), ..request_of(number, what) };
        filter::layer(TokenCache::new(&self.tokens, Audit::default()))
            .layer(nothing_else)
            .oneshot(Box::new(request))
            .await
    }

    /// Sends a request, and returns what is wrong with the answer.
    async fn late(&self, pod: u8, number: WorkloadId, what: &str) -> Option<Late> {
        let began = Instant::now();
        let answer = self.ask(pod, number, what).await;
        let text = match answer {
            Ok(answer) if answer.status() == StatusCode::OK && began.elapsed() < Duration::from_secs(1) => return None,
            Ok(answer) => answer.status().to_string(),
            Err(error) => error.to_string(),
        };
        Some((pod, text, began.elapsed()))
    }

    /// Requests of all linked pods at once.
    async fn round(&self, what: &str) -> Vec<Late> {
        let mut asking = JoinSet::new();
        for (pod, number) in self.linked.clone() {
            let (node, what) = (self.clone(), what.to_owned());
            asking.spawn(async move { node.late(pod, number, &what).await });
        }
        asking.join_all().await.into_iter().flatten().collect()
    }

    /// Eight times, all linked pods request an identity token that they did not have yet.
    async fn rounds(&self) -> Vec<Late> {
        let mut late = Vec::new();
        for round in 0..8 {
            late.extend(self.round(&format!("default/identity?audience=https://a{round}")).await);
            sleep(INTERVAL).await;
        }
        late
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_that_iam_alone_gives_do_not_notice_a_stalled_sts_or_api_server() {
    let stalls: [fn(&mut Script); 2] = [|script| script.sts = Does::Stall, |script| script.kubernetes = Does::Stall];
    for stall in stalls {
        let node = Node::warm().await;
        node.lab.servers.change(stall);
        let late = node.rounds().await;
        assert_eq!(late.len(), 0, "of 880: {:?}", late.first());
    }
}

#[tokio::test(start_paused = true)]
async fn new_direct_accounts_do_not_notice_a_stalled_iam() {
    let node = Node::warm().await;
    node.lab.servers.change(|script| script.iam = Does::Stall);
    let linked = tokio::spawn({
        let node = node.clone();
        async move { node.rounds().await.len() }
    });
    let mut late = Vec::new();
    for pod in 120..200 {
        let number = node.lab.add(pod, &format!("{DIRECT}{pod}"));
        late.extend(node.late(pod, number, "default/token").await);
        sleep(Duration::from_millis(250)).await;
    }
    assert_eq!(late.len(), 0, "of 80: {:?}", late.first());
    assert_eq!(linked.await.expect("no panic"), 880, "IAM stalls");
}

#[tokio::test(start_paused = true)]
async fn parameters_without_effect_cost_no_exchange() {
    let node = Node::warm().await;
    let (pod, number) = node.linked[0];
    let before = node.lab.servers.counts();
    for value in 0..500 {
        for param in ["transport", "bindCertificateFingerprint", "enforce_scopes", "binding-enforcement"] {
            let late = node.late(pod, number, &format!("default/token?{param}={value}")).await;
            assert_eq!(late, None, "{param}={value}");
        }
    }
    assert_eq!(node.lab.servers.counts(), before);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_server_is_asked_once_a_second_and_named() {
    let node = Node::warm().await;
    node.lab.servers.change(|script| script.iam = Does::Stall);
    let texts: Vec<_> = node.rounds().await.into_iter().map(|(_, text, _)| text).collect();
    for text in &texts {
        assert!(text.contains("Google's IAM Credentials API"), "{text}");
        assert!(text.contains("identity doctor") && !text.contains("metadata server"), "{text}");
    }
    let asked = || node.lab.servers.counts()[2];
    let (before, began) = (asked(), Instant::now());
    while began.elapsed() < Duration::from_secs(20) {
        for (pod, number) in &node.linked {
            let began = Instant::now();
            let _ =
                tokio::time::timeout(Duration::from_millis(1), node.ask(*pod, *number, "default/token?scopes=b")).await;
            assert!(began.elapsed() <= Duration::from_millis(1));
        }
    }
    let probes = asked() - before;
    assert!((15..=22).contains(&probes), "{probes} in 20 s");

    node.lab.servers.change(|script| script.iam = Does::Issue(3600));
    let (began, (pod, number)) = (Instant::now(), node.linked[50]);
    while node.late(pod, number, "default/token?scopes=c").await.is_some() {
        assert!(began.elapsed() < Duration::from_secs(2), "it is noticed within a second that IAM answers");
        sleep(Duration::from_millis(50)).await;
    }
}
