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
    /// Name in tests and expectations.
    pub(crate) name: &'static str,
    /// Name in the table.
    pub(crate) library: &'static str,
    program: Program,
    /// The steps of its application in a session.
    pub(crate) steps: &'static [Step],
    /// Maximum number of connections in its session: fewer than its requests, if it keeps connections open. Go's
    /// libraries open one more if the next request comes before the last connection is back in the pool.
    pub(crate) connections: u64,
    /// Refusals after which it retries.
    pub(crate) retries: &'static [Refusal],
    /// Names of the weathers that it does not run in, because they would show nothing about it.
    left_out: &'static [&'static str],
}

/// A client that never retries, and runs in every weather. The lists name what differs.
const PLAIN: Client = Client {
    name: "",
    library: "",
    program: Program::Shell { tool: "" },
    steps: &[],
    connections: 0,
    retries: &[],
    left_out: &[],
};

/// For clients that get no tokens, or get them with a library that is itself in the list.
const MANY: &[&str] = &["handover", "cold start of 50", "250 at once, reset", "250 at once, 503"];

/// All clients.
pub(crate) fn clients() -> impl Iterator<Item = &'static Client> {
    LIBRARIES.iter().chain(PROGRAMS)
}

/// A task for a client's program.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Task<'a> {
    /// These steps, once.
    Session(&'a [Step]),
    /// A single token.
    Token,
    /// This many tokens at once.
    Many(usize),
    /// Token after token, until this file exists.
    Stay(&'a Path),
}

/// Timeout of a program, so that one that hangs fails its test instead of blocking it. Longer than the sum of any
/// client's own timeouts, and than fifty programs take to start with a tenth of the processors: programs have a low
/// priority, and other test binaries run beside.
const PATIENCE: Duration = Duration::from_secs(300);

impl Client {
    /// The language that the client is written for.
    pub(crate) fn language(&self) -> &'static str {
        self.program.language()
    }

    /// Needs of the client: names of rows in `tests/needs.tsv`.
    pub(crate) fn needs(&self) -> &'static [&'static str] {
        self.program.needs()
    }

    /// Needs that this machine does not meet.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        needs::missing(self.needs())
    }

    /// Whether the client runs in a weather.
    pub(crate) fn meets(&self, weather: &Weather) -> bool {
        !self.left_out.contains(&weather.name)
    }

    /// Whether the client gets tokens by its own rules, and not with a library that is itself in the list.
    pub(crate) fn gets_tokens(&self) -> bool {
        !self.left_out.contains(&"250 at once, reset")
    }

    /// Installs the client, unless that has been done.
    pub(crate) async fn install(&self) -> Result<(), String> {
        self.program.install().await
    }

    /// Runs the client against a proxy, and returns its report.
    pub(crate) async fn run(&self, proxy: SocketAddr, task: Task<'_>) -> Result<Told, String> {
        let mut command = self.program.command();
        match task {
            Task::Session(steps) => command.arg("session").args(steps.iter().map(|step| step.name())),
            Task::Token => command.arg("token"),
            Task::Many(count) => command.arg("many").arg(count.to_string()),
            Task::Stay(until) => command.arg("stay").arg(until),
        };
        let addr = proxy.to_string();
        // Without a home, which may contain other credentials, and without a proxy for requests to the proxy.
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
