//! [`ApiServer`]: a real kube-apiserver with its etcd, built by `tests/kube/build`.
//!
//! It has no kubelet, scheduler or controllers: pods are created with a node's name, and tests say what became of them.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

mod client;
mod forwarder;
pub mod keys;
mod manifests;
mod objects;

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use crate::namespace::Namespace;

use client::User;

pub use client::Client;
pub use forwarder::Forwarder;
pub use manifests::{
    BEFORE_1_34, FENCED, KUBELET, OWN_ACCOUNT, OWN_NODE, SHORT_TOKENS, STARTUP_TAINT, objects as manifest,
};
pub use objects::PodObject;

/// The node whose name the certificate of [`ApiServer::node_kubeconfig`] bears.
pub const NODE: &str = "node-1";

/// How long a start may take. It takes 5 s on an idle computer, and minutes on an emulated one.
const START_TIMEOUT: Duration = Duration::from_secs(600);

/// One API server starts at a time: a start keeps a processor busy for seconds, and its ports are free until it is done.
static STARTING: Mutex<()> = Mutex::new(());

/// Where an API server runs: in a network namespace, or in that of the test.
pub type Place = Option<Arc<Namespace>>;

/// A running API server. It ends with this value, and its data with it.
pub struct ApiServer {
    /// Keys, kubeconfigs, logs and etcd's data.
    dir: PathBuf,
    place: Place,
    addr: SocketAddr,
    etcd_port: u16,
    etcd: Child,
    server: Option<Child>,
    /// Whether nodes are confined to their own pods.
    confines_nodes: bool,
    /// Whether nodes may read the service accounts of their pods, as from Kubernetes 1.34 on.
    nodes_read_accounts: bool,
    /// Whether it writes down each request.
    writes_down: bool,
}

/// A request that the API server has written down.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requested {
    pub verb: String,
    /// The resource and its part, such as `serviceaccounts/token`.
    pub resource: String,
    pub uri: String,
}

