//! Installing a redirect. What a tool refuses is left out if it can be; if that is not enough, pods are closed.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::decision::Decision;
use super::plan::Plan;
use super::spoofing::Spoofed;
use super::{
    Destination, Error, Mode, NotInstalled, Opened, Pods, Redirect, Settings, State, Tool, Unserved, Uplinks,
    addresses, closing, first_edition, privileges, process,
};

/// Pause before the second attempt to replace an earlier redirect. Pods are not closed before that has failed too.
pub(super) const SECOND_TRY: Duration = Duration::from_secs(1);

/// What was installed. A tool may have refused a part of it.
#[derive(Debug)]
pub struct Installed {
    pub tool: Tool,
    /// Whether the rules drop spoofed packets.
    pub(super) drops_spoofed: bool,
}

/// A redirect that was installed, for its keeper.
#[derive(Debug)]
pub struct InstalledRedirect {
    pub(super) redirect: Redirect,
    /// The node's uplinks in its rules. `None` if they are named by a flag.
    pub(super) uplinks: Option<Uplinks>,
    /// The decision on spoofed packets with which it was installed.
    pub(super) decided: Decision<Spoofed>,
    pub(super) installed: Installed,
}

impl Redirect {
    /// Installs a redirect of this node's pods to the addresses that this process listens on: of each IP version, the first
    /// that pods can be sent to. If that is impossible, closes the metadata server to pods.
    pub async fn install_to_first(addrs: &[SocketAddr], opened: Opened) -> Result<InstalledRedirect, NotInstalled> {
        let mode = Mode::DaemonSet { uplinks: None };
        let Some(to) = Destination::first_of(addrs) else {
            let why = Error::Address(addrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
            return Err(process::attempt(closing::close(why, &Plan::closing(&mode, &opened, None), None)).await);
        };
        // No other server can get pods' requests there: this process listens at that port, or its predecessor does.
        let mut redirect = Self { settings: Settings { mode, to, is_shared: true, opened }, tool: None };
        // A keeper compares the next ones with those that were installed.
        let uplinks = redirect.hold_uplinks().await;
        let decided = redirect.first_decision().await;
        let installed = redirect.install_as(decided.current()).await?;
        Ok(InstalledRedirect { redirect, uplinks, decided, installed })
    }

    /// Closes the metadata server to this node's pods if no rules in force do, because the proxy cannot start. An earlier redirect
    /// stays if it closes the server by each IP version and sends pods to this node: another proxy may serve pods by it.
    pub async fn close_unless_in_force(addrs: &[SocketAddr], opened: Opened) -> Unserved {
        let to = Destination::first_of(addrs).unwrap_or_default();
        let settings = Settings { mode: Mode::DaemonSet { uplinks: None }, to, is_shared: true, opened };
        let redirect = Self { settings, tool: None };
        let first = process::attempt(async {
            match redirect.in_force().await {
                Err(error) if error.is_passing() => None,
                found => Some(redirect.stay_or_close(found).await),
            }
        });
        if let Some(unserved) = first.await {
            return unserved;
        }
        sleep(SECOND_TRY).await;
        process::attempt(async { redirect.stay_or_close(redirect.in_force().await).await }).await
    }

    /// Closes the metadata server to pods unless these rules are in force. Where rules cannot be listed, there may be none.
    async fn stay_or_close(&self, in_force: Result<Option<State>, Error>) -> Unserved {
        match in_force {
            Ok(Some(state)) => Unserved::InForce(state),
            Ok(None) => self.close_unserved().await,
            Err(error) => {
                tracing::warn!(%error, "the rules in force cannot be listed, and count as none");
                self.close_unserved().await
            }
        }
    }

    async fn close_unserved(&self) -> Unserved {
        Unserved::NotInstalled(closing::install_first(&self.closing_plans(false), None).await)
    }

    /// Installs the rules, replacing an earlier redirect. If the bound on new connections is refused, or the chain for spoofed
    /// packets where no flag wants it, installs the redirect without it. If that is impossible too, closes the metadata server
    /// to pods.
    pub async fn install(&self) -> Result<Installed, NotInstalled> {
        self.install_as(&self.spoofed()).await
    }

    /// The same, with this decision on spoofed packets.
    async fn install_as(&self, decided: &Spoofed) -> Result<Installed, NotInstalled> {
        self.install_until(Some(Instant::now() + first_edition::WAIT), decided.is_dropped()).await
    }

    /// The same. `until`: how long all attempts together wait for the proxy where the first edition's rules are in force. `None`
    /// for no limit.
    pub(super) async fn install_until(
        &self,
        until: Option<Instant>,
        is_spoofed_dropped: bool,
    ) -> Result<Installed, NotInstalled> {
        if let Some(why) = self.foreign_network().await {
            // Not even the rules that close a pod, which would replace the node's.
            return Err(NotInstalled { why, pods: Pods::AsBefore });
        }
        let first = process::attempt(async {
            let (plan, error) = match self.plan_to_install(is_spoofed_dropped).await {
                Ok(plan) => match self.install_or_find(&plan, until).await {
                    Ok(installed) => return Ok(installed),
                    Err(error) => (Some(plan), error),
                },
                Err(error) => (None, error),
            };
            // An earlier redirect may be in force. A brief failure of a tool must not replace it with the closing rules.
            let is_final = !is_refusal(&error) || matches!(self.state().await, Ok(State::Absent));
            Err((plan, error, is_final))
        });
        let (plan, error, is_final) = match first.await {
            Ok(installed) => return Ok(installed),
            Err(failure) => failure,
        };
        if !is_final {
            sleep(SECOND_TRY).await;
        }
        process::attempt(async {
            let Some(plan) = plan else {
                let plan = self.plan_at_last(is_spoofed_dropped).await;
                return self.install_or_close(&plan, until, None).await;
            };
            self.install_or_close(&plan, until, is_final.then_some(error)).await
        })
        .await
    }

    /// Installs the rules, or less. If that is impossible too, closes the metadata server to pods. `error`: with which the rules were
    /// refused already.
    async fn install_or_close(
        &self,
        plan: &Plan,
        until: Option<Instant>,
        error: Option<Error>,
    ) -> Result<Installed, NotInstalled> {
        let error = match error {
            Some(error) => error,
            None => match self.install_or_find(plan, until).await {
                Ok(installed) => return Ok(installed),
                Err(error) => error,
            },
        };
        let outcome = if may_accept_less(&error) { self.install_less(plan, until, error).await } else { Err(error) };
        match outcome {
            Ok(installed) => Ok(installed),
            Err(error) => Err(self.close(error, plan).await),
        }
    }

    /// Installs the rules without the bound on new connections, or without the chain for spoofed packets, or without both. `error`:
    /// with which all of them were refused. It is returned if these are, too, unless an error that no less would mend comes between.
    async fn install_less(&self, plan: &Plan, until: Option<Instant>, error: Error) -> Result<Installed, Error> {
        let may_pass = self.decides_on_spoofed() && plan.drops_spoofed();
        let passing = may_pass.then(|| self.plan(false, plan.guards_loopback()));
        let neither = passing.as_ref().and_then(Plan::without_bound);
        for (less, is_bounded) in [(plan.without_bound(), false), (passing, true), (neither, false)] {
            let Some(less) = less else { continue };
            match self.install_or_find(&less, until).await {
                Ok(installed) => {
                    if !less.drops_spoofed() && may_pass {
                        tracing::warn!(
                            %error,
                            "because of this error, the redirect is installed without the chain that drops packets with spoofed source \
                             addresses; --redirect-drop-spoofed=false turns it off without this warning"
                        );
                    }
                    if !is_bounded {
                        tracing::warn!(
                            %error,
                            "because of this error, the redirect is installed without the bound on new connections \
                             (--redirect-max-new-connections): one pod can flood the proxy. 0 turns it off without this warning"
                        );
                    }
                    return Ok(installed);
                }
                Err(error) if !may_accept_less(&error) => return Err(error),
                Err(_) => {}
            }
        }
        Err(error)
    }

    async fn close(&self, why: Error, plan: &Plan) -> NotInstalled {
        let stay = match why {
            // These flags cannot work on this node. Those of a predecessor may.
            Error::Missing(_) => self.may_be_served().await,
            // The next attempt may succeed, and pods need not be without a proxy until then.
            Error::AddressBusy { .. } => matches!(self.in_force().await, Ok(Some(_))),
            _ => false,
        };
        if stay {
            return NotInstalled { why, pods: Pods::InForce };
        }
        closing::close(why, &self.closing_plans(plan.guards_loopback()), self.tool).await
    }

    /// Installs the rules with another decision on spoofed packets. If that fails, those that are installed stay.
    pub(super) async fn decide_anew(&self, is_spoofed_dropped: bool) -> Result<Installed, Error> {
        self.install_or_find(&self.plan_in_place(is_spoofed_dropped).await?, None).await
    }

    /// Installs the rules. If that fails, but they are installed already, as after a restart, that is a success.
    async fn install_or_find(&self, plan: &Plan, until: Option<Instant>) -> Result<Installed, Error> {
        let tool = match self.install_whole(plan, until).await {
            Err(why) if !self.stands(plan).await => return Err(why),
            Err(_) => self.tool().await?,
            Ok(tool) => tool,
        };
        Ok(Installed { tool, drops_spoofed: plan.drops_spoofed() })
    }

    async fn stands(&self, plan: &Plan) -> bool {
        let has = async || self.tool().await?.has(plan).await;
        has().await.unwrap_or(false) && self.wrong_address().is_none()
    }

    async fn install_whole(&self, plan: &Plan, until: Option<Instant>) -> Result<Tool, Error> {
        privileges::check()?;
        let tool = self.tool().await?;
        let tools = Tool::all_usable(Some(tool)).await;
        if self.settings.mode.is_node() {
            self.add_addresses()?;
            first_edition::wait_for_successor(&tools, &self.to(), &self.shared(), until).await?;
        }
        tool.install(plan).await?;
        // Addresses of an earlier redirect.
        if let Err(error) = addresses::remove_except(&self.to().addrs().map(|to| to.ip()).collect::<Vec<_>>()) {
            tracing::warn!(%error, "cannot take away addresses of an earlier redirect from the interface lo");
        }
        if let Some(other) = tools.get(1)
            && let Err(error) = other.remove().await
        {
            // The redirect works, so this is no reason to close pods.
            tracing::warn!(%error, "cannot remove the rules of an earlier redirect by {other}; run 'redirect remove', then install");
        }
        Ok(tool)
    }
}

/// Whether a tool refused the rules, or a table for them, or failed.
fn is_refusal(error: &Error) -> bool {
    error.is_passing() || matches!(error, Error::Tool { .. } | Error::NoTable { .. })
}

/// Whether less may be accepted. Where an address cannot be read or added, no rules were refused.
fn may_accept_less(error: &Error) -> bool {
    is_refusal(error) && !matches!(error, Error::AddressBusy { .. })
}

#[cfg(test)]
mod tests;
