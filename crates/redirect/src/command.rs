//! The command `gce-metadata-proxy redirect`.

use std::future::Future;

use super::spoofing::{Cause, Spoofed};
use super::{Error, Found, Installed, Keeper, Metrics, Mode, Redirect, State, Tool, remove};

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

/// Runs the command. Returns the text to print, and whether the rules are as requested.
///
/// [`Command::Keep`] keeps these metrics, and runs `once_installed` concurrently when the rules are
/// installed.
pub async fn run<F: Future<Output = ()>>(
    command: Command,
    metrics: Metrics,
    once_installed: impl FnOnce(Redirect) -> F,
    stop: impl Future<Output = ()>,
) -> Result<(String, bool), Box<dyn std::error::Error>> {
    let mut lines = Vec::new();
    match command {
        Command::Install(redirect) => {
            let Installed { tool, .. } = redirect.install().await?;
            lines.push(format!("redirect installed with {tool}; it stays until 'redirect remove'"));
            lines.extend(redirect.left_out());
            lines.extend(redirect.spoofed().doubt());
        }
        Command::Keep(redirect) => {
            tokio::select! {
                () = keep(redirect, metrics, once_installed) => {}
                () = stop => tracing::info!("exiting; the rules stay until 'redirect remove'"),
            }
        }
        Command::Print(redirect) => return Ok((redirect.text().await?, true)),
        Command::Remove => {
            lines.extend(remove().await?.into_iter().map(|(tool, had_any)| {
                if had_any {
                    format!("redirect removed from {tool}")
                } else {
                    format!("there was no redirect in {tool}")
                }
            }));
            lines.push(
                "if this node has gce-metadata-redirect.service, which loads the rules at each start, disable it, too: it would close \
                 pods again"
                    .to_owned(),
            );
        }
        Command::Check(redirect) => {
            let (lines, is_installed) = report(&redirect).await?;
            return Ok((text(&lines), is_installed));
        }
    }
    Ok((text(&lines), true))
}

fn text(lines: &[String]) -> String {
    lines.iter().flat_map(|line| [line, "\n"]).collect()
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

/// State and advice, a line each. Returns whether the redirect is installed.
async fn report(redirect: &Redirect) -> Result<(Vec<String>, bool), Error> {
    let Found { state, is_dropped } = redirect.found().await?;
    let what = match &state {
        State::Installed | State::Unbounded => {
            let mut lines = vec!["the redirect is installed".to_owned()];
            if matches!(redirect.settings.mode, Mode::DaemonSet { .. }) {
                lines.push(format!("packets that arrive on the uplinks are not redirected: {}", redirect.uplinks()));
            }
            if state == State::Unbounded {
                let why = redirect.obstacle_to_bound(is_dropped).await;
                let why = why.map_or_else(
                    || "a dry run accepts it now, and --keep tries it within 30 s".to_owned(),
                    |why| why.to_string(),
                );
                lines.push(format!(
                    "it has no bound on new connections, which was refused ({why}): one pod can flood the proxy"
                ));
            }
            lines.extend(redirect.left_out());
            lines.extend(redirect.dropped().await?.map(|dropped| {
                format!("packets dropped by the bound on new connections, since the rules were installed: {dropped}")
            }));
            lines.extend(redirect.doubt().map(str::to_owned));
            lines.extend(spoofing_doubt(is_dropped, &redirect.spoofed()));
            return Ok((lines, true));
        }
        State::Closed => {
            "the redirect is not installed, and pods are closed: all their connections to the metadata server are \
                          reset, except DNS and what --redirect-allow opens"
                .to_owned()
        }
        State::Absent if Tool::may_hide_rules().await? => return Err(Error::Unseen),
        State::Absent => {
            "the redirect is not installed, or not whole, and pods are OPEN: they reach the metadata server itself, by \
                          IPv4 or IPv6, with the node's tokens and secrets"
                .to_owned()
        }
        State::Differs(what) => format!("the redirect does not match these flags: {what}"),
    };
    let line = match redirect.obstacle().await {
        // It may be what differs.
        Some(why) if what.ends_with(&why.to_string()) => what,
        Some(why) => format!("{what}. It cannot be installed: {why}"),
        None => {
            format!(
                "{what}. Run 'redirect install' with the flags and the variables METADATA_PROXY_REDIRECT_... of this node's redirect (in a cluster, \
                 those of the container 'redirect'): with others, it replaces that redirect by another. 'redirect install --keep' does so by \
                 itself"
            )
        }
    };
    Ok((vec![line], false))
}