impl ApiServer {
    /// Starts it on loopback, at free ports, and waits until it is ready.
    pub fn start(place: Place) -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let name = format!("kube-{}-{}", std::process::id(), STARTED.fetch_add(1, Relaxed));
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&dir).expect("target/tmp can be written");
        keys::make(&dir);
        let _turn = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let [port, etcd_port, peer_port] = free_ports();
        let mut etcd = command(place.as_ref(), &programs().join("etcd"), &dir, "etcd.log");
        etcd.arg("--data-dir").arg(dir.join("etcd")).args(etcd_flags(etcd_port, peer_port));
        let etcd = etcd.spawn().expect("it was built");
        let addr = (Ipv4Addr::LOCALHOST, port).into();
        let (confines_nodes, nodes_read_accounts, writes_down) = (true, true, false);
        let mut server =
            Self { dir, place, addr, etcd_port, etcd, server: None, confines_nodes, nodes_read_accounts, writes_down };
        server.launch();
        server
    }

    /// Starts it again without the admission plugin that confines nodes to their own pods.
    pub fn restart_with_free_nodes(&mut self) {
        self.confines_nodes = false;
        self.restart();
    }

    /// Starts it again so that nodes may not read service accounts, as before Kubernetes 1.34.
    pub fn restart_as_before_1_34(&mut self) {
        self.nodes_read_accounts = false;
        self.restart();
    }

    /// Starts it again so that it writes down each request.
    pub fn restart_with_audit(&mut self) {
        let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n\
                      omitStages: [ResponseStarted, ResponseComplete, Panic]\n";
        fs::write(self.dir.join("audit.yaml"), policy).expect("target/tmp can be written");
        self.writes_down = true;
        self.restart();
    }

    /// The requests of a user so far.
    pub fn requests_of(&self, user: &str) -> Vec<Requested> {
        let log = fs::read_to_string(self.dir.join("audit.log")).unwrap_or_default();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        lines
            .filter(|line| line["user"]["username"] == user)
            .map(|line| {
                let object = &line["objectRef"];
                let parts = [text(&object["resource"]), text(&object["subresource"])];
                let resource = parts.join("/").trim_end_matches('/').to_owned();
                Requested { verb: text(&line["verb"]), resource, uri: text(&line["requestURI"]) }
            })
            .collect()
    }

    /// The process ID of the API server, where it is not in a namespace.
    pub fn id(&self) -> u32 {
        self.server.as_ref().map(Child::id).expect("it runs")
    }

    /// A kubeconfig of any node, for this server.
    pub fn kubeconfig_of(&self, node: &str) -> PathBuf {
        let user = self.certificate("admin");
        let user = user.trim_end_matches('}');
        let user = format!("{user}, as: \"system:node:{node}\", as-groups: [\"system:nodes\"]}}");
        keys::kubeconfig(&self.dir, node, self.addr, &user)
    }

    /// Its address, in the namespace where it runs.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The directory of its files, which ends with it.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Ends it without a word. etcd goes on.
    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            end(&mut server);
        }
    }

    /// Starts it again at the same address with the same data, and waits until it is ready.
    pub fn restart(&mut self) {
        self.kill();
        let _turn = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        self.launch();
    }

    fn launch(&mut self) {
        let mut server = command(self.place.as_ref(), &programs().join("kube-apiserver"), &self.dir, "apiserver.log");
        server.args(flags(self.addr, self.etcd_port));
        server.args(self.confines_nodes.then_some("--enable-admission-plugins=NodeRestriction"));
        let gate = "--feature-gates=KubeletServiceAccountTokenForCredentialProviders=false";
        server.args((!self.nodes_read_accounts).then_some(gate));
        let audit = ["--audit-policy-file=audit.yaml", "--audit-log-path=audit.log"];
        server.args(self.writes_down.then_some(audit).into_iter().flatten());
        self.server = Some(server.spawn().expect("it was built"));
        let began = Instant::now();
        let mut admin = self.admin();
        while !admin.ask("GET", "/readyz", None).is_ok_and(|answer| answer.status == 200) {
            let status = self.server.as_mut().and_then(|server| server.try_wait().ok().flatten());
            let has_ended = status.is_some() || began.elapsed() > START_TIMEOUT;
            assert!(!has_ended, "the API server is not ready ({status:?}): {}", self.last_words());
            pause(Duration::from_millis(100));
        }
    }

    /// A client that may do everything.
    pub fn admin(&self) -> Client {
        self.client(self.addr, User::Certificate("admin"))
    }

    /// A client with the certificate of the kubelet of [`NODE`].
    pub fn node(&self) -> Client {
        self.node_by_way_of(self.addr)
    }

    /// The same client, which connects to another address, such as a [`Forwarder`]'s.
    pub fn node_by_way_of(&self, addr: SocketAddr) -> Client {
        self.client(addr, User::Certificate("node"))
    }

    /// A client with a token of the proxy's own account, which acts as this node.
    pub fn own_account(&self, token: &str, node: &str) -> Client {
        let head = format!("Authorization: Bearer {token}\r\nImpersonate-User: system:node:{node}\r\n");
        self.client(self.addr, User::Head(head))
    }

    /// A client with a token of the proxy's own account, which acts as itself.
    pub fn own_account_itself(&self, token: &str) -> Client {
        self.client(self.addr, User::Head(format!("Authorization: Bearer {token}\r\n")))
    }

    fn client(&self, addr: SocketAddr, user: User) -> Client {
        Client::new(self.place.clone(), addr, &self.dir, user)
    }

    /// A kubeconfig with an administrator's certificate.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        keys::kubeconfig(&self.dir, "admin", self.addr, &self.certificate("admin"))
    }

    /// A kubeconfig with the certificate of the kubelet of [`NODE`], for a server at this address, such as a [`Forwarder`].
    pub fn node_kubeconfig(&self, addr: SocketAddr) -> PathBuf {
        keys::kubeconfig(&self.dir, "node", addr, &self.certificate("node"))
    }

    /// A kubeconfig with a token of the proxy's own account ([`Client::own_token`]), which acts as [`NODE`] or as itself.
    pub fn own_account_kubeconfig(&self, addr: SocketAddr, token: &str, acts_as_node: bool) -> PathBuf {
        let file = self.dir.join("own-account.token");
        fs::write(&file, token).expect("target/tmp can be written");
        let acting = if acts_as_node { format!(", as: \"system:node:{NODE}\"") } else { String::new() };
        let user = format!("{{tokenFile: {}{acting}}}", file.display());
        keys::kubeconfig(&self.dir, if acts_as_node { "own-node" } else { "itself" }, addr, &user)
    }

    /// A kubeconfig with a token of an account.
    pub fn account_kubeconfig(&self, token: &str) -> PathBuf {
        let file = self.dir.join("account.token");
        fs::write(&file, token).expect("target/tmp can be written");
        keys::kubeconfig(&self.dir, "account", self.addr, &format!("{{tokenFile: {}}}", file.display()))
    }

    fn certificate(&self, name: &str) -> String {
        let path = |kind| self.dir.join(format!("{name}.{kind}")).display().to_string();
        format!("{{client-certificate: {}, client-key: {}}}", path("crt"), path("key"))
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.dir.join("apiserver.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.kill();
        end(&mut self.etcd);
        // A test that fails leaves its logs, which are small.
        let what = if thread::panicking() { self.dir.join("etcd") } else { self.dir.clone() };
        let _ = fs::remove_dir_all(what);
    }
}

