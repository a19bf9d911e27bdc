//! [`World`]: the proxy's own parts from a connection's identification to the token, and pods that use them.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower::util::MapRequestLayer;
use tower::{Layer, ServiceExt as _, service_fn};

use super::super::lab::federation;
use super::servers::{Claims, NodeServer, Servers, of_node};
use super::truth::{ACCOUNTS, Answered, GOOGLE, Name, PodTruth, Sender, Truth, What};
use super::{Asking, Case};
use crate::accounts::Accounts;
use crate::cluster::fake::Fake;
use crate::identify::Identify;
use crate::pods::owners::{Attest, TICK};
use crate::pods::{FakeProc, Pod, Scans};
use crate::tests::pod;
use crate::tokens::{Google, Kept, Parts, Sources, WorkloadSource, prefetch, renew};
use crate::workloads::Workloads;
use crate::{Forget, Identity, Settings, Visitor};
use base::clock::BootTime;
use base::hook::Hook;
use protocol::metadata::{MetadataPath, Principal, Query, Request};
use proxy::error::Error;
use proxy::layers::filter;
use proxy::layers::token_cache::{Audit, IsDefault, Store, TokenCache, TokenRow, Tokens};
use proxy::reply::{self, Body};
use proxy::server::Arrival;
use proxy::tokens::TokenKey;
use telemetry::Registry;

/// Delay after which the API server learns of a pod, or of its end.
const LATE: Duration = Duration::from_millis(400);

/// Within this time a pod that has ended gets nothing more.
const NOTICED: Duration = Duration::from_secs(1);

/// The parts that answer requests.
#[derive(Clone)]
struct Proxy {
    identity: Arc<Identity>,
    accounts: Accounts,
    tokens: Tokens<Sources<NodeServer>>,
    truth: Arc<Mutex<Truth>>,
}

/// The pod that runs at an address, or ran there last.
#[derive(Clone)]
struct Guest {
    number: u8,
    /// A connection that it keeps.
    connection: Arc<Visitor>,
}

/// The outcome of a request.
pub(super) struct Outcome {
    pub(super) asking: Asking,
    /// Whether its pod still runs, or it is the node's.
    pub(super) is_due: bool,
    pub(super) has_token: bool,
    /// The reason why it must not have got its token.
    pub(super) fault: Option<String>,
}

/// The proxy, and the pods that use it.
pub(super) struct World {
    proxy: Proxy,
    proc: FakeProc,
    kept: Arc<Kept>,
    store: Arc<Store>,
    registry: Registry,
    guests: [Option<Guest>; 4],
    asked: JoinSet<Outcome>,
    /// Background tasks.
    running: JoinSet<()>,
}

fn settings() -> Settings {
    Settings {
        host_proc: PathBuf::new(),
        state_dir: None,
        own_pod: None,
        attest: Attest::Prefer,
        passthrough: Vec::new(),
        federation: Some(federation()),
        cluster: crate::cluster::Settings {
            node: "n".parse().expect("a name"),
            credential: crate::cluster::Credential::OwnAccount(crate::cluster::Acting::AsItsNode),
        },
    }
}

impl World {
    /// Built like `Shared` and `App`.
    pub(super) fn new(case: &Case) -> Self {
        let (registry, proc, kept) = (Registry::default(), FakeProc::new(), Arc::<Kept>::default());
        let truth = Arc::new(Mutex::new(Truth::new(case.delay, case.life)));
        let servers = Servers::new(&truth);
        let workloads = Arc::new(Workloads::new(Some(federation())));
        let store = Store::with_names(case.cache_bytes, IsDefault::new(Arc::new(workloads.own_accounts())), &registry);
        let (of_kept, of_store) = (Arc::clone(&kept), Arc::clone(&store));
        let forget = Forget::new(Arc::new(move |principal| {
            if let Principal::Workload(number) = principal {
                of_kept.forget(number);
            }
            of_store.forget_all_of(principal);
        }));
        let scans = Scans::in_task(proc.open());
        let identity =
            Identity::new(&settings(), Arc::clone(&workloads), scans, Hook::new(Arc::new(|_, _| 0)), forget, &registry);
        identity.pods().replace([]);
        let (fake, cluster) = Fake::new("n");
        let mut running = JoinSet::new();
        running.spawn(servers.clone().serve_api(fake));
        running.spawn(Arc::clone(&identity).tend());
        let (following, followed) = (cluster.clone(), Arc::clone(&workloads));
        running.spawn(async move { match crate::workloads::follow(following, followed).await {} });
        let accounts = Accounts::new(&workloads).expect("a federation");
        let parts = Parts {
            federation: Arc::clone(workloads.federation().expect("a federation")),
            workloads,
            pods: Arc::clone(identity.pods()),
            cluster,
            google: Google::through(move |request| servers.clone().answer_google(request)),
            kept: Arc::clone(&kept),
        };
        let source = Arc::new(WorkloadSource::new(parts, &registry));
        let (prefetched, renewed) = (Arc::clone(&source), Arc::clone(&source));
        running.spawn(async move { match prefetch(prefetched).await {} });
        running.spawn(async move { match renew(renewed).await {} });
        let sources = Sources::of_node(NodeServer).with_workloads(source);
        let tokens = Tokens::new(Arc::clone(&store), sources);
        let proxy = Proxy { identity, accounts, tokens, truth };
        let guests = [const { None }; 4];
        Self { proxy, proc, kept, store, registry, guests, asked: JoinSet::new(), running }
    }

