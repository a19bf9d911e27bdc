//! The rules that a [`Redirect`] installs, by its settings, the node's uplinks, and what an earlier redirect left.

use tokio::time::sleep;

use super::install::SECOND_TRY;
use super::plan::Plan;
use super::settings::{Mode, Settings};
use super::spoofing::DropSpoofed;
use super::tool::Tool;
use super::uplinks::Uplinks;
use super::{Error, Redirect, first_edition};

impl Redirect {
    /// The rules to install. They guard loopback if either tool has the first edition's mark. An error if one fails now.
    pub(super) async fn plan_to_install(&self, is_spoofed_dropped: bool) -> Result<Plan, Error> {
        self.plan_with(&Tool::all_usable(self.tool).await, is_spoofed_dropped).await
    }

    /// The same by the second attempt: rules that cannot be listed by either count as without the mark. To close pods would not keep
    /// it either.
    pub(super) async fn plan_at_last(&self, is_spoofed_dropped: bool) -> Plan {
        let plan = self.plan_to_install(is_spoofed_dropped).await;
        plan.unwrap_or_else(|_| self.plan(is_spoofed_dropped, false))
    }

    /// The rules to install where this redirect is already, also if the other tool fails now.
    pub(super) async fn plan_in_place(&self, is_spoofed_dropped: bool) -> Result<Plan, Error> {
        match self.plan_to_install(is_spoofed_dropped).await {
            Ok(plan) => Ok(plan),
            Err(_) => self.plan_with(&[self.tool().await?], is_spoofed_dropped).await,
        }
    }

    /// The rules that replace those of these tools.
    pub(super) async fn plan_with(&self, tools: &[Tool], is_spoofed_dropped: bool) -> Result<Plan, Error> {
        Ok(self.plan(is_spoofed_dropped, first_edition::needs_guard(tools).await?))
    }

    pub(super) fn plan(&self, is_spoofed_dropped: bool, is_loopback_guarded: bool) -> Plan {
        let mut settings = Settings { to: self.to(), ..self.settings.clone() };
        settings.opened.drop_spoofed = if is_spoofed_dropped { DropSpoofed::True } else { DropSpoofed::False };
        let plan = Plan::new(&settings, &self.uplinks()).sharing(&self.shared());
        if is_loopback_guarded { plan.guarding_loopback() } else { plan }
    }

    pub(super) fn uplinks(&self) -> Uplinks {
        match &self.settings.mode {
            Mode::DaemonSet { uplinks: Some(uplinks) } => uplinks.clone(),
            Mode::DaemonSet { uplinks: None } => Uplinks::find().unwrap_or_else(|error| {
                tracing::warn!(%error, "the node's uplinks cannot be found: what arrives on them is taken for packets of pods");
                Uplinks::default()
            }),
            Mode::Sidecar { .. } => Uplinks::default(),
        }
    }

    /// Makes the node's uplinks those of now, until others are set. Where they cannot be found, they are looked for once more: rules
    /// in force may have them. `None` if they are named by a flag, or in a sidecar.
    pub(super) async fn hold_uplinks(&mut self) -> Option<Uplinks> {
        if !matches!(self.settings.mode, Mode::DaemonSet { uplinks: None }) {
            return None;
        }
        let uplinks = if let Ok(found) = Uplinks::find() {
            found
        } else {
            sleep(SECOND_TRY).await;
            self.uplinks()
        };
        self.settings.mode = Mode::DaemonSet { uplinks: Some(uplinks.clone()) };
        Some(uplinks)
    }

    pub(super) fn closing_plans(&self, is_loopback_guarded: bool) -> Vec<Plan> {
        let plans = Plan::closing(&self.settings.mode, &self.settings.opened, Some(&self.to()));
        let plans = plans.into_iter().map(|plan| plan.sharing(&self.shared()));
        plans.map(|plan| if is_loopback_guarded { plan.guarding_loopback() } else { plan }).collect()
    }
}
