//! Closes the metadata server to pods where the redirect cannot be installed.

use std::fmt;

use strum::Display;

use super::plan::Plan;
use super::{Error, State, Tool, first_edition, privileges};

/// Reason why the redirect is not installed, and the consequence for pods.
#[derive(Debug, thiserror::Error)]
#[error("the redirect cannot be installed: {why}. {pods}")]
pub struct NotInstalled {
    pub why: Error,
    pub pods: Pods,
}

/// Whether pods reach the metadata server while the redirect is not installed.
#[derive(Debug, Display)]
pub enum Pods {
    /// This tool's rules close the metadata server to pods.
    #[strum(
        to_string = "Until it is, pods are closed: {0} resets all their connections to the metadata server except DNS and what \
                     --redirect-allow opens"
    )]
    Closed(Tool),
    /// Nothing was changed: these are the settings of a pod, and the rules those of a node.
    #[strum(to_string = "The node's rules stay as they are")]
    AsBefore,
    /// Nothing was changed: earlier rules close the metadata server to pods and send them to addresses of this node.
    #[strum(
        to_string = "The rules in force stay: they close the metadata server to pods, and a proxy may serve pods through them"
    )]
    InForce,
    /// Pods reach the metadata server itself, unless there are rules of an earlier redirect. The error is the reason why the
    /// closing rules could not be installed.
    #[strum(
        to_string = "Pods are OPEN unless an earlier redirect is in place: they reach the metadata server itself, with the node's \
                     tokens and secrets, because not even the rules that close it can be installed ({0})"
    )]
    Open(Error),
}

/// What pods reach while the proxy does not start.
#[derive(Debug)]
pub enum Unserved {
    /// Rules that were in force before stay.
    InForce(State),
    /// There were none, they did not close the metadata server to pods, or they could not be listed.
    NotInstalled(Pods),
}

impl fmt::Display for Unserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InForce(State::Differs(what)) => write!(f, "The rules in force stay: {what}"),
            Self::InForce(State::Closed) => write!(f, "Pods stay closed"),
            Self::InForce(_) => write!(f, "The redirect in force stays"),
            Self::NotInstalled(pods) => write!(f, "The redirect is not installed. {pods}"),
        }
    }
}

/// Puts the first of these plans into force that is installed already or that a tool accepts. `preferred` is tried first. In an attempt
/// ([`process::attempt`](super::process::attempt)), as pods may be open.
pub(super) async fn close(why: Error, plans: &[Plan], preferred: Option<Tool>) -> NotInstalled {
    NotInstalled { why, pods: install_first(plans, preferred).await }
}

/// The same, without a reason.
pub(super) async fn install_first(plans: &[Plan], preferred: Option<Tool>) -> Pods {
    try_each(plans, preferred).await.map_or_else(Pods::Open, Pods::Closed)
}

async fn try_each(plans: &[Plan], preferred: Option<Tool>) -> Result<Tool, Error> {
    privileges::check()?;
    let mut failure = Error::NoTool;
    for tool in Tool::all_usable(preferred).await {
        for plan in plans {
            match put_into_force(tool, plan).await {
                Ok(()) => return Ok(tool),
                Err(error) => failure = error,
            }
        }
    }
    Err(failure)
}

async fn put_into_force(tool: Tool, plan: &Plan) -> Result<(), Error> {
    if tool.has(plan).await.unwrap_or(false) {
        return Ok(());
    }
    let needs_guard = if plan.guards_loopback() { Ok(false) } else { first_edition::needs_guard(&[tool]).await };
    // Without the earlier rules, loopback has no guard.
    if matches!(needs_guard, Ok(true)) && !first_edition::stop_routing_loopback() {
        first_edition::say_that_loopback_is_open();
    }
    let installed = tool.install(plan).await;
    // What is refused may have replaced the rules of one IP version.
    if let Err(error) = needs_guard {
        first_edition::say_that_loopback_may_be_open(&error);
    }
    installed
}

/// Whether one of these plans is installed.
pub(super) async fn is_closed(plans: &[Plan], preferred: Option<Tool>) -> bool {
    for tool in Tool::all_usable(preferred).await {
        for plan in plans {
            match tool.has(plan).await {
                Ok(true) => return true,
                Ok(false) => {}
                // No more can be read for the other plans.
                Err(_) => break,
            }
        }
    }
    false
}
