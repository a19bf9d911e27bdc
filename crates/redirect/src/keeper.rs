//! [`Keeper`]: checks the rules, restores them, and tries again if they cannot be installed.

mod following;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::decision::Decision;
use super::drops::Drops;
use super::spoofing::{REFUSED, Spoofed};
use super::{Error, Found, Installed, InstalledRedirect, NotInstalled, Pods, Redirect, State, Uplinks};
use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};

/// Interval between checks of the rules. If something flushes them, such as a firewall reload, the node is exposed for up to
/// this time.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Interval between attempts while the redirect cannot be installed. Pods have no metadata meanwhile.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// What a check finds before the redirect is restored: nothing that closes the metadata server to pods, other rules that do, those
/// that close it whole, or an error.
const FOUND: [&str; 4] = ["absent", "changed", "closed", "unreadable"];

/// A keeper's metrics.
#[derive(Debug)]
pub struct Metrics {
    /// Packets that the bound on new connections dropped.
    pub dropped: IntCounter,
    /// Decision on spoofed packets: 1 for the current `decision`, 0 for the others.
    pub spoofed: IntGaugeVec,
    /// How often the redirect had to be restored, by what was `found` instead.
    pub restored: IntCounterVec,
}

/// Keeps a redirect installed.
#[derive(Debug)]
pub struct Keeper {
    redirect: Redirect,
    /// Reason why the redirect is not installed. `None` if it is.
    trouble: Option<Trouble>,
    /// The tool refused the chain that drops spoofed packets; not tried again until the decision changes.
    is_decision_refused: bool,
    /// The bound on new connections was refused although a dry run accepted it; not tried again unless rules are restored.
    is_bound_refused: bool,
    decision: Decision<Spoofed>,
    /// `None` if they are named by a flag, or in a sidecar.
    uplinks: Option<Decision<Uplinks>>,
    /// The label in the last log message about spoofed packets.
    said: &'static str,
    /// About IPv6 that is left out.
    left_out: Lasting,
    /// About another decision on spoofed packets that could not be installed.
    undecided: Lasting,
    /// About a bound on new connections that could not be added.
    unbounded: Lasting,
    /// About uplinks that cannot be found.
    unread: Lasting,
    spoofed: IntGaugeVec,
    restored: IntCounterVec,
    drops: Drops,
    installed: Arc<Notify>,
    standing: Arc<Standing>,
}

/// State of a kept redirect, for other parts of the program.
#[derive(Debug, Default)]
pub struct Standing(Mutex<Option<String>>);

impl Standing {
    /// Reason why the redirect is not installed. `None` if it is, as of the last check.
    pub fn trouble(&self) -> Option<String> {
        self.0.lock().clone()
    }

    fn set(&self, trouble: Option<String>) {
        *self.0.lock() = trouble;
    }
}

/// The last warning about something that lasts: logged when it changes, and not at each check. `None` if there is nothing to say.
#[derive(Debug, Default)]
struct Lasting(Option<String>);

impl Lasting {
    fn warn(&mut self, now: Option<String>) {
        if let Some(message) = now.as_ref().filter(|now| self.0.as_ref() != Some(*now)) {
            tracing::warn!("{message}");
        }
        self.0 = now;
    }
}

/// Reason why a redirect is not installed.
#[derive(Debug)]
struct Trouble {
    logged: String,
    /// Whether not even the closing rules could be installed.
    is_open: bool,
}

impl Keeper {
    /// A keeper of a redirect that was just installed.
    pub fn of_installed(installed: InstalledRedirect, metrics: Metrics) -> Self {
        let InstalledRedirect { redirect, uplinks, decided, installed } = installed;
        let mut keeper = Self::new(redirect, uplinks, decided, metrics);
        keeper.warn_of_ipv6();
        keeper.warn_of_spoofing();
        keeper.show_decision(installed.drops_spoofed);
        keeper
    }

    /// `uplinks`: those that the redirect holds, unless they are named by a flag.
    fn new(redirect: Redirect, uplinks: Option<Uplinks>, decision: Decision<Spoofed>, metrics: Metrics) -> Self {
        let Metrics { dropped, spoofed, restored } = metrics;
        for label in FOUND {
            // All series exist from the start, so that the first increase is seen.
            restored.with_label_values(&[label]);
        }
        let (drops, installed, standing) = (Drops::new(dropped), Arc::default(), Arc::default());
        let keeper = Self {
            redirect,
            trouble: None,
            is_decision_refused: false,
            is_bound_refused: false,
            decision,
            uplinks: uplinks.map(Decision::new),
            said: "",
            left_out: Lasting::default(),
            undecided: Lasting::default(),
            unbounded: Lasting::default(),
            unread: Lasting::default(),
            spoofed,
            restored,
            drops,
            installed,
            standing,
        };
        keeper.show(None);
        keeper
    }

    /// Installs a redirect, or logs the error.
    pub async fn begin(mut redirect: Redirect, metrics: Metrics) -> Self {
        let uplinks = redirect.hold_uplinks().await;
        let decision = redirect.first_decision().await;
        let mut keeper = Self::new(redirect, uplinks, decision, metrics);
        match keeper.install().await {
            Ok(installed) => keeper.is_installed(&installed),
            Err(error) => keeper.is_not_installed(&error),
        }
        keeper
    }

    async fn install(&self) -> Result<Installed, NotInstalled> {
        self.redirect.install_until(None, self.decision.current().is_dropped()).await
    }

    /// Notified when the redirect is installed after [`begin`](Keeper::begin).
    pub fn installed(&self) -> Arc<Notify> {
        Arc::clone(&self.installed)
    }

