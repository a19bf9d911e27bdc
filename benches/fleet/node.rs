//! One node: the token cache, the steps to a pod's token, renewal, prefetch and the records of a hand-over, as in the proxy.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use base::clock::BootTime;
use http_body_util::BodyExt as _;
use identity::cluster::fake::Fake;
use identity::pods::{Pod, PodUid, Pods};
use identity::tokens::{Google, Kept, Parts, Sources, WorkloadRecord, WorkloadSource, prefetch, renew};
use identity::workloads::{self, Account, ClusterUri, Endpoint, Federation, Prefetch, Trust, WorkloadPool, Workloads};
use protocol::metadata::{Endpoint as Path, MetadataPath, Principal, Query, Request};
use proxy::failure::TokenFailure;
use proxy::layers::filter::{Decide as _, Decision};
use proxy::layers::token_cache::{Audit, DEFAULT_LIMIT_BYTES, IsDefault, Store, TokenCache, TokenRecord, Tokens};
use proxy::shares::Client;
use proxy::tokens::{Fetched, NoToken, TokenKey, TokenSource, Urgency};
use telemetry::Registry;
use tokio::task::JoinSet;

use crate::servers::{Servers, text_of};

const TARGET: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

/// The node's own token, which is not asked for.
#[derive(Debug)]
struct NoNode;

impl TokenSource for NoNode {
    fn deadline(&self) -> Duration {
        proxy::failure::UPSTREAM_TIMEOUT
    }

    async fn fetch(&self, _: &TokenKey, _: Client, _: Urgency) -> Result<Fetched, NoToken> {
        Err(TokenFailure::ForeignPrincipal.into())
    }
}

/// A proxy on a node. Its tasks end when it is dropped.
pub struct Node {
    accounts: Vec<Arc<Account>>,
    workloads: Arc<Workloads>,
    source: Arc<WorkloadSource>,
    tokens: Tokens<Sources<NoNode>>,
    cache: TokenCache<Sources<NoNode>>,
    _tasks: JoinSet<()>,
}

/// What a pod got.
pub enum Answer {
    /// A token for this many seconds.
    Token(u64),
    /// A refusal with this status.
    Refused(u16),
}

impl Node {
    /// Starts a proxy on a node whose pods are scheduled already, each with an account of its own. It takes over from `before`.
    pub async fn start(number: u32, accounts: u16, servers: &Arc<Servers>, before: Option<&Self>) -> Arc<Self> {
        let (fake, cluster) = Fake::new(&format!("node-{number}"));
        let google = Arc::clone(servers);
        let google = Google::through(move |request| Arc::clone(&google).google(request));
        let workloads = Arc::new(Workloads::new(Some(federation())));
        let pods = Arc::<Pods>::default();
        let scheduled: Vec<_> = (0..accounts).map(pod).collect();
        pods.replace(scheduled.iter().cloned());
        let (registry, kept) = (Registry::default(), Arc::<Kept>::default());
        let federation = Arc::clone(workloads.federation().expect("tokens"));
        let parts =
            Parts { federation, workloads: Arc::clone(&workloads), pods, cluster: cluster.clone(), google, kept };
        let source = Arc::new(WorkloadSource::new(parts, &registry));
        let is_default = IsDefault::new(Arc::new(workloads.own_accounts()));
        let store = Store::with_names(DEFAULT_LIMIT_BYTES, is_default, &registry);
        let tokens = Tokens::new(store, Sources::of_node(NoNode).with_workloads(Arc::clone(&source)));
        if let Some(before) = before {
            before.source.settle().await;
            hand_over(before, &source, &tokens);
        }
        let accounts = scheduled.iter().map(|pod| workloads.of_pod(pod)).collect();
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(servers).kubernetes(number, fake));
        let (followed, prefetched, renewed) = (Arc::clone(&workloads), Arc::clone(&source), Arc::clone(&source));
        tasks.spawn(async move { match workloads::follow(cluster, followed).await {} });
        tasks.spawn(async move { match prefetch(prefetched).await {} });
        tasks.spawn(async move { match renew(renewed).await {} });
        let cache = TokenCache::new(&tokens, Audit::default());
        Arc::new(Self { accounts, workloads, source, tokens, cache, _tasks: tasks })
    }

    /// Ends the keepers of its tokens, which have tasks of their own.
    pub fn stop(&self) {
        for account in &self.accounts {
            self.tokens.store().forget_all_of(account.principal());
        }
    }

    /// A pod's request for its token.
    pub async fn ask(&self, account: u16) -> Answer {
        let [high, low] = account.to_be_bytes();
        let peer = Some((IpAddr::V4(Ipv4Addr::new(10, 0, high, low)), 40_000).into());
        let target = TARGET.parse().expect("a target");
        let path = MetadataPath::parse(&target).expect("a path");
        let principal = self.accounts[usize::from(account)].principal();
        let own = Request::own(Path::from_path(&path), TARGET, Query::default(), principal);
        if let Principal::Workload(number) = principal {
            // As the layers before do: an account is read again each minute while it is used.
            self.workloads.requested(number);
        }
        let answer = match self.cache.decide(Box::new(Request { peer, ..own })) {
            Decision::Answer(answer) => answer,
            Decision::Wait(answer) => answer.await,
            Decision::Pass(_) | Decision::Undecided(_) => unreachable!("a request for a token"),
        };
        match answer {
            Ok(response) if response.status().is_success() => {
                let body = response.into_body().collect().await.expect("in memory").to_bytes();
                Answer::Token(text_of(&body, "expires_in").parse().expect("a number"))
            }
            Ok(response) => Answer::Refused(response.status().as_u16()),
            Err(error) => Answer::Refused(error.status().as_u16()),
        }
    }
}

/// Hands over in the order and form of the proxy's hand-over.
fn hand_over(before: &Node, source: &WorkloadSource, tokens: &Tokens<Sources<NoNode>>) {
    let now = BootTime::now();
    let mut numbers = std::collections::HashMap::new();
    for exported in before.source.exported() {
        let record = serde_json::to_vec(&before.source.record(&exported, now)).expect("JSON");
        let record: WorkloadRecord = serde_json::from_slice(&record).expect("a record");
        if let Ok((number, _)) = source.take_over(record, now) {
            numbers.insert(exported.number, number);
        }
    }
    for exported in before.tokens.store().exported(now) {
        let Principal::Workload(number) = exported.principal() else { continue };
        let record = serde_json::to_vec(&exported.record()).expect("JSON");
        let record: TokenRecord = serde_json::from_slice(&record).expect("a record");
        if let Some(number) = numbers.get(&number) {
            let _ = tokens.take_over(Principal::Workload(*number), &record, now);
        }
    }
}

fn pod(number: u16) -> Pod {
    Pod {
        uid: PodUid::parse(&format!("{number:032x}")).expect("32 digits"),
        namespace: "a".into(),
        name: format!("pod-{number}").into(),
        account: format!("account{number}").into(),
        host_network: false,
        ended: false,
        terminating: false,
        created: 0,
        addresses: Vec::new(),
    }
}

fn federation() -> Federation {
    let cluster = ClusterUri::parse("https://container.googleapis.com/v1/projects/shop/c").expect("a URI");
    Federation {
        trust: Trust::Pool(WorkloadPool::parse("shop.svc.id.goog").expect("a pool"), cluster),
        token_audience: None,
        sts: Endpoint::parse("https://sts.example").expect("a URL"),
        iam: Endpoint::parse("https://iam.example").expect("a URL"),
        google_ca: None,
        prefetch: Prefetch::default(),
        bound_tokens: false,
    }
}
