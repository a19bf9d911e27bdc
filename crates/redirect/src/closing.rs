//! Closes the metadata server to pods where the redirect cannot be installed.

use std::fmt;

use super::plan::Plan;
use super::{Error, State, Tool, first_edition, privileges};

/// Why the redirect is not installed, and what that means for pods.
#[derive(Debug, thiserror::Error)]
#[error("the redirect cannot be installed: {why}. {pods}")]
pub struct NotInstalled {
    /// What stands in the way.
    pub why: Error,
    /// What pods can do meanwhile.
    pub pods: Pods,
}

/// What pods can do while the redirect is not installed.
#[derive(Debug)]
pub enum Pods {
    /// They cannot reach the metadata server, by rules of this tool.
    Closed(Tool),
    /// They reach the metadata server itself, unless there are rules of an earlier redirect. The closing rules could not be
    /// installed for this reason.
    Open(Error),
}

impl fmt::Display for Pods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(tool) => write!(
                f,
                "Until it is, pods are closed: {tool} resets all their connections to the metadata server except DNS and what \
                 --redirect-allow opens"
            ),
            Self::Open(why) => write!(
                f,
                "Pods are OPEN unless an earlier redirect is in place: they reach the metadata server itself, with the node's \
                 tokens and secrets, because not even the rules that close it can be installed ({why})"
            ),
        }
    }
}

/// Installs the first of these plans that can be, unless one stands already. `preferred`: the tool to try first.
pub(super) async fn close(why: Error, plans: &[Plan], preferred: Option<Tool>) -> NotInstalled {
    let pods = install_first(plans, preferred).await.map_or_else(Pods::Open, Pods::Closed);
    NotInstalled { why, pods }
}

async fn install_first(plans: &[Plan], preferred: Option<Tool>) -> Result<Tool, Error> {
    privileges::check()?;
    let mut failure = Error::NoTool;
    for tool in Tool::all_usable(preferred).await {
        for plan in plans {
            if stands(tool, plan).await {
                return Ok(tool);
            }
            if !plan.guards_loopback() && first_edition::needs_guard(&[tool]).await {
                // The rules that go were its guard.
                first_edition::stop_routing_loopback();
            }
            match tool.install(plan).await {
                Ok(()) => return Ok(tool),
                Err(error) => failure = error,
            }
        }
    }
    Err(failure)
}

/// Whether one of these plans stands.
pub(super) async fn is_closed(plans: &[Plan], preferred: Option<Tool>) -> bool {
    for tool in Tool::all_usable(preferred).await {
        for plan in plans {
            if stands(tool, plan).await {
                return true;
            }
        }
    }
    false
}

async fn stands(tool: Tool, plan: &Plan) -> bool {
    matches!(tool.state(plan).await, Ok(State::Installed))
}
