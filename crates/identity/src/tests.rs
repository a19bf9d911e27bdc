//! Pods that come and go, on a `/proc` of files and with the API server's view set by the test.

mod ends;
mod leads;
mod scanning;
mod told;
mod unknown;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;

use tokio::time::{Instant, sleep};

use super::tend::VERIFY_INTERVAL;
use super::waiting::{MAX_WAITING, MAX_WAITING_OF_ONE};
use super::*;
use crate::cluster::Annotations;
use crate::pods::{FakeProc, Pod, PodUid};
use crate::workloads::Federation;
use crate::workloads::federation::tests::elsewhere;
use protocol::metadata::{Doubt, Principal, Sender, ServiceAccount, Unidentified};

const ADDR: &str = "10.8.0.5";

/// Time within which an unknown pod's processes are scanned twice.
const FIRST_LOOKS: Duration = Duration::from_millis(60);

/// A running pod.
pub(crate) fn pod(number: u8, namespace: &str, account: &str) -> Pod {
    Pod {
        uid: PodUid::parse(&format!("{number:032x}")).expect("32 digits"),
        namespace: namespace.into(),
        name: format!("p{number}").into(),
        account: account.into(),
        host_network: false,
        ended: false,
        terminating: false,
        created: 0,
        addresses: Vec::new(),
    }
}

/// The same pod, for which the API server reports an address.
fn reported(pod: Pod, addr: &str) -> Pod {
    Pod { addresses: vec![addr.parse().expect("an address")], ..pod }
}

/// A client on a node without pods.
pub(crate) fn stranger(peer: SocketAddr) -> Arc<Visitor> {
    Visitor::new(Node::new(Attest::Prefer).identity, Arrival::now(peer))
}

/// A node, and the resets of its connections.
struct Node {
    proc: FakeProc,
    identity: Arc<Identity>,
    cuts: Arc<Mutex<Vec<(IpAddr, BootTime)>>>,
    forgotten: Arc<AtomicUsize>,
}

impl Node {
    fn new(attest: Attest) -> Self {
        Self::with(attest, None, Scans::in_task)
    }

    fn with(attest: Attest, federation: Option<Federation>, scans: fn(Sandboxes) -> Scans) -> Self {
        let proc = FakeProc::new();
        let (cuts, forgotten) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<AtomicUsize>::default());
        let (of_cuts, of_forgotten) = (Arc::clone(&cuts), Arc::clone(&forgotten));
        let cut_from = CutFrom::new(Arc::new(move |addr, before| {
            of_cuts.lock().push((addr, before));
            1
        }));
        let forget = Forget::new(Arc::new(move |_| {
            of_forgotten.fetch_add(1, Relaxed);
        }));
        let workloads = Arc::new(Workloads::new(federation.clone()));
        let settings = Settings {
            host_proc: PathBuf::new(),
            state_dir: None,
            own_pod: None,
            attest,
            passthrough: vec![AccountName::parse("kube-system/agent").expect("a name")],
            federation,
            cluster: crate::cluster::Settings {
                node: "n".parse().expect("a name"),
                credential: crate::cluster::Credential::OwnAccount(crate::cluster::Acting::AsItsNode),
            },
        };
        let identity = Identity::new(&settings, workloads, scans(proc.open()), cut_from, forget, &Registry::default());
        identity.pods.replace([]);
        Self { proc, identity, cuts, forgotten }
    }

    /// Starts a pod whose network has an address.
    fn start(&self, pid: u32, pod: &Pod, addr: &str) {
        self.start_at(50, pid, pod, addr);
    }

    /// The same, and the API server reports the pod.
    fn run(&self, pid: u32, pod: &Pod, addr: &str) {
        self.start(pid, pod, addr);
        self.identity.pods.apply(pod.clone());
    }

    /// Starts a pod a number of clock ticks after boot.
    fn start_at(&self, ticks: u64, pid: u32, pod: &Pod, addr: &str) {
        let network = format!("of-{pid}");
        self.proc.network(&network, &[addr]);
        self.proc.of_pod(pid, ticks, &pod.uid.to_string(), &network);
    }

    /// A new connection.
    fn connect(&self, addr: &str) -> Arc<Visitor> {
        let peer = SocketAddr::new(addr.parse().expect("an address"), 40000);
        Visitor::new(Arc::clone(&self.identity), Arrival::now(peer))
    }

    /// A new connection that came in by an interface, after the last scan.
    async fn connect_by(&self, interface: u32, addr: &str) -> Arc<Visitor> {
        sleep(Duration::from_millis(1)).await;
        let peer = SocketAddr::new(addr.parse().expect("an address"), 40000);
        let arrival = Arrival { interface: NonZeroU32::new(interface), ..Arrival::now(peer) };
        Visitor::new(Arc::clone(&self.identity), arrival)
    }

    /// Scans the processes.
    async fn scan(&self) {
        // A process that began in this moment is not to be missed.
        sleep(Duration::from_millis(1)).await;
        self.identity.scans.since(BootTime::now()).await;
    }

    /// The client of a connection, after another scan.
    async fn sender(&self, visitor: &Visitor) -> Result<Sender, Outdated> {
        self.scan().await;
        visitor.sender()
    }

    fn cuts(&self) -> usize {
        self.cuts.lock().len()
    }
}

