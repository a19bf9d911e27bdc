//! The command `gce-metadata-proxy redirect`.

use std::future::Future;

use super::{CHECK_INTERVAL, Error, Redirect, State, remove};

/// What to do with the redirect rules.
#[derive(Debug)]
pub enum Command {
    /// Install them.
    Install(Redirect),
    /// Install them, and restore them whenever they change, until stopped.
    Keep(Redirect),
    /// Print what would be installed.
    Print(Redirect),
    /// Remove all of them.
    Remove,
    /// Check whether they are installed.
    Check(Redirect),
}

/// Runs the command and reports on standard output. Returns whether the rules are as requested.
///
/// `once_installed` runs beside [`Command::Keep`], from when the rules are installed.
pub async fn run<F: Future<Output = ()>>(
    command: Command,
    once_installed: impl FnOnce(Redirect) -> F,
    stop: impl Future<Output = ()>,
) -> Result<bool, Error> {
    match command {
        Command::Install(redirect) => {
            let tool = redirect.install().await?;
            println!("redirect installed with {tool}; it stays until 'redirect remove'");
        }
        Command::Keep(redirect) => {
            let tool = redirect.install().await?;
            tracing::info!(%tool, "redirect installed; checking it every {} s", CHECK_INTERVAL.as_secs());
            tokio::select! {
                ((), ()) = async { tokio::join!(redirect.clone().keep(), once_installed(redirect)) } => {}
                () = stop => tracing::info!("exiting; the redirect stays installed until 'redirect remove'"),
            }
        }
        Command::Print(redirect) => print!("{}", redirect.text().await?),
        Command::Remove => {
            for tool in remove().await? {
                println!("redirect removed from {tool}");
            }
        }
        Command::Check(redirect) => return Ok(report(&redirect.state().await?)),
    }
    Ok(true)
}

fn report(state: &State) -> bool {
    match state {
        State::Installed => println!("the redirect is installed"),
        State::Absent => {
            println!("the redirect is not installed; run 'redirect install' with the same flags to install it");
        }
        State::Differs(what) => {
            println!(
                "the redirect does not match these flags: {what}; run 'redirect install' with the same flags to repair it"
            );
        }
    }
    *state == State::Installed
}
