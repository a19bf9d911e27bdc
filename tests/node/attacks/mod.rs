//! The attack book: what is known to lead pods past a redirect, or strangers before it, tried against both tools.
//!
//! Each test is a row of the table in `docs/redirect.md`. None of them asks how the redirect is built: only who answers a pod.

pub mod packets;
pub mod pods;
pub mod rules;

use std::io::{Read as _, Write as _};
use std::net::{Ipv6Addr, TcpListener};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use crate::machine;
use crate::namespace::Namespace;
use crate::process::Process;
use crate::world::{KUBE_ENV, SERVER, WAYS_ROUND, World, redirect, succeeds};

pub const TOOLS: [&str; 2] = ["nft", "iptables"];

/// What no proxy and no metadata server says.
const FORGED: &str = "forged by a stranger";

/// Who answered a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    Proxy,
    /// The metadata server itself.
    Server,
    /// The attacker.
    Stranger,
    Nothing,
}

impl Read {
    pub fn of(text: &str) -> Self {
        if text.contains(FORGED) {
            Self::Stranger
        } else if text.contains("gce-metadata-proxy") {
            Self::Proxy
        } else if text.contains("HTTP/1.1 ") {
            Self::Server
        } else {
            Self::Nothing
        }
    }
}

/// Asks for a secret.
pub fn read(place: &Namespace, host: &str) -> Read {
    read_within(5.0, place, host)
}

/// Asks where nobody should answer, or it does not matter whether somebody does. A stranger would do so at once.
pub fn read_briefly(place: &Namespace, host: &str) -> Read {
    read_within(0.4, place, host)
}

fn read_within(seconds: f64, place: &Namespace, host: &str) -> Read {
    let seconds = seconds * f64::from(machine::patience());
    let curl = format!("curl -s -i -g --max-time {seconds} -H 'Metadata-Flavor: Google' '{host}{KUBE_ENV}' || true");
    Read::of(&place.sh(&curl))
}

/// The proxy, where the redirect leads.
pub fn proxy(world: &World) -> Process {
    world.proxy(&["--addr", &destination(world).join(",")])
}

/// Where the redirect leads, by each IP version that it serves.
pub fn destination(world: &World) -> Vec<String> {
    let rules = redirect(&world.node, "install --dry-run --tool nft").stdout;
    let words: Vec<&str> = rules.split_whitespace().collect();
    let leads = |words: &[&str]| matches!(words, ["dnat", "ip" | "ip6", "to", _]);
    let addrs: Vec<String> = words.windows(4).filter(|words| leads(words)).map(|words| words[3].to_owned()).collect();
    assert!(!addrs.is_empty(), "{rules}");
    addrs
}

/// A node with a redirect and its proxy.
struct Scene {
    tool: &'static str,
    world: World,
    proxy: Option<Process>,
}

impl Scene {
    fn new(tool: &'static str) -> Self {
        let world = World::new();
        succeeds(&redirect(&world.node, &format!("install --tool {tool}")));
        let proxy = Some(proxy(&world));
        let scene = Self { tool, world, proxy };
        assert_eq!(read(scene.victim(), SERVER), Read::Proxy, "{tool}");
        scene
    }

    fn victim(&self) -> &Namespace {
        &self.world.pods[0]
    }

    fn attacker(&self) -> &Namespace {
        &self.world.pods[1]
    }

    fn install(&self) {
        succeeds(&redirect(&self.world.node, &format!("install --tool {}", self.tool)));
    }

    /// No way leads to the server, and port 80 to the proxy.
    fn holds(&self, pod: &Namespace, when: &str) {
        assert_eq!(read(pod, SERVER), Read::Proxy, "{}, {when}", self.tool);
        for way in WAYS_ROUND {
            let read = read_briefly(pod, way);
            assert!(matches!(read, Read::Proxy | Read::Nothing), "{}, {when}: {way} leads to {read:?}", self.tool);
        }
    }
}

/// Begins to count what reaches the server from a pod's address. A reset says nothing.
pub fn count(world: &World) {
    world.outside.sh(
        "nft add table inet seen
        nft delete table inet seen
        nft add table inet seen
        nft add chain inet seen in '{ type filter hook prerouting priority 0; }'
        nft add rule inet seen in ip daddr 169.254.169.254 ip saddr 10.8.0.0/16 tcp dport != 53 tcp flags \\& rst == 0 counter
        nft add rule inet seen in ip6 daddr fd20:ce::254 ip6 saddr fd00:b::/32 tcp dport != 53 tcp flags \\& rst == 0 counter",
    );
}

/// Packets since then.
pub fn seen(world: &World) -> u64 {
    let listing = world.outside.sh("nft list table inet seen");
    let counts = listing.split("counter packets ").skip(1);
    counts.map(|rest| rest.split(' ').next().expect("a word").parse::<u64>().expect("a number")).sum()
}

/// The proxy goes before its network.
impl Drop for Scene {
    fn drop(&mut self) {
        drop(self.proxy.take());
    }
}

/// Answers whoever asks, until it is dropped.
pub struct Stranger {
    _alive: Arc<()>,
}

impl Stranger {
    #[expect(clippy::disallowed_methods, reason = "nothing here is asynchronous, and a test may sleep")]
    pub fn new(pod: &Namespace, port: u16) -> Self {
        let mine = Arc::new(());
        let theirs = Arc::clone(&mine);
        let listen = move || TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).expect("a free port");
        let listener = pod.spawn(listen).join().expect("no panic");
        listener.set_nonblocking(true).expect("it is open");
        std::thread::spawn(move || {
            while Arc::strong_count(&theirs) > 1 {
                let Ok((mut stream, _)) = listener.accept() else {
                    sleep(Duration::from_millis(2));
                    continue;
                };
                let length = FORGED.len();
                let answer =
                    format!("HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: {length}\r\n\r\n{FORGED}");
                // Whoever does not ask gets no answer.
                let _ = stream.set_nonblocking(false);
                let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
                let _ = stream.read(&mut [0; 4096]).and_then(|_| stream.write_all(answer.as_bytes()));
            }
        });
        Self { _alive: mine }
    }
}