    pub(super) fn truth(&self) -> MutexGuard<'_, Truth> {
        self.proxy.truth.lock().expect("no panic")
    }

    /// Starts a pod of an account at an address. Whichever pod had that has ended.
    pub(super) async fn begin(&mut self, at: usize, account: usize, is_late: bool) {
        self.end(at, is_late);
        let number = u8::try_from(self.truth().pods.len() + 1).expect("few pods");
        let (namespace, name) = ACCOUNTS[account];
        let pod = Pod { created: number.into(), ..pod(number, namespace, name) };
        let uid = pod.uid.to_string();
        self.truth().pods.push(PodTruth {
            account,
            name: pod.name.to_string(),
            uid: uid.clone(),
            is_in_api: true,
            ended: None,
        });
        let network = format!("of-{number}");
        self.proc.network(&network, &[&address(at).to_string()]);
        let tick = BootTime::now().as_nanos() / u64::try_from(TICK.as_nanos()).expect("small");
        self.proc.of_pod(100 + u32::from(number), tick, &uid, &network);
        let proxy = self.proxy.clone();
        let report = async move {
            sleep(if is_late { LATE } else { Duration::ZERO }).await;
            if proxy.truth.lock().expect("no panic").pod(number).is_in_api {
                proxy.identity.pods().apply(pod);
            }
        };
        self.running.spawn(report);
        // Connections of the tick in which it began may belong to the pod before it.
        sleep(2 * TICK).await;
        self.guests[at] = Some(Guest { number, connection: self.proxy.connect(address(at)) });
    }

    /// Ends the pod at an address.
    pub(super) fn end(&mut self, at: usize, is_late: bool) {
        let Some(number) = self.guests[at].as_ref().map(|guest| guest.number) else { return };
        if self.proxy.has_ended(Sender::Pod(number)) {
            return;
        }
        self.proc.end(100 + u32::from(number));
        self.truth().pods[usize::from(number) - 1].ended = Some(BootTime::now());
        let (proxy, uid) = (self.proxy.clone(), pod(number, "", "").uid);
        self.running.spawn(async move {
            sleep(if is_late { LATE } else { Duration::ZERO }).await;
            proxy.truth.lock().expect("no panic").pods[usize::from(number) - 1].is_in_api = false;
            proxy.identity.pods().remove(uid);
        });
    }

    /// Sends a request, and does not wait for the response. A pod that has ended sends on the connection that it kept.
    pub(super) fn ask(&mut self, asking: Asking) {
        let guest = match asking.at.map(|at| self.guests[at].clone()) {
            None => None,
            Some(Some(guest)) => Some(guest),
            Some(None) => return,
        };
        let proxy = self.proxy.clone();
        self.asked.spawn(async move {
            sleep(Duration::from_millis(asking.after)).await;
            let sender = guest.as_ref().map_or(Sender::Node, |guest| Sender::Pod(guest.number));
            // Its address may be another pod's by now.
            let connection = match guest {
                Some(guest) if proxy.has_ended(sender) || !asking.is_new => guest.connection,
                _ => proxy.connect(asking.at.map_or(NODE, address)),
            };
            proxy.ask(asking, sender, connection).await
        });
    }

    /// The outcomes of all requests, once they are answered.
    pub(super) async fn outcomes(&mut self) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        while let Some(outcome) = self.asked.join_next().await {
            outcomes.push(outcome.expect("no panic"));
        }
        outcomes
    }

    /// Ends all pods. Returns what is still kept of them afterwards.
    pub(super) async fn leave(&mut self) -> Option<String> {
        (0..self.guests.len()).for_each(|at| self.end(at, false));
        sleep(NOTICED).await;
        if let Some(key) = self.cached(|row| row.token.is_some()) {
            return Some(format!("a token is left of {key:?}"));
        }
        if !self.kept.is_empty() {
            return Some("the tokens of the steps are left".to_owned());
        }
        // A request that came with the end left its failure.
        sleep(Duration::from_secs(65)).await;
        self.cached(|_| true).map(|key| format!("an entry is left of {key:?}"))
    }

    /// The first such entry of a pod in the cache.
    fn cached(&self, is: impl Fn(&TokenRow) -> bool) -> Option<Arc<TokenKey>> {
        let (rows, _) = self.store.rows(usize::MAX, BootTime::now());
        rows.into_iter().find(|row| row.key.principal != Principal::Node && is(row)).map(|row| row.key)
    }

    /// Number of evicted tokens.
    pub(super) fn evictions(&self) -> u64 {
        let figures = self.registry.render();
        let line = figures.lines().find_map(|line| line.strip_prefix("metadata_proxy_token_evictions_total "));
        line.expect("it is counted").parse().expect("a number")
    }
}

