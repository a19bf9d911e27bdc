//! What a redirect lets pass, and the proxy's own redirect.

use clap::Args;
use serde::Serialize;

use super::flag::{Flag, flags};
use super::given::{Given, Mistakes, Syntax, syntax};
use super::syntax::{ArgExt as _, OnOff, Switch};
use redirect::{DropSpoofed, Opened, Rate, Routes};

/// The redirect that the proxy installs itself.
#[derive(Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct OwnRedirectArgs {
    /// Redirect metadata requests from this node's pods to the first --addr of each IP version that is not loopback while
    /// serving, as `redirect install --keep` does. Requires nft or iptables, root, and the capability `NET_ADMIN`
    #[arg(long, env = "METADATA_PROXY_REDIRECT", switch = false)]
    redirect: Switch,

    #[command(flatten)]
    #[serde(flatten)]
    opened: OpenedArgs,
}

flags! {
    /// Packets that the redirect lets pass.
    #[derive(Debug, Args, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub(super) struct OpenedArgs => Opened {
        #[command(flatten)]
        #[serde(flatten)]
        routes: RoutesArgs => routes,

        /// Drop packets for the metadata server that arrive on an interface other than the one that routes to their source address
        /// (a strict reverse-path check), so that no pod can use another's address. auto: only if each pod interface has a route for
        /// every IP version that pods use. Without a value: true. Not for networks such as Cilium's, where pods' packets arrive on
        /// another interface
        #[arg(
            long,
            value_name = "auto|true|false",
            env = "METADATA_PROXY_REDIRECT_DROP_SPOOFED",
            default_value = DropSpoofed::default().to_string(),
            num_args = 0..=1,
            require_equals = true,
            default_missing_value = DropSpoofed::True.to_string()
        )]
        redirect_drop_spoofed: Given<DropSpoofedSyntax> => drop_spoofed,

        /// New connections per second that each source address may open, after a burst of ten times as many. The kernel drops
        /// those beyond. daemonset only. 0 turns it off
        #[arg(
            long,
            value_name = "RATE",
            env = "METADATA_PROXY_REDIRECT_MAX_NEW_CONNECTIONS",
            default_value = Rate::DEFAULT.per_second().to_string(),
            allow_negative_numbers = true
        )]
        redirect_max_new_connections: Given<NewConnections> => max_new_connections,
    }
}

/// Routes to the metadata server that bypass the proxy and stay open.
#[derive(Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct RoutesArgs {
    /// Route to the metadata server that the redirect does not block: a TCP port of 169.254.169.254, or ipv6 for
    /// `fd20:ce::254`, which is the server itself with all its secrets. May be repeated. DNS is always allowed
    #[arg(long, value_name = "PORT|ipv6", env = "METADATA_PROXY_REDIRECT_ALLOW", value_delimiter = ',')]
    redirect_allow: Vec<Given<Route>>,
}

impl Flag for OwnRedirectArgs {
    type Value = Option<Opened>;

    fn resolve(self, mistakes: &mut Mistakes) -> Option<Option<Opened>> {
        let is_on = self.redirect.resolve(mistakes);
        let opened = self.opened.resolve(mistakes)?;
        Some(is_on?.then_some(opened))
    }

    fn showing(opened: Option<Opened>) -> Self {
        Self { redirect: Flag::showing(opened.is_some()), opened: Flag::showing(opened.unwrap_or_default()) }
    }
}

impl OpenedArgs {
    /// Adds a mistake for each typed flag that has no effect in a pod.
    pub(super) fn check_in_pod(&self, mistakes: &mut Mistakes) {
        let Opened { drop_spoofed, max_new_connections, .. } = Opened::default();
        let drops = self.redirect_drop_spoofed.is_typed_other_than(&drop_spoofed);
        mistakes.without("--redirect-drop-spoofed", "--mode daemonset", drops);
        let limits = self.redirect_max_new_connections.is_typed_other_than(&max_new_connections);
        mistakes.without("--redirect-max-new-connections", "--mode daemonset", limits);
    }
}

