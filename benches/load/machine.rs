//! The machine and the versions of the programs. Figures are meaningless without them.

use std::fs;
use std::path::Path;

use serde::Serialize;

use super::process::{self, run_tool};

/// CPU usage by other work, in per cent of the machine, above which figures are unreliable.
const MAX_QUIET_PERCENT: f64 = 5.0;

#[derive(Debug, Serialize)]
pub struct Machine {
    pub date: String,
    pub cpu: String,
    pub cores: usize,
    pub kernel: String,
    /// Versions of the proxy, its peers and the tools, as they report them.
    pub versions: Vec<String>,
}

impl Machine {
    /// Inspects this machine.
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

/// CPU usage by other work on the machine, which shows whether the figures are reliable.
#[derive(Debug, Clone, Copy)]
pub struct Bystander {
    began: Ticks,
}

/// Readings of CPU time, in ticks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ticks {
    /// Total on all cores, including idle time.
    pub all: u64,
    /// Busy time on all cores. Includes time stolen by other virtual machines.
    pub busy: u64,
    /// Used by this program and its child processes that have ended.
    pub ours: u64,
}

/// CPU usage by others, in per cent of the machine.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Others(pub f64);

impl Bystander {
    /// Starts measuring.
    pub fn begin() -> Self {
        Self { began: Ticks::now() }
    }

    /// CPU usage by others since the start.
    pub fn others(self) -> Others {
        Ticks::now().others_since(self.began)
    }
}

impl Ticks {
    fn now() -> Self {
        let read = |file| fs::read_to_string(file).unwrap_or_default();
        Self::read(&read("/proc/stat"), &read("/proc/self/stat"))
    }

    /// Parses the contents of these two files.
    pub fn read(machine: &str, own: &str) -> Self {
        // Some values are -1 and count as 0.
        let number = |word: &str| word.parse::<i64>().ok().map(|number| u64::try_from(number).unwrap_or(0));
        let numbers = |text: &str| text.split_whitespace().filter_map(number).collect::<Vec<u64>>();
        let of_machine = numbers(machine.lines().next().unwrap_or_default());
        // user, nice, system, idle, iowait, irq, softirq, steal. Interrupts are charged to the interrupted
        // process.
        let busy = [0, 1, 2, 7].iter().filter_map(|at| of_machine.get(*at)).sum();
        // After the name, which may contain anything: state, ten numbers, then user and system time, own and of
        // children.
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
        self.0 < MAX_QUIET_PERCENT
    }
}

/// The first line of a program's version output, on either stream.
async fn version(program: &Path, flag: &str) -> String {
    let Ok(output) = run_tool(program, [flag]).await else { return format!("{} does not run", program.display()) };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    // Some start with their path.
    line.trim_start_matches(&*program.parent().unwrap_or(program).to_string_lossy()).trim_start_matches('/').to_owned()
}