const NODE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 128, 0, 2));

fn address(at: usize) -> IpAddr {
    IpAddr::from([10, 8, 0, u8::try_from(at).expect("few addresses") + 1])
}

/// The path of a request.
fn target(asking: Asking) -> String {
    let account = match asking.name {
        Name::Default => "default",
        Name::Pool => "shop.svc.id.goog",
        Name::Google(google) => GOOGLE[google],
    };
    let token = match asking.what {
        What::Access("") => "token".to_owned(),
        What::Access(scopes) => format!("token?scopes={scopes}"),
        What::Identity(audience) => format!("identity?audience={audience}"),
    };
    format!("/computeMetadata/v1/instance/service-accounts/{account}/{token}")
}

impl Proxy {
    fn connect(&self, from: IpAddr) -> Arc<Visitor> {
        Visitor::new(Arc::clone(&self.identity), Arrival::now(SocketAddr::new(from, 40000)))
    }

    fn has_ended(&self, sender: Sender) -> bool {
        let truth = self.truth.lock().expect("no panic");
        matches!(sender, Sender::Pod(number) if truth.pod(number).ended.is_some())
    }

    async fn ask(self, asking: Asking, sender: Sender, connection: Arc<Visitor>) -> Outcome {
        let (began, identified) = (BootTime::now(), Arc::<OnceLock<_>>::default());
        let answer = self.answer(asking, sender, &connection, &identified).await;
        let is_due = !self.has_ended(sender);
        let mut outcome = Outcome { asking, is_due, has_token: false, fault: None };
        let Ok(response) = answer else { return outcome };
        if response.status() != StatusCode::OK {
            return outcome;
        }
        outcome.has_token = true;
        let (claims, expires_in) = read(response, asking.what).await;
        let (name, what, at) = (asking.name, asking.what, BootTime::now());
        let identified = *identified.get().expect("it was identified");
        let answered = Answered { sender, name, what, identified, at, claims, expires_in };
        let truth = self.truth.lock().expect("no panic");
        let is_gone = |number| truth.pod(number).ended.is_some_and(|ended| began > ended + NOTICED);
        let fault = match sender {
            Sender::Pod(number) if is_gone(number) => Err("its pod has ended".to_owned()),
            _ => truth.judge(&answered),
        };
        outcome.fault = fault.err().map(|fault| format!("{fault}: {answered:#?}\n{truth:#?}"));
        outcome
    }

    /// Handles a request like `classify` and the layers below it.
    async fn answer(
        &self,
        asking: Asking,
        sender: Sender,
        connection: &Arc<Visitor>,
        identified: &Arc<OnceLock<BootTime>>,
    ) -> Result<Response<Body>, Error> {
        let target: http::uri::PathAndQuery = target(asking).parse().expect("a target");
        let query = Query::parse(target.query()).expect("a query");
        let mut request = Request::get(MetadataPath::parse(&target).expect("a path"), query);
        let from = asking.at.map_or(NODE, address);
        request.peer = Some(SocketAddr::new(from, 40000));
        (request.principal, request.pod) = connection.sender()?;
        let (truth, identified) = (Arc::clone(&self.truth), Arc::clone(identified));
        let notice = MapRequestLayer::new(move |request: Box<Request>| {
            identified.get_or_init(BootTime::now);
            if let Sender::Pod(number) = sender {
                let mut truth = truth.lock().expect("no panic");
                let account = truth.pod(number).account;
                truth.was_asked(account);
            }
            request
        });
        // The metadata server would give the node's token to every client.
        let forward = service_fn(async |_: Box<Request>| {
            let token = of_node("").token();
            let body = format!(r#"{{"access_token":"{token}","expires_in":3599,"token_type":"Bearer"}}"#);
            Ok::<_, Error>(reply::local(StatusCode::OK, reply::APPLICATION_TEXT, body))
        });
        let cached = filter::layer(TokenCache::new(&self.tokens, Audit::Off)).layer(forward);
        let noticed = notice.layer(filter::layer(self.accounts.clone()).layer(cached));
        filter::layer(Identify::new(connection, true)).layer(noticed).oneshot(Box::new(request)).await
    }
}

/// The claims of a token, and the time until its end according to the response.
async fn read(response: Response<Body>, what: What) -> (Claims, Option<u64>) {
    let body = response.into_body().map_err(|_| ()).collect().await.expect("it is in memory").to_bytes();
    match what {
        What::Access(_) => {
            let body: Value = serde_json::from_slice(&body).expect("JSON");
            (Claims::of(body["access_token"].as_str().expect("text")), body["expires_in"].as_u64())
        }
        What::Identity(_) => (Claims::of(std::str::from_utf8(&body).expect("text")), None),
    }
}
