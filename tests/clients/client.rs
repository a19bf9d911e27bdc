//! The clients, and how to install and run them.

mod install;
mod list;
mod program;
mod programs;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::time::timeout;

use self::list::LIBRARIES;
use self::program::{Program, output};
use self::programs::PROGRAMS;
use crate::refusal::Refusal;
use crate::support::needs;
use crate::told::{Step, Told};
use crate::weather::Weather;

/// One client library or tool.
#[derive(Debug)]
pub(crate) struct Client {
    /// Its name in tests and expectations.
    pub(crate) name: &'static str,
    /// Its name in the table.
    pub(crate) library: &'static str,
    /// What it is written for.
    pub(crate) language: &'static str,
    program: Program,
    /// What its application does in a session.
    pub(crate) steps: &'static [Step],
    /// The most connections that its session makes: fewer than its requests, if it keeps them. Go's libraries make one more
    /// where the next request comes before the last connection is back in the pool.
    pub(crate) connections: u64,
    /// Refusals after which it asks again.
    pub(crate) retries: &'static [Refusal],
    /// Names of the weathers it is not sent into, because they would show nothing about it.
    left_out: &'static [&'static str],
}

/// All of them.
pub(crate) fn clients() -> impl Iterator<Item = &'static Client> {
    LIBRARIES.iter().chain(PROGRAMS)
}

/// What a client's program is to do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Task<'a> {
    /// These steps, once.
    Session(&'a [Step]),
    /// One token.
    Token,
    /// So many tokens at once.
    Many(usize),
    /// Token after token, until this file exists.
    Stay(&'a Path),
}

/// A program that hangs fails its test instead of stopping it. Longer than all that a client's own time-outs come to.
const PATIENCE: Duration = Duration::from_secs(90);

impl Client {
    /// What it cannot run without: names of rows in `tests/needs.tsv`.
    pub(crate) fn needs(&self) -> &'static [&'static str] {
        self.program.needs()
    }

    /// What this machine does not have of that.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        needs::missing(self.needs())
    }

    /// Whether it is sent into a weather.
    pub(crate) fn meets(&self, weather: &Weather) -> bool {
        !self.left_out.contains(&weather.name)
    }

    /// Whether it gets tokens by rules of its own.
    pub(crate) fn gets_tokens(&self) -> bool {
        !self.left_out.contains(&"250 at once, reset")
    }

    /// Installs it, unless that has been done.
    pub(crate) async fn install(&self) -> Result<(), String> {
        self.program.install().await
    }

    /// Runs it against a proxy, and returns what it tells.
    pub(crate) async fn run(&self, proxy: SocketAddr, task: Task<'_>) -> Result<Told, String> {
        let mut command = self.program.command();
        match task {
            Task::Session(steps) => command.arg("session").args(steps.iter().map(|step| step.name())),
            Task::Token => command.arg("token"),
            Task::Many(count) => command.arg("many").arg(count.to_string()),
            Task::Stay(until) => command.arg("stay").arg(until),
        };
        let addr = proxy.to_string();
        // Not at home, where other credentials may be, and without a proxy for the proxy.
        command
            .env("HOME", "/nonexistent")
            .env_remove("GOOGLE_APPLICATION_CREDENTIALS")
            .env_remove("GOOGLE_CLOUD_PROJECT");
        for variable in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
            command.env_remove(variable);
        }
        for variable in ["GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT"] {
            command.env(variable, &addr);
        }
        let printed = timeout(PATIENCE, output(&mut command)).await;
        Told::read(&printed.map_err(|_| format!("{} is not done after {PATIENCE:?}", self.name))??)
    }
}