impl RoutesArgs {
    pub(super) fn is_typed(&self) -> bool {
        self.redirect_allow.iter().any(Given::is_typed)
    }
}

impl Flag for RoutesArgs {
    type Value = Routes;

    fn resolve(self, mistakes: &mut Mistakes) -> Option<Routes> {
        let routes = self.redirect_allow.resolve(mistakes)?;
        Some(Routes { ipv6: routes.contains(&None), ports: routes.into_iter().flatten().collect() })
    }

    fn showing(Routes { ports, ipv6 }: Routes) -> Self {
        let routes = ports.into_iter().map(Some).chain(ipv6.then_some(None));
        Self { redirect_allow: Flag::showing(routes.collect()) }
    }
}

/// A TCP port of the metadata server, or `None` for its IPv6 address.
#[derive(Debug, Clone)]
struct Route;

impl Syntax for Route {
    type Value = Option<u16>;

    fn expected() -> String {
        "ipv6 or a port number other than 80, which is always redirected".to_owned()
    }

    fn parse(text: &str) -> Option<Option<u16>> {
        match text {
            "ipv6" => Some(None),
            port => port.parse().ok().filter(|port| !matches!(port, 0 | 80)).map(Some),
        }
    }

    fn show(value: &Option<u16>) -> String {
        value.map_or_else(|| "ipv6".to_owned(), |port| port.to_string())
    }
}

/// Whether to drop spoofed packets: a switch, or `auto`.
#[derive(Debug, Clone)]
struct DropSpoofedSyntax;

syntax! {
    DropSpoofedSyntax => DropSpoofed, drop_spoofed, "auto, true or false";
}

fn drop_spoofed(text: &str) -> Option<DropSpoofed> {
    if text == "auto" {
        return Some(DropSpoofed::Auto);
    }
    OnOff::parse(text).map(|is_on| if is_on { DropSpoofed::True } else { DropSpoofed::False })
}

/// New connections per second, or `None` for 0, which means no limit.
#[derive(Debug, Clone)]
struct NewConnections;

impl Syntax for NewConnections {
    type Value = Option<Rate>;

    fn expected() -> String {
        format!("a number of connections per second from 1 to {}, or 0 for no bound", Rate::MAX)
    }

    fn parse(text: &str) -> Option<Option<Rate>> {
        match text.parse().ok()? {
            0 => Some(None),
            per_second => Rate::new(per_second).map(Some),
        }
    }

    fn show(value: &Option<Rate>) -> String {
        value.map_or(0, Rate::per_second).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::super::redirect::tests::redirect;
    use super::super::tests::mistakes;
    use super::*;

    #[test]
    fn spoofed_packets_are_dropped_where_it_is_safe_unless_somebody_decides() {
        for (flag, expected) in [
            ("", DropSpoofed::Auto),
            ("--redirect-drop-spoofed=auto", DropSpoofed::Auto),
            ("--redirect-drop-spoofed", DropSpoofed::True),
            ("--redirect-drop-spoofed=1", DropSpoofed::True),
            ("--redirect-drop-spoofed=false", DropSpoofed::False),
        ] {
            let redirect = redirect(&format!("redirect check {flag}"));
            assert_eq!(redirect.settings.opened.drop_spoofed, expected, "{flag}");
        }
        assert!(mistakes("redirect check --redirect-drop-spoofed=often").contains("auto, true or false"));
    }

    #[test]
    fn what_only_a_node_needs_has_no_effect_in_a_pod() {
        let sidecar = "redirect check --mode sidecar --proxy-uid 1";
        redirect(&format!("{sidecar} --redirect-drop-spoofed=auto --redirect-max-new-connections=500"));
        for (flag, value) in [("--redirect-drop-spoofed", "=false"), ("--redirect-max-new-connections", "=0")] {
            let said = mistakes(&format!("{sidecar} {flag}{value}"));
            assert!(said.contains(&format!("{flag} has no effect without --mode daemonset")), "{said}");
        }
    }
}
