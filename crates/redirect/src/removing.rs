//! Removes all redirects.

use super::plan::Plan;
use super::{Error, Tool, addresses, first_edition, privileges};

/// Removes all redirects, regardless of the tool and settings they were installed with, and the addresses that they added.
/// Returns the tools used, each with whether it had rules of a redirect. Where one fails, the other's rules are removed all the
/// same, and the addresses stay: the rules that remain may send pods there.
pub async fn remove() -> Result<Vec<(Tool, bool)>, Error> {
    privileges::check()?;
    let (mut used, mut failures) = (Vec::new(), Vec::new());
    for tool in [Tool::Nft, Tool::Iptables] {
        match remove_from(tool).await {
            Ok(had_any) => used.extend(had_any.map(|had_any| (tool, had_any))),
            Err(failure) => failures.push(failure.to_string()),
        }
    }
    if !failures.is_empty() {
        return Err(Error::Remain(failures.join("; ")));
    }
    if used.is_empty() {
        return Err(Error::NoTool);
    }
    // nft's rules would send pods to an address that is gone.
    let may_be_unseen = !used.iter().any(|(tool, had_any)| *tool == Tool::Nft || *had_any);
    if may_be_unseen && addresses::has_any().map_err(Error::Addresses)? {
        return Err(Error::Unseen);
    }
    addresses::remove().map_err(Error::Addresses)?;
    Ok(used)
}

/// Removes this tool's rules. Returns whether there were any, or `None` if the tool is not usable.
async fn remove_from(tool: Tool) -> Result<Option<bool>, Error> {
    let Some(tool) = tool.if_usable().await? else { return Ok(None) };
    let listing = tool.listing().await;
    let had_any = !matches!(listing, Ok(None));
    // Routing to loopback must stop before the rules that guard it are removed. Rules that cannot be read may be such.
    let guards =
        first_edition::is_loopback_routed() && listing?.is_some_and(|listing| first_edition::is_marked(&listing));
    if guards && !first_edition::stop_routing_loopback() {
        first_edition::say_that_loopback_stays_guarded();
        tool.install(&Plan::loopback_alone()).await?;
    } else {
        tool.remove().await?;
    }
    Ok(Some(had_any))
}
