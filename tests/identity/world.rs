//! [`World`]: a node, its API server, and the proxy.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Arc, OnceLock};
use std::thread;

use crate::cgroups::PodGroup;
use crate::kube::{ApiServer, Client, Forwarder, NODE};
use crate::operators::PAGES;
use crate::pod::{PORT, Pod};
use crate::process::{BINARY, Process};
use crate::rights::eventually;
use crate::sandbox::{Address, Node};
use crate::support;
use crate::support::cgroup::Cgroup;
use crate::support::switch::is_full_size;

/// Address of the mock metadata server, in the node's namespace.
const UPSTREAM: &str = "127.0.0.1:8980";

/// Directory where Kubernetes mounts the token of a pod's account.
const MOUNTED: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A node with its API server. The fields end in their order: clients first.
pub struct World {
    /// Stands between the proxy and the API server.
    pub watch: Forwarder,
    pub server: ApiServer,
    pub node: Arc<Node>,
}

impl World {
    pub fn new() -> Self {
        let node = Arc::new(Node::new());
        let place = Some(Arc::clone(&node.namespace));
        let server = ApiServer::start(place.clone());
        let watch = Forwarder::start(place, server.addr());
        Self { watch, server, node }
    }

    /// The same with the account `app-0` of team-0, and an administrator's client.
    pub fn with_account() -> (Self, Client) {
        let world = Self::new();
        let mut api = world.server.admin();
        api.create_account("team-0", "app-0");
        (world, api)
    }

    /// The proxy's address for pods.
    pub fn proxy_address(&self) -> SocketAddr {
        SocketAddr::new(self.node.network.node().v4.into(), PORT)
    }

    /// The address of a pod, by its number from 0.
    pub fn address(&self, number: u8) -> Address {
        self.node.network.address(number + 2)
    }

    /// The proxy on the node, ready, with its upstream. It gets the events of pods through [`World::watch`].
    pub fn proxy(&self, args: &[&str]) -> Proxy {
        self.proxy_in(None, args)
    }

    /// The same in a control group.
    pub fn proxy_in(&self, group: Option<&Cgroup>, args: &[&str]) -> Proxy {
        let proxy = self.proxy_without_pods(group, args);
        // The first list of pods may come later than the values do.
        eventually(|| match self.readyz() {
            200 => Ok(()),
            status => Err(format!("/readyz: {status}")),
        });
        proxy
    }

    /// The same, warm, but maybe without a list of pods.
    pub fn proxy_without_pods(&self, group: Option<&Cgroup>, args: &[&str]) -> Proxy {
        let doors: Vec<_> = group.into_iter().flat_map(Cgroup::doors).collect();
        self.start(&doors, None, &[&self.by_kubeconfig().each_ref().map(String::as_str), args].concat())
    }

    /// The flags of a proxy that gets the events of pods through [`World::watch`].
    fn by_kubeconfig(&self) -> [String; 4] {
        let kubeconfig = self.server.node_kubeconfig(self.watch.addr());
        [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--node-name={NODE}"),
            "--workload-identity".to_owned(),
            "--host-proc=/proc".to_owned(),
        ]
    }

    /// The proxy with a token of its own account, which it finds where Kubernetes mounts it.
    pub fn proxy_of_own_account(&self, token: &str, args: &[&str]) -> Proxy {
        let dir = self.server.dir().join("mounted");
        fs::create_dir_all(&dir).expect("target/tmp can be written");
        fs::copy(self.server.dir().join("ca.crt"), dir.join("ca.crt")).expect("it was made");
        for (name, text) in [("token", token), ("namespace", "kube-system")] {
            fs::write(dir.join(name), text).expect("target/tmp can be written");
        }
        let fixed = [&format!("--node-name={NODE}"), "--workload-identity", "--host-proc=/proc"];
        self.start(&[], Some(&dir), &[&fixed, args].concat())
    }

    /// The proxy with its default settings.
    pub fn proxy_without_identity(&self) -> Proxy {
        self.start(&[], None, &[])
    }

