//! Removes all redirects.

use super::plan::Plan;
use super::{Error, Tool, addresses, first_edition, privileges};

/// Removes all redirects, regardless of the tool and settings they were installed with, and the addresses that they added.
/// Returns the tools used, each with whether it had rules of a redirect. Where one fails, the other's rules are removed all the
/// same, and the addresses stay: the rules that remain may send pods there. That is so, too, where nft is not usable and the kernel has
/// rules of nft.
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
    if Tool::may_hide_rules().await.map_err(|error| Error::Remain(error.to_string()))? {
        let had_any = used.iter().any(|(_, had_any)| *had_any);
        return Err(if had_any { Error::Hidden } else { Error::Unseen });
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

#[cfg(test)]
mod tests {
    use super::super::plan::tests::node;
    use super::super::{PROXY, fake};
    use super::*;

    fn addresses() -> usize {
        fake::with_addresses(|addresses| addresses.map_or(0, |addresses| addresses.len())).expect("a test pretends")
    }

    /// A container installed them, and this is the host, which has iptables alone.
    #[tokio::test]
    async fn rules_that_only_nft_shows_keep_the_addresses() {
        for (what, is_installed, has_addresses) in
            [("nothing", false, true), ("old rules", true, true), ("rules to an address of the node", false, false)]
        {
            let _tools = fake::pretend(|_, _, _| None);
            fake::have_nft_table();
            if is_installed {
                Tool::Iptables.install(&node()).await.expect("it is accepted");
            }
            if !has_addresses {
                addresses::remove().expect("they can be removed");
            }
            let before = addresses();
            let error = remove().await.expect_err("nft's rules stay");
            assert_eq!(matches!(error, Error::Hidden), is_installed, "{what}: {error}");
            assert_eq!(matches!(error, Error::Unseen), !is_installed, "{what}: {error}");
            assert_eq!(addresses(), before, "{what}");
            assert_eq!(Tool::Iptables.listing().await.expect("it is listed"), None, "{what}");
        }
    }

    /// iptables' are gone by then, which an error of nft alone would not say.
    #[tokio::test]
    async fn an_nft_that_fails_at_the_end_is_named_with_what_stays() {
        let mut probed = 0;
        let _tools = fake::pretend(move |tool, _, _| {
            probed += usize::from(tool == "nft");
            (tool == "nft" && probed > 1).then(|| Err(fake::busy()))
        });
        Tool::Iptables.install(&node()).await.expect("it is accepted");
        let error = remove().await.expect_err("nft's rules may stay");
        assert!(matches!(error, Error::Remain(_)), "{error}");
        assert_eq!(addresses(), PROXY.len());
    }

    #[tokio::test]
    async fn a_host_with_iptables_alone_is_left_without_a_trace() {
        let _tools = fake::pretend(|_, _, _| None);
        Tool::Iptables.install(&node()).await.expect("it is accepted");
        assert_eq!(addresses(), PROXY.len());
        for had_any in [true, false] {
            assert_eq!(remove().await.expect("it is removed"), [(Tool::Iptables, had_any)]);
            assert_eq!(addresses(), 0);
        }
    }
}
