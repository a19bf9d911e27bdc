//! The scenarios as data, with their steps, contenders and goals.
//!
//! The first four repeat published experiments with the same tools and settings. The goals are the project's
//! own.

use super::cgroup::Bounds;
use super::figures::Figure;
use super::peers::{Contender, Role};

/// Path of the default account's token.
pub const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

/// Path of a value that is not cached.
pub const UNCACHED: &str = "/computeMetadata/v1/instance/attributes/cluster-uid";

/// Path of a value as long as `Step::value` says, which is not cached either.
pub const LONG: &str = "/computeMetadata/v1/instance/attributes/long";

/// An experiment.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub name: &'static str,
    /// What it shows, in one sentence.
    pub about: &'static str,
    pub steps: Vec<Step>,
    pub plots: Vec<Plot>,
}

/// One table of an experiment: a load, applied to all contenders in turn.
#[derive(Debug, Clone)]
pub struct Step {
    pub title: String,
    /// Its position on the horizontal axis of a plot.
    pub x: f64,
    pub target: &'static str,
    /// Length of the value at [`LONG`] in bytes; none if it is 0.
    pub value: usize,
    pub bounds: Bounds,
    pub proxy_args: Vec<String>,
    pub load: Load,
    /// Whether the load starts before the server is ready.
    pub cold: bool,
    pub contenders: Vec<Contender>,
    pub goals: Vec<Goal>,
    pub rounds: Size,
}

/// A number, and a smaller one for `--quick`.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub full: u64,
    pub quick: u64,
}

impl Size {
    pub fn get(self, quick: bool) -> u64 {
        if quick { self.quick } else { self.full }
    }
}

/// The load on a server.
#[derive(Debug, Clone, Copy)]
pub enum Load {
    /// One connection per request.
    Ab {
        requests: Size,
        concurrency: u32,
    },
    Hey {
        requests: Size,
        concurrency: u32,
    },
    /// Runs for this many seconds and requests tokens with this many keys in turn.
    Wrk {
        seconds: Size,
        connections: u32,
        keys: u32,
    },
    /// A constant rate of requests per second for this many seconds.
    Oha {
        rate: u32,
        seconds: Size,
    },
    /// Connections that stay open after one response.
    Stay {
        connections: u32,
    },
    /// Time from exec to the first response.
    Start,
}

/// A goal for a figure of the first contender.
#[derive(Debug, Clone, Copy)]
pub struct Goal {
    pub figure: Figure,
    pub bound: Bound,
}

#[derive(Debug, Clone, Copy)]
pub enum Bound {
    Most(f64),
    Least(f64),
    /// A multiple of a peer's figure.
    MostOf(f64, Contender),
    LeastOf(f64, Contender),
    /// A multiple of its own figure in an earlier step, by index.
    MostOfStep(f64, usize),
}

/// A plot of a scenario.
#[derive(Debug, Clone, Copy)]
pub enum Plot {
    /// One bar per contender, for one step.
    Bars { step: usize, figure: Figure },
    /// One line per contender, over several steps.
    Lines { first: usize, count: usize, figure: Figure, x: &'static str },
}

const fn size(full: u64, quick: u64) -> Size {
    Size { full, quick }
}

const fn at_most(figure: Figure, most: f64) -> Goal {
    Goal { figure, bound: Bound::Most(most) }
}

const fn most_of(figure: Figure, times: f64, peer: Contender) -> Goal {
    Goal { figure, bound: Bound::MostOf(times, peer) }
}

const fn at_least(figure: Figure, least: f64) -> Goal {
    Goal { figure, bound: Bound::Least(least) }
}

const ALL_ANSWERED: Goal = at_least(Figure::Success, 100.0);

/// Five runs, or two with `--quick`.
const ROUNDS: Size = size(5, 2);

impl Step {
    fn new(title: impl Into<String>, load: Load) -> Self {
        Self {
            title: title.into(),
            x: 0.0,
            target: TOKEN,
            value: 0,
            bounds: Bounds::default(),
            proxy_args: Vec::new(),
            load,
            cold: false,
            contenders: vec![Contender::Proxy],
            goals: vec![ALL_ANSWERED],
            rounds: ROUNDS,
        }
    }

    fn within(self, millicores: Option<u64>, memory: Option<u64>) -> Self {
        Self { bounds: Bounds { millicores, memory }, ..self }
    }

    fn against(mut self, peers: &[Contender]) -> Self {
        self.contenders.extend(peers);
        self
    }

    fn goals(mut self, goals: &[Goal]) -> Self {
        self.goals.extend(goals);
        self
    }

