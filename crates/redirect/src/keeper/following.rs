//! Rules that follow what a keeper finds: the node's uplinks, its interfaces, and a tool that accepts more than before.

use std::io;

use super::super::decision::Scan as _;
use super::super::{Error, Mode, State, Uplinks};
use super::Keeper;

impl Keeper {
    /// Takes a scan for the node's uplinks into account. Returns whether they are others now, so that the rules differ.
    pub(super) fn follow_uplinks(&mut self, found: io::Result<Uplinks>) -> bool {
        let Some(uplinks) = &mut self.uplinks else { return false };
        let before = uplinks.current().clone();
        match found {
            Ok(now) => {
                uplinks.update(now);
                self.unread.warn(None);
            }
            Err(error) => self.unread.warn(Some(format!(
                "the node's uplinks cannot be found, and count as those before: {before} ({error})"
            ))),
        }
        let now = uplinks.current().clone();
        if now == before {
            return false;
        }
        tracing::warn!(
            "the node's uplinks changed from {before} to {now}: packets that arrive on them are not redirected"
        );
        self.redirect.settings.mode = Mode::DaemonSet { uplinks: Some(now) };
        true
    }

    /// Installs the rules with the bound on new connections if a dry run no longer refuses it.
    pub(super) async fn add_bound(&mut self, is_spoofed_dropped: bool) {
        if self.is_bound_refused || self.redirect.obstacle_to_bound(is_spoofed_dropped).await.is_some() {
            return;
        }
        let outcome = self.redirect.decide_anew(is_spoofed_dropped).await;
        match &outcome {
            Ok(_) => {
                self.unbounded.warn(None);
                tracing::info!("the bound on new connections, which was refused before, is installed now");
            }
            Err(error) => {
                // A dry run does not see all, such as a module that the kernel lacks, and iptables may have changed the rules of
                // one address family only.
                self.is_bound_refused = !error.is_passing();
                let (what, when) = if self.is_bound_refused {
                    ("was refused although a dry run accepted it", "after a restart")
                } else {
                    ("cannot be added now", "at the next check")
                };
                self.unbounded.warn(Some(format!(
                    "the bound on new connections {what}: one pod can flood the proxy; it is tried again {when} ({error})"
                )));
                if !self.stays_whole_after(error).await
                    && let Err(error) = self.install().await
                {
                    self.is_not_installed(&error);
                }
            }
        }
        self.drops.restart(&self.redirect).await;
    }

    /// Lets the rules follow the decision on spoofed packets, which they drop or not.
    pub(super) async fn follow(&mut self, is_dropped: bool) {
        if !self.decision.is_settled() {
            return;
        }
        let current = self.decision.current();
        match (current.is_dropped(), is_dropped) {
            // Either is right, or may be.
            (false, true) if current.says_nothing() => self.show_decision(is_dropped),
            // Another attempt would be refused, too, and might leave the rules of the IP versions different each time.
            (decided, found) if decided != found && !self.is_decision_refused => self.decide_anew().await,
            (decided, found) => {
                if decided == found {
                    self.is_decision_refused = false;
                    self.undecided.warn(None);
                }
                self.show_decision(is_dropped);
                if self.decision.current().label() != self.said {
                    self.warn_of_spoofing();
                }
            }
        }
    }

    /// Installs rules with the other decision on spoofed packets. If they are refused, the decision before stays in force.
    async fn decide_anew(&mut self) {
        let is_wanted = self.decision.current().is_dropped();
        let mut outcome = self.redirect.decide_anew(is_wanted).await;
        if let Err(error) = &outcome
            && !self.stays_whole_after(error).await
        {
            match self.install().await {
                Ok(installed) if installed.drops_spoofed == is_wanted => outcome = Ok(installed),
                Ok(_) => {}
                Err(error) => self.is_not_installed(&error),
            }
        }
        self.drops.restart(&self.redirect).await;
        if self.trouble.is_some() {
            return;
        }
        self.show_decision(outcome.as_ref().map_or(!is_wanted, |installed| installed.drops_spoofed));
        if let Err(error) = outcome {
            // What passes is tried again at the next check, and so is to let packets of honest pods pass.
            self.is_decision_refused = is_wanted && !error.is_passing();
            self.undecided.warn(Some(format!(
                "the redirect stays as it is, although the node's interfaces lead to another decision on packets with spoofed \
                 source addresses: {error}"
            )));
            return;
        }
        self.undecided.warn(None);
        self.is_decision_refused = false;
        if !self.warn_of_spoofing() {
            tracing::info!("packets with spoofed source addresses are dropped from now on");
        }
    }

    /// Whether the rules may stay as they are after others were refused with this error.
    async fn stays_whole_after(&self, error: &Error) -> bool {
        match self.redirect.state().await {
            Ok(State::Installed) => true,
            // The bound alone may have been refused.
            Ok(State::Unbounded) => error.is_passing(),
            // iptables may have changed the rules of one IP version only.
            _ => false,
        }
    }
}
