//! Who answers at the server's addresses, by its name, and at other ports.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::answer::{Asked, is_ours, who};
use super::verdict::{Finding, Verdict};
use crate::check::probe::{Exchange, Response};
use redirect::{METADATA_V4, METADATA_V6};

const INSTALL: &str = "run 'gce-metadata-proxy redirect check' in the container 'redirect' of this node's proxy: it says which rules \
                       are missing. If none is, the node's network bypasses the rules (Cilium with eBPF host routing, Dataplane \
                       V2): see 'Cilium' in deploy/README.md. The node itself and pods with hostNetwork: true cannot be redirected";
const CLOSE: &str = "if the redirect leaves it open on purpose, let this check know: --redirect-allow, or \
                     METADATA_PROXY_REDIRECT_ALLOW (Helm: redirect.allow). Otherwise run 'gce-metadata-proxy redirect check' \
                     in the container 'redirect' of this node's proxy: it says which rules are missing. If none is, the node's \
                     network bypasses the rules, and a network policy must block this";
const BLOCK: &str = "no rule of this node sees the packets of this interface: its network must not lead to the metadata server, or pods \
                     must not have it";
const ALLOWED: &str = "it is open, as --redirect-allow says";

pub(in crate::check) fn proxied(exchange: &Exchange) -> Finding {
    let asked = Asked("proxied", exchange);
    match &exchange.outcome {
        Ok(answer) if is_ours(answer) => asked.protected("the proxy answers"),
        Ok(answer) => asked.unprotected(by_another(answer), INSTALL),
        Err(error) => asked.silent(error),
    }
}

fn by_another(answer: &Response) -> String {
    format!("answered by {}, not by the proxy", who(answer))
}

/// The server's address of an IP version that this pod can use beside the first. It may be blocked: then programs use the first.
pub(in crate::check) fn other_address(exchange: &Exchange, is_allowed: bool) -> Finding {
    let asked = Asked("proxied", exchange);
    match &exchange.outcome {
        Err(error) => asked.protected(format!("it is closed: {error}")),
        Ok(answer) if is_allowed && !is_ours(answer) => asked.found(Verdict::Allowed, ALLOWED),
        Ok(_) => proxied(exchange),
    }
}

/// The server through another interface of this pod, which may lead nowhere.
pub(in crate::check) fn other_interface(exchange: &Exchange) -> Finding {
    let asked = Asked("proxied", exchange);
    match &exchange.outcome {
        Err(error) => asked.protected(format!("it is closed: {error}")),
        Ok(answer) if is_ours(answer) => proxied(exchange),
        Ok(answer) => asked.unprotected(by_another(answer), BLOCK),
    }
}

pub(in crate::check) fn name(found: IpAddr, exchange: &Exchange) -> Finding {
    let mut finding = Finding { topic: "name", ..proxied(exchange) };
    if ![IpAddr::V4(METADATA_V4), IpAddr::V6(METADATA_V6)].contains(&found) {
        finding.seen = format!("the name resolves to {found}; there, {}", finding.seen);
    }
    finding
}

pub(in crate::check) fn unknown_name(name: &str, error: &io::Error) -> Finding {
    Finding::new("name", Verdict::Trouble, format!("look up {name}"), format!("it has no address: {error}")).advising(
        "check the DNS resolver used here: it must forward this name to the metadata server (169.254.169.254, port 53); \
         or set GCE_METADATA_HOST=169.254.169.254",
    )
}

/// Whether a connection succeeded that should be blocked, unless it is allowed. `error` is `None` if it succeeded.
pub(in crate::check) fn way_round(addr: SocketAddr, error: Option<&io::Error>, is_allowed: bool) -> Finding {
    let found = |verdict, seen| Finding::new("way_round", verdict, format!("connect to {addr}"), seen);
    match error {
        Some(error) => found(Verdict::Protected, &*format!("it is closed: {error}")),
        None if is_allowed => found(Verdict::Allowed, ALLOWED),
        None => found(Verdict::Unprotected, "it is open").advising(CLOSE),
    }
}

#[cfg(test)]
mod tests {
    use super::super::answer::samples::{OURS, REAL, exchange, failed};
    use super::*;

    #[test]
    fn the_proxy_is_recognised_by_its_server_header() {
        assert_eq!(proxied(&exchange(200, OURS, "")).verdict, Verdict::Protected);
        assert_eq!(proxied(&exchange(200, REAL, "")).verdict, Verdict::Unprotected);
        assert_eq!(proxied(&exchange(200, None, "")).verdict, Verdict::Unprotected);
        assert_eq!(proxied(&failed()).verdict, Verdict::Trouble);
    }

    #[test]
    fn the_server_s_other_address_leads_to_the_proxy_or_nowhere() {
        for (answer, is_allowed, verdict) in [
            (exchange(200, OURS, ""), false, Verdict::Protected),
            (exchange(200, OURS, ""), true, Verdict::Protected),
            (exchange(200, REAL, ""), false, Verdict::Unprotected),
            (exchange(200, REAL, ""), true, Verdict::Allowed),
            (failed(), false, Verdict::Protected),
        ] {
            let found = other_address(&answer, is_allowed);
            assert_eq!(found.verdict, verdict, "{found:?}");
        }
    }

    #[test]
    fn another_interface_leads_to_the_proxy_or_nowhere() {
        for (answer, verdict) in [
            (exchange(200, OURS, ""), Verdict::Protected),
            (exchange(200, REAL, ""), Verdict::Unprotected),
            (failed(), Verdict::Protected),
        ] {
            assert_eq!(other_interface(&answer).verdict, verdict, "{answer:?}");
        }
    }

    #[test]
    fn a_way_round_may_be_open_on_purpose() {
        let addr = SocketAddr::from(([169, 254, 169, 254], 443));
        for (is_allowed, verdict) in [(true, Verdict::Allowed), (false, Verdict::Unprotected)] {
            let found = way_round(addr, None, is_allowed);
            assert_eq!((found.verdict, found.advice.is_none()), (verdict, is_allowed));
        }
        assert_eq!(way_round(addr, Some(&io::ErrorKind::ConnectionRefused.into()), false).verdict, Verdict::Protected);
    }

    #[test]
    fn an_unexpected_address_of_the_name_is_reported() {
        let elsewhere = name(IpAddr::from([10, 0, 0, 1]), &exchange(200, REAL, ""));
        assert!(elsewhere.seen.contains("10.0.0.1"), "{elsewhere:?}");
        assert_eq!((elsewhere.topic, elsewhere.verdict), ("name", Verdict::Unprotected));
    }
}
