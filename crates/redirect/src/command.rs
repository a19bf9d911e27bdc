//! The command `gce-metadata-proxy redirect`.

use std::future::Future;

use super::spoofing::{Cause, Spoofed};
use super::{Error, Found, Installed, Keeper, Metrics, Mode, NotInstalled, Redirect, State, remove};

/// The command's action on the rules.
#[derive(Debug)]
pub enum Command {
    Install(Redirect),
    /// Install the rules, and restore them whenever they change, until stopped.
    Keep(Redirect),
    /// Print the input of the tool, without changing anything.
    Print(Redirect),
    /// Remove the rules of all redirects.
    Remove,
    /// Check whether the rules are installed.
    Check(Redirect),
}

/// Reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error(transparent)]
    NotInstalled(#[from] NotInstalled),
    /// The rules could not be read or removed.
    #[error(transparent)]
    Rules(#[from] Error),
}

/// Runs the command and reports on standard output. Returns whether the rules are as requested.
///
/// [`Command::Keep`] keeps these metrics, and runs `once_installed` concurrently when the rules are
/// installed.
pub async fn run<F: Future<Output = ()>>(
    command: Command,
    metrics: Metrics,
    once_installed: impl FnOnce(Redirect) -> F,
    stop: impl Future<Output = ()>,
) -> Result<bool, CommandError> {
    match command {
        Command::Install(redirect) => {
            let Installed { tool, .. } = redirect.install().await?;
            println!("redirect installed with {tool}; it stays until 'redirect remove'");
            if let Some(left_out) = redirect.left_out() {
                println!("{left_out}");
            }
            if let Some(doubt) = redirect.spoofed().doubt() {
                println!("{doubt}");
            }
        }
        Command::Keep(redirect) => {
            tokio::select! {
                () = keep(redirect, metrics, once_installed) => {}
                () = stop => tracing::info!("exiting; the rules stay until 'redirect remove'"),
            }
        }
        Command::Print(redirect) => print!("{}", redirect.text().await?),
        Command::Remove => {
            for tool in remove().await? {
                println!("redirect removed from {tool}");
            }
            println!(
                "if this node has gce-metadata-redirect.service, which loads the rules at each start, disable it, too: it would close \
                 pods again"
            );
        }
        Command::Check(redirect) => return Ok(report(&redirect).await?),
    }
    Ok(true)
}

async fn keep<F: Future<Output = ()>>(
    redirect: Redirect,
    metrics: Metrics,
    once_installed: impl FnOnce(Redirect) -> F,
) {
    let keeper = Keeper::begin(redirect.clone(), metrics).await;
    let installed = keeper.installed();
    let then = async {
        installed.notified().await;
        once_installed(redirect).await;
    };
    tokio::join!(keeper.run(), then);
}

/// The warning about spoofed packets, if any. `is_dropped`: by the installed rules. `now`: by a scan of the node's interfaces.
fn spoofing_doubt(is_dropped: bool, now: &Spoofed) -> Option<String> {
    const NOW: &str = "Run 'redirect install' again, or keep the rules with --keep";
    match now {
        // Without pods, either is right. Interfaces that cannot be listed may be as they were.
        Spoofed::Dropped | Spoofed::LetPass(Cause::NoPods | Cause::Unknown(_)) if is_dropped => None,
        Spoofed::LetPass(cause) if is_dropped => Some(format!(
            "packets with spoofed source addresses are dropped, but the interfaces have changed since: {cause}. {NOW}"
        )),
        Spoofed::Dropped => Some(format!(
            "packets with spoofed source addresses are not dropped, although the interfaces allow it: they have changed since, or nft or iptables refused \
             that rule, which its log says. {NOW}"
        )),
        Spoofed::LetPass(_) => now.doubt(),
    }
}

/// Prints the state and advice. Returns whether the redirect is installed.
async fn report(redirect: &Redirect) -> Result<bool, Error> {
    let Found { state, is_dropped } = redirect.found().await?;
    let what = match &state {
        State::Installed | State::Unbounded => {
            println!("the redirect is installed");
            if matches!(redirect.settings.mode, Mode::DaemonSet { .. }) {
                println!("packets that arrive on the uplinks are not redirected: {}", redirect.uplinks());
            }
            if state == State::Unbounded {
                let why = redirect.obstacle_to_bound().await;
                let why = why.map_or_else(|| "it would be accepted now".to_owned(), |why| why.to_string());
                println!("it has no bound on new connections, which was refused ({why}): one pod can flood the proxy");
            }
            if let Some(left_out) = redirect.left_out() {
                println!("{left_out}");
            }
            if let Some(dropped) = redirect.dropped().await? {
                println!("packets dropped by the bound on new connections, since the rules were installed: {dropped}");
            }
            if let Some(doubt) = redirect.doubt() {
                println!("{doubt}");
            }
            if let Some(doubt) = spoofing_doubt(is_dropped, &redirect.spoofed()) {
                println!("{doubt}");
            }
            return Ok(true);
        }
        State::Closed => {
            "the redirect is not installed, and pods are closed: all their connections to the metadata server are \
                          reset, except DNS and what --redirect-allow opens"
                .to_owned()
        }
        State::Absent => {
            "the redirect is not installed, or not whole, and pods are OPEN: they reach the metadata server itself, by \
                          IPv4 or IPv6, with the node's tokens and secrets"
                .to_owned()
        }
        State::Differs(what) => format!("the redirect does not match these flags: {what}"),
    };
    match redirect.obstacle().await {
        Some(why) => println!("{what}. It cannot be installed: {why}"),
        None => {
            println!("{what}. Run 'redirect install' with the same flags; 'redirect install --keep' does so by itself");
        }
    }
    Ok(false)
}