/// kubectl, of the API server's version.
pub fn kubectl() -> Command {
    Command::new(programs().join("kubectl"))
}

/// kube-proxy of the same version, in a node's network.
pub fn kube_proxy(node: &Namespace) -> Command {
    node.command(programs().join("kube-proxy").to_str().expect("text"))
}

/// The directory of the programs that `tests/kube/build` builds.
pub fn programs() -> PathBuf {
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kube/build");
    let output = Command::new(build).arg("--path").output().expect("it is in the repository");
    String::from_utf8(output.stdout).expect("text").trim().into()
}

/// A command that writes to this log.
fn command(place: Option<&Arc<Namespace>>, program: &Path, dir: &Path, log: &str) -> Command {
    let program = program.to_str().expect("text");
    let mut command = place.map_or_else(|| Command::new(program), |namespace| namespace.command(program));
    let log = File::options().create(true).append(true).open(dir.join(log)).expect("target/tmp can be written");
    command.current_dir(dir).stdout(log.try_clone().expect("an open file")).stderr(log);
    command
}

fn etcd_flags(port: u16, peer_port: u16) -> [String; 6] {
    let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer_port}"));
    [
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        // What is written here need not survive the computer.
        "--unsafe-no-fsync=true".to_owned(),
    ]
}

fn flags(addr: SocketAddr, etcd_port: u16) -> Vec<String> {
    let mut flags = vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
        format!("--bind-address={}", addr.ip()),
        format!("--secure-port={}", addr.port()),
    ];
    let fixed = [
        // Nobody asks for the Service `kubernetes`, and loopback is not an address that may be advertised.
        "--advertise-address=192.0.2.1",
        "--endpoint-reconciler-type=none",
        "--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112",
        "--tls-cert-file=server.crt",
        "--tls-private-key-file=server.key",
        "--client-ca-file=ca.crt",
        "--service-account-issuer=https://issuer.example",
        "--service-account-signing-key-file=accounts.key",
        "--service-account-key-file=accounts.pub",
        "--api-audiences=https://kubernetes.default.svc",
        // As clusters have it.
        "--allow-privileged=true",
        "--authorization-mode=Node,RBAC",
    ];
    flags.extend(fixed.map(str::to_owned));
    flags
}

/// Ports that are free in the namespace of the test. In one of its own, all are.
fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port"));
    listeners.map(|listener| listener.local_addr().expect("bound").port())
}

fn end(child: &mut Child) {
    // It may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}

/// Waits.
#[expect(clippy::disallowed_methods, reason = "nothing here is asynchronous, and a test may sleep")]
pub fn pause(time: Duration) {
    thread::sleep(time);
}
