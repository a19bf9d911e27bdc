//! Where and with what was measured: without it a figure means nothing.

use std::fs;
use std::path::Path;

use serde::Serialize;

use super::process::{self, run_tool};

/// Above this share of the machine, in per cent, other work disturbs the figures.
const QUIET: f64 = 5.0;

#[derive(Debug, Serialize)]
pub struct Machine {
    pub date: String,
    pub cpu: String,
    pub cores: usize,
    pub kernel: String,
    /// Of the proxy, its peers and the tools, as each tells it.
    pub versions: Vec<String>,
}

impl Machine {
    /// Looks at this machine.
    pub async fn look(binary: &Path) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let mut versions = vec![version(binary, "--version").await];
        let flags = [("nginx", "-v"), ("haproxy", "-v"), ("envoy", "--version"), ("ab", "-V"), ("wrk", "-v")];
        for (program, flag) in flags.into_iter().chain([("oha", "--version")]) {
            if let Ok(path) = process::find(program) {
                versions.push(version(&path, flag).await);
            }
        }
        Self {
            date: version(Path::new("date"), "-u").await,
            cpu: model.map_or("unknown", |(_, model)| model).to_owned(),
            cores: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            versions,
        }
    }
}

/// What else the machine does, so that one can tell whether to believe the figures.
#[derive(Debug, Clone, Copy)]
pub struct Bystander {
    began: Ticks,
}

/// Of CPU time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ticks {
    /// On all cores, idle or not.
    pub all: u64,
    /// On all cores, for somebody; what other virtual machines took is theirs.
    pub busy: u64,
    /// For this program and whatever it started that has ended.
    pub ours: u64,
}

/// How much of the machine others took, in per cent.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Others(pub f64);

impl Bystander {
    /// Begins to look.
    pub fn begin() -> Self {
        Self { began: Ticks::now() }
    }

    /// What others took since then.
    pub fn others(self) -> Others {
        Ticks::now().others_since(self.began)
    }
}

impl Ticks {
    fn now() -> Self {
        let read = |file| fs::read_to_string(file).unwrap_or_default();
        Self::read(&read("/proc/stat"), &read("/proc/self/stat"))
    }

    /// From these two files.
    pub fn read(machine: &str, own: &str) -> Self {
        // Some are -1, and count as none.
        let number = |word: &str| word.parse::<i64>().ok().map(|number| u64::try_from(number).unwrap_or(0));
        let numbers = |text: &str| text.split_whitespace().filter_map(number).collect::<Vec<u64>>();
        let of_machine = numbers(machine.lines().next().unwrap_or_default());
        // user, nice, system, idle, iowait, irq, softirq, steal; interrupts are charged to whoever was interrupted.
        let busy = [0, 1, 2, 7].iter().filter_map(|at| of_machine.get(*at)).sum();
        // Behind the name, which may hold anything: state, ten numbers, then user and system, own and of children.
        let of_us = numbers(own.rsplit(')').next().unwrap_or_default());
        let ours = of_us.iter().skip(10).take(4).sum();
        Self { all: of_machine.iter().take(8).sum(), busy, ours }
    }

    #[expect(clippy::cast_precision_loss, reason = "2^52 ticks are a million years")]
    pub fn others_since(self, earlier: Self) -> Others {
        let others = (self.busy - earlier.busy).saturating_sub(self.ours - earlier.ours);
        Others(100.0 * others as f64 / (self.all - earlier.all).max(1) as f64)
    }
}

impl Others {
    pub fn are_quiet(self) -> bool {
        self.0 < QUIET
    }
}

/// The first line that a program says of itself, wherever it says it.
async fn version(program: &Path, flag: &str) -> String {
    let Ok(output) = run_tool(program, [flag]).await else { return format!("{} does not run", program.display()) };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    // Some begin with where they are.
    line.trim_start_matches(&*program.parent().unwrap_or(program).to_string_lossy()).trim_start_matches('/').to_owned()
}