fn name((_, pod): &Sender) -> &str {
    pod.as_ref().map_or("", |pod| &pod.name)
}

#[tokio::test(start_paused = true)]
async fn pods_are_told_apart_by_account_and_connections_stay_theirs() {
    let node = Node::new(Attest::Prefer);
    let (one, two, same) = (pod(1, "a", "app"), pod(2, "b", "app"), pod(3, "a", "app"));
    for (pid, (pod, addr)) in (100..).zip([(&one, "10.8.0.1"), (&two, "10.8.0.2"), (&same, "fd00::3")]) {
        node.run(pid, pod, addr);
    }
    let connections = ["10.8.0.1", "10.8.0.2", "fd00::3", "::ffff:10.8.0.1"].map(|addr| node.connect(addr));
    node.scan().await;
    let senders = connections.each_ref().map(|visitor| visitor.sender().expect("not outdated"));
    assert_eq!(senders.each_ref().map(name), ["p1", "p2", "p3", "p1"]);
    let principals = senders.each_ref().map(|(principal, _)| *principal);
    assert!(matches!(principals[0], Principal::Workload(_)));
    assert_ne!(principals[0], principals[1]);
    assert_eq!((principals[0], principals[0]), (principals[2], principals[3]));
    assert_eq!(senders[0].1.as_ref().map(|pod| pod.evidence), Some("kernel"));
}

#[tokio::test(start_paused = true)]
async fn accounts_that_are_passed_through_and_the_node_itself_act_as_the_node() {
    let node = Node::new(Attest::Prefer);
    let agent = pod(1, "kube-system", "agent");
    node.run(100, &agent, ADDR);
    let (principal, pod) = node.sender(&node.connect(ADDR)).await.expect("not outdated");
    assert_eq!((principal, pod.map(|pod| pod.name.to_string())), (Principal::Node, Some("p1".to_owned())));
    for addr in ["10.128.0.2", "127.0.0.1", "::1"] {
        assert_eq!(node.connect(addr).sender(), Ok((Principal::Node, None)), "{addr}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_gives_itself_the_nodes_address_does_not_become_the_node_nor_the_node_it() {
    let node = Node::new(Attest::Prefer);
    node.run(100, &pod(1, "a", "app"), "10.128.0.2");
    node.scan().await;
    assert_eq!(node.connect("10.128.0.2").sender(), Ok((Principal::Node, None)));
}

#[test]
fn accounts_have_a_namespace_and_a_name() {
    for text in ["a/b", "kube-system/fluentbit-gke", "a/b.c"] {
        assert_eq!(AccountName::parse(text).map(|account| account.to_string()), Some(text.to_owned()));
    }
    for text in ["", "a", "/a", "a/", "a/b/c", "A/b", "a/b c", "*/b"] {
        assert_eq!(AccountName::parse(text), None, "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_stays_its_pods_when_the_account_changes() {
    let node = Node::with(Attest::Prefer, Some(elsewhere()), Scans::in_task);
    let known = pod(1, "a", "app");
    node.start(100, &known, ADDR);
    let tending = tokio::spawn(Arc::clone(&node.identity).tend());
    sleep(Duration::from_millis(1)).await;
    node.identity.pods.apply(known);
    let accounts = node.identity.workloads().wanted().await;
    assert_eq!(accounts.len(), 1, "it is read before its pod asks for anything");
    let visitor = node.connect(ADDR);
    let before = node.sender(&visitor).await.expect("not outdated").0;
    let email = ServiceAccount::Email("app@shop.iam.gserviceaccount.com".into());
    let workloads = node.identity.workloads();
    let is_own = |principal| match principal {
        Principal::Workload(number) => workloads.is_own(number, &email),
        other => panic!("{other}"),
    };
    assert_eq!(is_own(before), None, "it is not known yet");
    workloads.found(&accounts[0], "u", &Annotations::default());
    assert_eq!(is_own(before), Some(false));
    // No scan follows.
    sleep(VERIFY_INTERVAL * 2).await;
    let linked =
        Annotations { google_account: Some("app@shop.iam.gserviceaccount.com".into()), ..Annotations::default() };
    workloads.found(&accounts[0], "u", &linked);
    let after = visitor.sender().expect("not outdated").0;
    assert_ne!(before, after);
    assert_eq!((is_own(after), is_own(before)), (Some(true), None));
    sleep(VERIFY_INTERVAL * 2).await;
    assert_eq!(node.forgotten.load(Relaxed), 1);
    assert!(visitor.sender().is_ok());
    tending.abort();
}
