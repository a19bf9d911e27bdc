//! The command `gce-metadata-proxy check`.

use std::net::SocketAddr;

use http::{Method, StatusCode};

use super::canary::Canary;
use super::once;
use super::pages::READYZ;
use super::probe::Client;
use crate::finding;
use crate::pages::ListenError;
use redirect::Routes;
use telemetry::logging::Format;

/// The modes of the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Check once, and print all findings.
    Once {
        format: Format,
        /// Routes that the redirect leaves open on purpose.
        open: Routes,
    },
    /// Check repeatedly until stopped, and serve the last results.
    Repeatedly(Canary),
    /// Print the last result of the process that checks repeatedly.
    Last,
}

/// Runs the command, and returns what to print and the exit code. `admin` is the listener for operators: of a proxy on this
/// machine, or of [`Command::Repeatedly`].
pub async fn run(
    command: Command,
    admin: SocketAddr,
    stop: impl Future<Output = ()>,
) -> Result<(String, u8), ListenError> {
    Ok(match command {
        Command::Once { format, open } => {
            let report = once(admin, &open).await;
            (finding::render(&report, format), report.exit_code())
        }
        Command::Repeatedly(canary) => tokio::select! {
            ended = canary.run(admin) => return ended.map(|()| (String::new(), 0)),
            () = stop => (String::new(), 0),
        },
        Command::Last => last(admin).await,
    })
}

/// The exit code is 0 if the node is ready, otherwise 1.
async fn last(admin: SocketAddr) -> (String, u8) {
    match Client::new(Method::GET).ask_here(admin, READYZ).await.outcome {
        Ok(answer) => (String::from_utf8_lossy(&answer.body).into_owned(), u8::from(answer.status != StatusCode::OK)),
        Err(error) => (format!("no 'check --interval' answers at {admin} (--metrics-addr): {error}\n"), 1),
    }
}