    fn args(self, args: &[&str]) -> Self {
        Self { proxy_args: args.iter().map(ToString::to_string).collect(), ..self }
    }
}

/// All scenarios, in the order in which `all` runs them.
pub fn all() -> Vec<Scenario> {
    vec![
        seed_metadata_proxy(),
        seed_workload_identity(),
        seed_reverse_proxies(),
        token_hit(),
        memory(),
        start(),
        scaling(),
    ]
}

/// k8s-metadata-proxy's experiment: `ab -n 200000 -c 200` on the token, 794 requests/s at 500m CPU, 55.7 at
/// 30m, within 25 MiB. These were requests/s of another machine, so the goal is nginx on this one.
fn seed_metadata_proxy() -> Scenario {
    const MEMORY: Option<u64> = Some(25);
    let crowd = |requests, concurrency| Load::Ab { requests, concurrency };
    let peers = [Contender::Nginx(Role::Returns), Contender::Nginx(Role::Caches), Contender::Hyper];
    let [nginx, ..] = peers;
    let seed = [
        most_of(Figure::Cpu, 1.15, nginx),
        Goal { figure: Figure::Throughput, bound: Bound::LeastOf(0.87, nginx) },
        at_most(Figure::Peak, 12.0),
    ];
    let mut steps = vec![
        Step::new("ab -c 200, no keep-alive, 500m CPU, 25 MiB", crowd(size(200_000, 10_000), 200))
            .within(Some(500), MEMORY)
            .against(&peers)
            .goals(&seed),
        // Five rounds are 200,000 requests.
        Step::new("ab -c 200, no keep-alive, 30m CPU, 25 MiB", crowd(size(40_000, 1000), 200))
            .within(Some(30), MEMORY)
            .against(&peers[..1])
            .goals(&seed),
    ];
    for concurrency in [201, 500, 1000, 2000, 3000] {
        let title = format!("ab -c {concurrency}, no keep-alive, 25 MiB, --max-connections 4000");
        let load = crowd(size(100_000, 5000), concurrency);
        let step = Step::new(title, load).within(None, MEMORY).args(&["--max-connections=4000"]);
        steps.push(Step { x: concurrency.into(), ..step.goals(&[at_most(Figure::Peak, 25.0)]) });
    }
    Scenario {
        name: "seed-metadata-proxy",
        about: "a token for a crowd that opens a connection for every request, under a quota of CPU and 25 MiB",
        steps,
        plots: vec![
            Plot::Bars { step: 0, figure: Figure::Cpu },
            Plot::Lines { first: 2, count: 5, figure: Figure::Peak, x: "connections at once" },
        ],
    }
}

/// gke-metadata-server's experiment: 100 % at 150 requests/s (p99 682 ms), 91.7 % at 200, 59 % at 500, 79.5 %
/// at 1,000 (p99 30 s).
fn seed_workload_identity() -> Scenario {
    let at_rate = |title: String, rate: u32| {
        let step = Step::new(title, Load::Oha { rate, seconds: size(5, 2) });
        let one_token = [at_most(Figure::UpstreamTokens, 1.0)];
        Step { x: rate.into(), cold: true, ..step.goals(&one_token) }
    };
    let caches = Contender::Nginx(Role::Caches);
    let mut steps: Vec<Step> = [10, 100, 150, 200, 250, 500, 1000, 5000]
        .map(|rate| {
            let step = at_rate(format!("{rate} requests/s, 100m CPU, 100 MiB, cold"), rate);
            let step = step.within(Some(100), Some(100));
            if rate == 1000 { step.against(&[caches]).goals(&[most_of(Figure::P99, 1.5, caches)]) } else { step }
        })
        .into();
    let unlimited = at_rate("1000 requests/s, no CPU limit, cold".to_owned(), 1000).within(None, Some(100));
    steps.push(unlimited.against(&[caches]).goals(&[most_of(Figure::P99, 1.5, caches)]));
    Scenario {
        name: "seed-workload-identity",
        about: "a token at a constant rate from the first moment of the process, on a tenth of a core",
        steps,
        plots: vec![Plot::Lines { first: 0, count: 8, figure: Figure::P99, x: "requests/s" }],
    }
}

/// nginx and Envoy as reverse proxies: 2,293 requests/s and p99 1.85 s; 2,628, p99 0.54 s and 295 responses
/// with 503.
fn seed_reverse_proxies() -> Scenario {
    let peers = [
        Contender::Nginx(Role::Passes),
        Contender::Haproxy(Role::Passes),
        Contender::Envoy(Role::Passes),
        Contender::Upstream,
    ];
    let [nginx, haproxy, envoy, _] = peers;
    let no_worse_than =
        |peer| [Goal { figure: Figure::Throughput, bound: Bound::LeastOf(1.0, peer) }, most_of(Figure::P99, 1.0, peer)];
    let step = |requests, concurrency, what: &str| {
        let title = format!("hey -c {concurrency} on {what}, --max-in-flight 1000");
        let step = Step::new(title, Load::Hey { requests: size(requests, requests / 2), concurrency });
        let step = step.args(&["--max-in-flight=1000"]).against(&peers).goals(&[most_of(Figure::Cpu, 1.0, haproxy)]);
        // The tool's runs take half a second and vary.
        Step { target: UNCACHED, rounds: size(15, 2), ..step }
    };
    let seed = [500, 250].map(|concurrency| {
        step(10_000, concurrency, "an uncached value").goals(&no_worse_than(nginx)).goals(&no_worse_than(envoy))
    });
    // What is longer than a buffer is streamed.
    let long = [(10_000, 20 << 10, "20 KiB"), (1000, 1 << 20, "1 MiB")].map(|(requests, value, length)| Step {
        target: LONG,
        value,
        ..step(requests, 50, &format!("a value of {length}"))
    });
    Scenario {
        name: "seed-reverse-proxies",
        about: "what is not cached, passed on",
        steps: seed.into_iter().chain(long).collect(),
        plots: vec![
            Plot::Bars { step: 0, figure: Figure::Throughput },
            Plot::Bars { step: 0, figure: Figure::Cpu },
            Plot::Bars { step: 0, figure: Figure::P99 },
        ],
    }
}

/// The bare hyper server and nginx cost the same, and no server based on hyper can cost less than the former.
fn token_hit() -> Scenario {
    let nginx = Contender::Nginx(Role::Returns);
    let peers = [
        nginx,
        Contender::Hyper,
        Contender::Haproxy(Role::Returns),
        Contender::Envoy(Role::Returns),
        Contender::Nginx(Role::Caches),
    ];
    let load = Load::Wrk { seconds: size(5, 1), connections: 50, keys: 1 };
    let goal = most_of(Figure::Cpu, 1.15, nginx);
    let step = Step::new("wrk -c 50, keep-alive, one core", load);
    Scenario {
        name: "token-hit",
        about: "CPU for a cached token through all layers, on connections that are kept",
        steps: vec![Step { rounds: size(9, 2), ..step.against(&peers).goals(&[goal]) }],
        plots: vec![Plot::Bars { step: 0, figure: Figure::Cpu }, Plot::Bars { step: 0, figure: Figure::Throughput }],
    }
}

fn memory() -> Scenario {
    let peers = [
        Contender::Hyper,
        Contender::Nginx(Role::Returns),
        Contender::Haproxy(Role::Returns),
        Contender::Envoy(Role::Returns),
    ];
    let steps = [(0, 4.0), (200, 8.0), (3000, 25.0)].map(|(connections, most)| {
        let title = match connections {
            0 => "at rest".to_owned(),
            _ => format!("{connections} connections that were answered and stay"),
        };
        let step = Step::new(title, Load::Stay { connections });
        let step = step.args(&["--max-connections=4000"]).against(&peers);
        Step {
            x: connections.into(),
            goals: vec![at_most(Figure::Resident, most), at_most(Figure::Peak, most)],
            ..step
        }
    });
    Scenario {
        name: "memory",
        about: "memory at rest and with connections; the peak is the control group's over the process's life",
        steps: steps.into(),
        plots: vec![Plot::Bars { step: 2, figure: Figure::Resident }],
    }
}

fn start() -> Scenario {
    let peers = [
        Contender::Nginx(Role::Passes),
        Contender::Haproxy(Role::Passes),
        Contender::Envoy(Role::Passes),
        Contender::Hyper,
    ];
    let [nginx, ..] = peers;
    let goals = vec![most_of(Figure::FirstAnswer, 1.0, nginx), at_most(Figure::Size, 6.0)];
    let step = Step::new("from exec to the first token", Load::Start).against(&peers);
    Scenario {
        name: "start",
        about: "how soon a new process answers, and how large its program is",
        steps: vec![Step { goals, rounds: size(20, 5), ..step }],
        plots: vec![Plot::Bars { step: 0, figure: Figure::FirstAnswer }],
    }
}

/// Compares with 50 connections and one key: with a single connection, each request wakes the process.
fn scaling() -> Scenario {
    let step = |title: String, x: u32, connections: u32, keys: u32| {
        let load = Load::Wrk { seconds: size(4, 1), connections, keys };
        let step = Step::new(title, load).args(&["--max-connections=4000"]);
        Step { x: x.into(), ..step }
    };
    let flat = Goal { figure: Figure::Cpu, bound: Bound::MostOfStep(1.2, 2) };
    let mut steps: Vec<Step> = [1, 10, 50, 200, 1000, 3000]
        .map(|connections| {
            step(format!("wrk -c {connections}"), connections, connections, 1)
                .against(&[Contender::Nginx(Role::Returns), Contender::Hyper])
                .goals(&[flat])
        })
        .into();
    steps.extend(
        [1, 100, 300].map(|keys| step(format!("wrk -c 50, different keys: {keys}"), keys, 50, keys).goals(&[flat])),
    );
    Scenario {
        name: "scaling",
        about: "CPU for a cached token, over connections and over cached keys: within 20 % of 50 connections and one key",
        steps,
        plots: vec![
            Plot::Lines { first: 0, count: 6, figure: Figure::Cpu, x: "connections" },
            Plot::Lines { first: 6, count: 3, figure: Figure::Cpu, x: "cached keys" },
        ],
    }
}