    /// A second process beside the proxy, with its upstream. It may be unable to serve.
    pub fn beside(&self, args: &[&str]) -> Process {
        self.spawn(&[], None, &[&self.by_kubeconfig().each_ref().map(String::as_str), args].concat())
    }

    /// The proxy, ready, as a process of the pod with this control group.
    pub fn proxy_of_pod(&self, pod: &PodGroup, args: &[&str]) -> Proxy {
        let flags = self.by_kubeconfig();
        self.start(&pod.doors().collect::<Vec<_>>(), None, &[&flags.each_ref().map(String::as_str), args].concat())
    }

    /// Another one, beside the proxy, as a process of the pod with this control group.
    pub fn beside_of_pod(&self, pod: &PodGroup, args: &[&str]) -> Process {
        let flags = self.by_kubeconfig();
        self.spawn(&pod.doors().collect::<Vec<_>>(), None, &[&flags.each_ref().map(String::as_str), args].concat())
    }

    /// The same in a container as a runtime makes it: it has process IDs, control groups and mounts of its own, and the node's
    /// `/proc` elsewhere.
    pub fn contained_beside(&self, pod: &PodGroup, args: &[&str]) -> Process {
        let proc = self.server.dir().join("host-proc");
        fs::create_dir_all(&proc).expect("target/tmp can be written");
        let (proc, binary) = (proc.display(), binary().display());
        let doors = pod.doors().map(|door| format!("echo $$ > {} || exit 1; ", door.display()));
        let doors = doors.collect::<Vec<_>>().concat();
        let mounts = format!("mount --rbind /proc {proc} && mount -t proc proc /proc");
        let unshare = "unshare --mount --pid --cgroup --fork --kill-child";
        // It joins its groups before it gets a namespace of them, so that its own is the root of what it sees.
        let shell = format!(r#"{doors}exec {unshare} sh -c '{mounts} && exec {binary} "$@"' sh "$@""#);
        let mut command = self.node.namespace.command_with_groups("sh");
        let flags = self.by_kubeconfig().map(|flag| match flag.strip_prefix("--host-proc=") {
            Some(_) => format!("--host-proc={proc}"),
            None => flag,
        });
        command.args(["-c", &shell, "sh"]).args(self.fixed()).args(flags);
        Process::spawn(command.args(args))
    }

    /// The status of the proxy's `/readyz`.
    pub fn readyz(&self) -> u16 {
        self.node.namespace.curl("http://127.0.0.1:989/readyz").status
    }

    /// The upstream of the node's proxies.
    pub fn mock(&self) -> Process {
        let mock = Process::start(&self.node.namespace, &["mock", "--addr", UPSTREAM]);
        mock.line("mock metadata server on");
        mock
    }

    fn start(&self, doors: &[PathBuf], account: Option<&Path>, args: &[&str]) -> Proxy {
        let mock = self.mock();
        let process = self.spawn(doors, account, args);
        let written_before = process.line("cache warmed up");
        Proxy { process, written_before, _mock: mock }
    }

    fn spawn(&self, doors: &[PathBuf], account: Option<&Path>, args: &[&str]) -> Process {
        let binary = binary();
        let doors = doors.iter().map(|door| format!("echo $$ > {} || exit 1; ", door.display()));
        let shell = format!(r#"{}exec "$0" "$@""#, doors.collect::<String>());
        let binary = binary.to_str().expect("text");
        let inside = match account {
            None => self.node.namespace.command_with_groups(binary),
            Some(account) => {
                let mut inside = self.node.namespace.command_with_groups("unshare");
                let mount = format!(
                    "mount -t tmpfs none /var/run && mkdir -p {MOUNTED} && cp {}/* {MOUNTED}",
                    account.display()
                );
                inside.args(["--mount", "sh", "-c", &format!(r#"{mount} && exec "$0" "$@""#), binary]);
                inside
            }
        };
        let mut command = Command::new("sh");
        command.args(["-c", &shell]).arg(inside.get_program()).args(inside.get_args());
        let addr = self.watch.addr();
        command.env("KUBERNETES_SERVICE_HOST", addr.ip().to_string());
        command.env("KUBERNETES_SERVICE_PORT", addr.port().to_string());
        let is_told = |flags: &[&str]| args.iter().any(|arg| flags.iter().any(|flag| arg.starts_with(flag)));
        let has_tokens = is_told(&["--workload-pool", "--workload-identity-provider"]);
        let no_tokens =
            (is_told(&["--workload-identity"]) && !has_tokens).then_some("--workload-identity-provider=none");
        Process::spawn(command.args(self.fixed()).args(args).args(no_tokens))
    }

    /// The flags that every proxy has.
    fn fixed(&self) -> [String; 3] {
        let addrs = self.node.network.node().both().map(|ip| SocketAddr::from((ip, PORT)).to_string()).join(",");
        [format!("--addr={addrs}"), format!("--upstream=http://{UPSTREAM}"), "--log=info".to_owned()]
    }

    /// Creates a pod's object and makes its sandbox. The API server is told no address.
    pub fn pod(&self, api: &mut Client, name: &str, address: Address) -> Arc<Pod> {
        let object = api.create_pod("team-0", name, "app-0", NODE);
        Pod::start(&self.node, object, address)
    }

    /// The same for `pod-0`, `pod-1` and so on, with these accounts of team-0.
    pub fn pods_of(&self, api: &mut Client, accounts: &[&str]) -> Vec<Arc<Pod>> {
        let start = |(number, account): (u8, &&str)| {
            let object = api.create_pod("team-0", &format!("pod-{number}"), account, NODE);
            Pod::start(&self.node, object, self.address(number))
        };
        (0..).zip(accounts).map(start).collect()
    }

    /// The same for this number of pods, of the accounts `app-0`, `app-1` and so on.
    pub fn pods(&self, api: &mut Client, number: u8) -> Vec<Arc<Pod>> {
        let accounts: Vec<String> = (0..number).map(|number| format!("app-{number}")).collect();
        self.pods_of(api, &accounts.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The proxy's metrics.
    pub fn metrics(&self) -> String {
        self.node.namespace.curl(&format!("{PAGES}/metrics")).text
    }

    /// Waits until a line of the metrics begins with this text.
    pub fn comes_to_show(&self, text: &str) {
        eventually(|| match self.metrics() {
            metrics if metrics.contains(&format!("\n{text}")) => Ok(()),
            metrics => Err(metrics),
        });
    }

    /// The value of a series, written without decimals.
    pub fn metric(&self, series: &str) -> u64 {
        let metrics = self.metrics();
        let value = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("{series} is no number in\n{metrics}"))
    }
}

/// A proxy, and the mock that is its upstream. Both end with this value.
pub struct Proxy {
    process: Process,
    /// Log lines from before its cache was warm.
    pub written_before: Vec<String>,
    _mock: Process,
}

/// Prints the proxy's log for the reader of a failed test.
impl Drop for Proxy {
    fn drop(&mut self) {
        if thread::panicking() {
            let written = self.process.written();
            eprintln!("the proxy wrote: {:#?}", &written[written.len().saturating_sub(30)..]);
        }
    }
}

impl Proxy {
    /// Its own memory, in KiB: without memory shared with its file.
    pub fn anonymous_kib(&self) -> u64 {
        self.process.anonymous_kib()
    }

    /// The ID of its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Its log lines since the last ones that were read.
    pub fn written(&self) -> Vec<String> {
        self.process.written()
    }

    /// Ends it as a kubelet does. Its upstream keeps running.
    pub fn end(&mut self) -> ExitStatus {
        self.process.end()
    }

    /// Waits for a line of its log.
    pub fn line(&self, wanted: &str) {
        self.process.line(wanted);
    }
}

/// The proxy's binary: the one of `IDENTITY_BINARY`, the release binary in the long form, or else the one of these tests.
fn binary() -> &'static Path {
    static PROXY: OnceLock<PathBuf> = OnceLock::new();
    PROXY.get_or_init(|| match std::env::var_os("IDENTITY_BINARY") {
        Some(path) => path.into(),
        None if is_full_size() => support::release_build().expect("it can be built"),
        None => BINARY.into(),
    })
}
