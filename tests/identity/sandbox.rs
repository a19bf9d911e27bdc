//! [`Sandbox`]: the parts that a container runtime and a network plugin make for a pod, in their order.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::JoinHandle;

use crate::cgroups::{Kubepods, PodGroup};
use crate::namespace::Namespace;

/// The network of a node's pods: `10.A.B.0/24` and `fd00:A:B::/112`. Its first address is the node's.
///
/// Each node has another network: the sandboxes of all are in the same `/proc`, and two with one address would
/// be two claims to it.
#[derive(Debug, Clone, Copy)]
pub struct Network(u8, u8);

impl Network {
    pub fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let [_, _, high, low] = std::process::id().wrapping_add(MADE.fetch_add(1, Relaxed) << 8).to_be_bytes();
        Self(64 | (high & 0x7f), low)
    }

    /// Addresses of one pod, or of the node, which is number 1.
    pub fn address(self, number: u8) -> Address {
        let Self(a, b) = self;
        let v6 = Ipv6Addr::new(0xfd00, a.into(), b.into(), 0, 0, 0, 0, number.into());
        Address { v4: Ipv4Addr::new(10, a, b, number), v6 }
    }

    pub fn node(self) -> Address {
        self.address(1)
    }
}

/// The addresses of a pod, one of each family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address {
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl Address {
    pub fn both(self) -> [IpAddr; 2] {
        [self.v4.into(), self.v6.into()]
    }
}

/// A node: its network namespace, and the control groups of its pods.
#[derive(Debug)]
pub struct Node {
    pub namespace: Arc<Namespace>,
    pub network: Network,
    name: String,
    kubepods: Kubepods,
    /// Number of sandboxes so far.
    made: AtomicU32,
    /// Index of the node's end of the next veth; 0 for any.
    pub index: AtomicU32,
}

impl Node {
    pub fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("metadata-{}-{}", std::process::id(), MADE.fetch_add(1, Relaxed));
        let namespace = Arc::new(Namespace::new(&format!("{name}-node")));
        let network = Network::new();
        let Address { v4, v6 } = network.node();
        batch(&namespace, &format!("addr add {v4}/32 dev lo\naddr add {v6}/128 dev lo nodad\n"));
        Self {
            namespace,
            network,
            kubepods: Kubepods::new(&name),
            name,
            made: AtomicU32::new(0),
            index: AtomicU32::new(0),
        }
    }

    /// The control group of a pod on the node's network.
    pub fn group(&self, uid: &str) -> PodGroup {
        self.kubepods.pod(uid)
    }

    /// Makes the network namespace of a pod and its veth, with the address. No process yet.
    fn plug(&self, address: Address) -> (Namespace, String) {
        let number = self.made.fetch_add(1, Relaxed);
        let pod = Namespace::new(&format!("{}-{number}", self.name));
        let veth = format!("pod{number}");
        let node = self.network.node();
        let name = pod.name();
        let index = match self.index.swap(0, Relaxed) {
            0 => String::new(),
            index => format!("index {index}"),
        };
        batch(
            &self.namespace,
            &format!(
                "link add {veth} {index} type veth peer name eth0 netns {name}\nlink set {veth} up\n\
                 addr add {}/128 dev {veth} nodad\nroute add {} dev {veth}\nroute add {} dev {veth}\n",
                node.v6, address.v4, address.v6
            ),
        );
        batch(
            &pod,
            &format!(
                "addr add {}/32 dev eth0\naddr add {}/128 dev eth0 nodad\nlink set eth0 up\n\
                 route add {} dev eth0\nroute add {} dev eth0\n",
                address.v4, address.v6, node.v4, node.v6
            ),
        );
        (pod, veth)
    }
}

/// A pod's network namespace, control group and first process. It ends with this value.
#[derive(Debug)]
pub struct Sandbox {
    processes: Vec<Child>,
    veth: Option<String>,
    node: Arc<Node>,
    namespace: Namespace,
    group: PodGroup,
}

