//! Where and with what was measured: without it a figure means nothing.

use std::fs;
use std::path::Path;

use serde::Serialize;

use super::process::{self, run_tool};

/// Above this, other work disturbs the figures.
const QUIET: f64 = 1.5;

#[derive(Debug, Serialize)]
pub struct Machine {
    pub date: String,
    pub cpu: String,
    pub cores: usize,
    pub kernel: String,
    /// Of the last minute, before the first run.
    pub load_average: f64,
    /// Of the proxy, its peers and the tools, as each tells it.
    pub versions: Vec<String>,
}

impl Machine {
    /// Looks at this machine.
    pub async fn look(binary: &Path) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let loadavg = fs::read_to_string("/proc/loadavg").unwrap_or_default();
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
            load_average: loadavg.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0),
            versions,
        }
    }

    pub fn is_quiet(&self) -> bool {
        self.load_average < QUIET
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