    /// Whether it is installed, for others.
    pub fn standing(&self) -> Arc<Standing> {
        Arc::clone(&self.standing)
    }

    /// Checks the rules and restores them if they differ, while polled.
    pub async fn run(mut self) {
        loop {
            let is_settled = self.decision.is_settled() && self.uplinks.as_ref().is_none_or(Decision::is_settled);
            let interval = if self.trouble.is_some() || !is_settled { RETRY_INTERVAL } else { CHECK_INTERVAL };
            sleep(interval).await;
            let uplinks_changed = self.uplinks.is_some() && self.follow_uplinks(Uplinks::find());
            let found = self.redirect.found().await;
            self.decision.update(self.redirect.spoofed());
            if let Ok(Found { state, is_dropped }) = &found
                && state.is_installed()
                && self.trouble.is_none()
            {
                self.drops.check(&self.redirect).await;
                self.warn_of_ipv6();
                if *state == State::Unbounded {
                    self.add_bound(*is_dropped).await;
                }
                self.follow(*is_dropped).await;
                continue;
            }
            let found = found.map(|found| found.state);
            let is_missing =
                matches!(found, Ok(State::Absent)) && self.trouble.as_ref().is_none_or(|trouble| !trouble.is_open);
            // Before the rules are restored, which may fail.
            if is_missing || self.trouble.is_none() && !uplinks_changed {
                self.restored.with_label_values(&[label(&found)]).inc();
            }
            if found.as_ref().is_ok_and(|state| *state != State::Absent) {
                // Replacing the rules empties the kernel's counter. Where they are missing, pods come first.
                self.drops.check(&self.redirect).await;
            }
            // Pods are protected first; what is logged can wait.
            let outcome = self.install().await;
            self.drops.restart(&self.redirect).await;
            if is_missing {
                tracing::error!(
                    "the redirect was missing: pods may have reached the metadata server directly in the last {} s; find out what \
                     flushes the rules",
                    interval.as_secs()
                );
            }
            match outcome {
                Ok(installed) if self.trouble.is_some() => self.is_installed(&installed),
                Ok(installed) => {
                    self.warn_of_ipv6();
                    self.show_decision(installed.drops_spoofed);
                    if !uplinks_changed {
                        say_restored(&found);
                    }
                }
                Err(error) => self.is_not_installed(&error),
            }
        }
    }

    /// Shows what the installed rules do with spoofed packets, and why.
    fn show_decision(&self, is_dropped: bool) {
        // A sidecar has no rules for these packets.
        let is_node = self.redirect.settings.mode.is_node();
        let label = match self.decision.current() {
            _ if is_dropped => Spoofed::Dropped.label(),
            Spoofed::Dropped => REFUSED,
            passed @ Spoofed::LetPass(_) => passed.label(),
        };
        self.show(is_node.then_some(label));
    }

    /// `None` while the redirect is not installed.
    fn show(&self, decision: Option<&str>) {
        for label in Spoofed::LABELS {
            self.spoofed.with_label_values(&[label]).set((decision == Some(label)).into());
        }
    }

    /// Warns if IPv6 is left out, when that or its reason changes.
    fn warn_of_ipv6(&mut self) {
        self.left_out.warn(self.redirect.left_out());
    }

    /// Warns if spoofed packets pass. Returns whether they do.
    fn warn_of_spoofing(&mut self) -> bool {
        self.said = self.decision.current().label();
        let doubt = self.decision.current().doubt();
        if let Some(doubt) = &doubt {
            tracing::warn!("{doubt}");
        }
        doubt.is_some()
    }

    fn is_installed(&mut self, installed: &Installed) {
        self.trouble = None;
        self.standing.set(None);
        // What was refused before may be accepted now, and is said again if not.
        self.is_decision_refused = false;
        self.undecided.warn(None);
        self.show_decision(installed.drops_spoofed);
        let tool = installed.tool;
        tracing::info!(%tool, "redirect installed; checking it every {} s", CHECK_INTERVAL.as_secs());
        if let Some(doubt) = self.redirect.doubt() {
            tracing::warn!("{doubt}");
        }
        self.warn_of_ipv6();
        self.warn_of_spoofing();
        self.installed.notify_one();
    }

    /// Logs the reason when it changes, and not at each try.
    fn is_not_installed(&mut self, error: &NotInstalled) {
        let logged = error.to_string();
        if self.trouble.as_ref().is_none_or(|before| before.logged != logged) {
            tracing::error!("{logged}. Trying again every {} s", RETRY_INTERVAL.as_secs());
        }
        self.standing.set(Some(logged.clone()));
        self.show(None);
        self.trouble = Some(Trouble { logged, is_open: !matches!(error.pods, Pods::Closed(_) | Pods::InForce) });
    }
}

/// The label of what was found where the redirect should have been.
fn label(found: &Result<State, Error>) -> &'static str {
    let [absent, changed, closed, unreadable] = FOUND;
    match found {
        Ok(State::Differs(_)) => changed,
        Err(_) => unreadable,
        Ok(State::Absent) => absent,
        Ok(State::Closed | State::Installed | State::Unbounded) => closed,
    }
}

/// Logs what was found where the redirect should have been.
fn say_restored(found: &Result<State, Error>) {
    match found {
        Ok(State::Differs(what)) => tracing::warn!(%what, "the redirect was changed and has been restored"),
        Err(error) => tracing::warn!(%error, "the redirect could not be checked and was installed again"),
        Ok(State::Absent | State::Closed | State::Installed | State::Unbounded) => {
            tracing::info!("the redirect has been restored");
        }
    }
}

#[cfg(test)]
mod tests;