impl Sandbox {
    /// Makes the network first, then the control group, then the process `pause`.
    pub fn start(node: &Arc<Node>, uid: &str, address: Address) -> Self {
        let (namespace, veth) = node.plug(address);
        let group = node.kubepods.pod(uid);
        let mut sandbox = Self { processes: Vec::new(), veth: Some(veth), node: Arc::clone(node), namespace, group };
        sandbox.run("");
        sandbox
    }

    /// Starts a process of the pod that takes a network namespace of its own and gives itself this address in it.
    pub fn claim(&mut self, address: Address) {
        let Address { v4, v6 } = address;
        self.run(&format!(
            "unshare --net sh -c 'ip link set lo up; ip addr add {v4}/32 dev lo; ip addr add {v6}/128 dev lo nodad; \
             exec \"$@\"' sh"
        ));
    }

    /// Runs this script, which has no single quotes, in a process of the pod. Its children are in the pod, too.
    pub fn script(&mut self, script: &str) {
        self.run(&format!("sh -c '({script}) & exec \"$@\"' sh"));
    }

    /// Starts a process that sleeps in the pod, by way of a command that becomes it. Like a container's first process, it
    /// joins the control group while it is still in the runtime's network, then the pod's network, then runs its program.
    fn run(&mut self, by_way_of: &str) {
        let join = format!(
            r#"network=$1; shift
            for door in "$@"; do echo $$ > "$door" || exit 1; done
            exec nsenter --net="$network" {by_way_of} sh -c 'echo started; exec sleep 7200'"#
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &join, "sh"]).arg(format!("/run/netns/{}", self.namespace.name())).args(self.group.doors());
        let mut child = shell.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("a shell is here");
        let mut line = String::new();
        let read = child.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut line));
        self.processes.push(child);
        assert_eq!(line, "started\n", "{read:?}");
    }

    /// Number of its processes that this value does not end.
    pub fn others(&self) -> usize {
        let file = self.group.doors().next().expect("there is a group");
        fs::read_to_string(file).expect("it is there").lines().count() - self.processes.len()
    }

    /// The ID of `pause`.
    pub fn pause_id(&self) -> u32 {
        self.processes.first().expect("it is not killed").id()
    }

    /// The ID of the process that began last.
    pub fn last_id(&self) -> u32 {
        self.processes.last().expect("it is not killed").id()
    }

    /// Runs work on a thread in the pod's network.
    pub fn spawn<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        self.namespace.spawn(work)
    }

    /// Ends its processes.
    pub fn kill(&mut self) {
        for mut process in self.processes.drain(..) {
            process.kill().expect("it is ours");
            process.wait().expect("it can be waited for");
        }
    }

    /// Takes its route away and leaves its address, like a network plugin that frees the address and then fails.
    pub fn stick(&mut self) {
        if let Some(veth) = &self.veth {
            self.node.namespace.ip(&format!("link set {veth} down"));
        }
    }

    /// Adds another pod's address to its own network.
    pub fn squat(&self, address: Address) {
        let Address { v4, v6 } = address;
        self.batch(&format!("addr add {v4}/32 dev lo\naddr add {v6}/128 dev lo nodad\n"));
    }

    /// Changes its own network by these lines of `ip -batch`, as a pod with `NET_ADMIN` may.
    pub fn batch(&self, lines: &str) {
        batch(&self.namespace, lines);
    }

    /// Takes its veth away, and its address with it. The peers of its connections are not notified.
    pub fn unplug(&mut self) {
        if let Some(veth) = self.veth.take() {
            self.node.namespace.ip(&format!("link del {veth}"));
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.kill();
        self.unplug();
    }
}

/// Runs many commands of `ip` at once.
fn batch(namespace: &Namespace, lines: &str) {
    let mut ip = Command::new("ip");
    ip.args(["-n", namespace.name(), "-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = ip.spawn().expect("ip is here");
    let written = child.stdin.take().map(|mut stdin| stdin.write_all(lines.as_bytes()));
    let output = child.wait_with_output().expect("it can be waited for");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "in {}: {lines}: {error} ({written:?})", namespace.name());
}
