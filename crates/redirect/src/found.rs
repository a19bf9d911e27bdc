//! [`Found`]: the installed rules, compared with a redirect.

use std::net::SocketAddr;

use super::plan::Plan;
use super::state::STILL_CLOSED;
use super::{Destination, Error, Redirect, Settings, State, Tool, addresses, closing, privileges};

/// The addresses to which installed rules send pods, whatever their settings and tool.
async fn destinations() -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for tool in Tool::all_usable(None).await {
        let listing = tool.listing().await.ok().flatten().unwrap_or_default();
        found.extend(listing.lines().filter_map(sends_to));
    }
    found
}

/// The address to which a rule in the listing of either tool sends packets.
fn sends_to(rule: &str) -> Option<SocketAddr> {
    let of_nft = || rule.split_once(" dnat ")?.1.split_once("to ");
    let (_, to) = rule.split_once(" --to-destination ").or_else(of_nft)?;
    to.split(' ').next()?.parse().ok()
}

/// Whether this node has all these addresses. An address that cannot be looked up counts as one that it has.
fn lead_here(to: &[SocketAddr]) -> bool {
    to.iter().all(|to| addresses::is_local(to.ip()).unwrap_or(true))
}

/// The installed rules.
pub(super) struct Found {
    pub(super) state: State,
    /// Whether these rules drop spoofed packets. Of no meaning if they are not installed.
    pub(super) is_dropped: bool,
}

impl Redirect {
    /// Compares the installed rules with this redirect.
    pub async fn state(&self) -> Result<State, Error> {
        Ok(self.found().await?.state)
    }

    /// Compares the installed rules with this redirect, and finds out what they do with spoofed packets.
    pub(super) async fn found(&self) -> Result<Found, Error> {
        privileges::check()?;
        let tool = self.tool().await?;
        let mut is_dropped = self.spoofed().is_dropped();
        let plan = self.plan_with(&[tool], is_dropped).await?;
        let mut state = tool.state(&plan).await?;
        if !state.is_installed() {
            state = Self::unbounded(tool, &plan).await?.unwrap_or(state);
        }
        if !state.is_installed()
            && self.decides_on_spoofed()
            && let Some(other) = Self::standing(tool, &self.plan_with(&[tool], !is_dropped).await?).await?
        {
            // It was decided at another time. The keeper follows.
            (state, is_dropped) = (other, !is_dropped);
        }
        let state = match state {
            State::Installed | State::Unbounded => match self.wrong_address() {
                Some(what) => State::Differs(format!("the rules are installed, but {what}")),
                None => state,
            },
            _ if closing::is_closed(&self.closing_plans(plan.guards_loopback()), self.tool).await => State::Closed,
            State::Absent => Self::by_other_tool(tool, &plan).await?,
            state => state,
        };
        Ok(Found { state, is_dropped })
    }

    /// The state of rules, whatever their settings, that close the metadata server to pods by each IP version and send them to nothing but
    /// addresses of this node, where a proxy may serve them. `None` if there are none.
    pub(super) async fn in_force(&self) -> Result<Option<State>, Error> {
        let state = self.state().await?;
        Ok((state != State::Absent && lead_here(&destinations().await)).then_some(state))
    }

    /// Whether a redirect with these settings is in force that sends pods to other addresses of this node, where a proxy may serve
    /// them. One with other settings may leave more open.
    pub(super) async fn may_be_served(&self) -> bool {
        let mut found = destinations().await;
        found.sort_unstable();
        found.dedup();
        let Some(to) = Destination::new(&found) else { return false };
        let in_force = Self { settings: Settings { to, ..self.settings.clone() }, ..self.clone() };
        in_force.state().await.is_ok_and(|state| state.is_installed())
    }

    /// [`State::Installed`] or [`State::Unbounded`] if this plan is what is installed.
    async fn standing(tool: Tool, plan: &Plan) -> Result<Option<State>, Error> {
        if tool.has(plan).await? { Ok(Some(State::Installed)) } else { Self::unbounded(tool, plan).await }
    }

    /// Whether there are rules of this redirect that drop spoofed packets.
    pub(super) async fn is_dropping(&self) -> bool {
        let standing = async || {
            let tool = self.tool().await?;
            Self::standing(tool, &self.plan_with(&[tool], true).await?).await
        };
        standing().await.is_ok_and(|state| state.is_some())
    }

    /// [`State::Unbounded`] if this plan without its bound is what is installed.
    async fn unbounded(tool: Tool, plan: &Plan) -> Result<Option<State>, Error> {
        let Some(unbounded) = plan.without_bound() else { return Ok(None) };
        Ok(tool.has(&unbounded).await?.then_some(State::Unbounded))
    }

    /// The state if this tool has no rules. The other tool's may be in force.
    async fn by_other_tool(tool: Tool, plan: &Plan) -> Result<State, Error> {
        let Some(other) = tool.other().if_usable().await? else { return Ok(State::Absent) };
        let of_other = |what, effect: &str| {
            State::Differs(format!("it was installed with {other}, {what}; these flags use {tool}. {effect}"))
        };
        let other_settings = "with other settings, which are in force";
        Ok(match other.state(plan).await? {
            State::Absent => State::Absent,
            State::Installed => of_other("with these settings, and is in force", STILL_CLOSED),
            State::Differs(what) => of_other(other_settings, &what),
            State::Unbounded | State::Closed => of_other(other_settings, STILL_CLOSED),
        })
    }

    /// Whether pods are redirected as requested, with or without the bound on new connections.
    pub async fn is_installed(&self) -> bool {
        self.state().await.is_ok_and(|state| state.is_installed())
    }
}

#[cfg(test)]
mod tests {
    use super::super::destination::PROXY;
    use super::super::plan::tests::node;
    use super::*;

    #[test]
    fn where_rules_send_pods_is_read_from_either_listing() {
        for tool in [Tool::Nft, Tool::Iptables] {
            let listing = tool.text(&node());
            assert_eq!(listing.lines().filter_map(sends_to).collect::<Vec<_>>(), PROXY, "{listing}");
        }
    }
}
