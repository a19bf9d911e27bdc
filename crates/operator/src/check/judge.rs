//! Interprets observations and suggests fixes. Pure.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::probe::{Exchange, Response};
use crate::finding;
use proxy::failure::OWN_TOKEN;
use proxy::policy::Choice;
use proxy::reply;
use redirect::{METADATA_V4, METADATA_V6};
use telemetry::labels;

/// Longest time to fetch a token that is not reported. Slower tokens noticeably delay the start of programs.
const SLOW_TOKEN_TIME: Duration = Duration::from_secs(1);

labels! {
    /// Meaning of an observation, from good to bad.
    #[derive(PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "lowercase")]
    Verdict {
        /// Passed.
        Protected = "protected",
        /// Exposed on purpose (`--redirect-allow`).
        Allowed = "allowed",
        /// Not exposed, but not working.
        Trouble = "trouble",
        /// Exposed.
        Unprotected = "unprotected",
    }
}

impl Verdict {
    /// Whether nothing is exposed unintentionally, and everything works.
    pub fn is_good(self) -> bool {
        self <= Self::Allowed
    }
}

/// Result of one check. The topic is the check's name. No advice if it passed.
pub type Finding = finding::Finding<&'static str, Verdict>;

const INSTALL: &str = "run 'gce-metadata-proxy redirect check' in the container 'redirect' of this node's proxy: it says which rules \
                       are missing. If none is, the node's network bypasses the rules (Cilium with eBPF host routing, Dataplane \
                       V2): see 'Cilium' in deploy/README.md. The node itself and pods with hostNetwork: true cannot be redirected";
const CLOSE: &str = "if the redirect leaves it open on purpose, let this check know: --redirect-allow, or \
                     METADATA_PROXY_REDIRECT_ALLOW (Helm: redirect.allow). Otherwise run 'gce-metadata-proxy redirect check' \
                     in the container 'redirect' of this node's proxy: it says which rules are missing. If none is, the node's \
                     network bypasses the rules, and a network policy must block this";
const START: &str = "check that the proxy of this node is running and ready (see its log and /readyz); until then pods get \
                     neither metadata nor the node's secrets. If it is well, its redirect may have closed pods: \
                     kubectl exec POD -c redirect -- /gce-metadata-proxy redirect check says why";
const ALLOW: &str = "somebody drops packets on the way or answers too late. If network policies select this pod, they must allow \
                     its requests: docs/redirect.md#network-policies says which address. Otherwise check that the proxy of \
                     this node is running and ready (see its log and /readyz)";
const NO_OWN_TOKEN: &str = "do what the sentence says; docs/identity-operations.md#when-pods-get-no-tokens has more";
const PASSED_ON: &str = "the request reached the server. If the proxy answers here (the first line), it runs with --policy-mode audit, \
                         or with a policy that conceals too little: its /statusz says which";
const BLOCK: &str = "no rule of this node sees the packets of this interface: its network must not lead to the metadata server, or pods \
                     must not have it";
const CONCEAL: &str = "check that the proxy answers here (the first line). If it does, its policy shows this, or it runs with \
                       --policy-mode audit (its /statusz says which): conceal it, unless all pods may read it. This check judges by \
                       compat and cannot know what a policy shows on purpose, so it stays OPEN";

pub(super) fn proxied(exchange: &Exchange) -> Finding {
    let (verdict, seen, advice) = match &exchange.outcome {
        Ok(answer) if is_ours(answer) => (Verdict::Protected, "the proxy answers".to_owned(), None),
        Ok(answer) => (Verdict::Unprotected, format!("answered by {}, not by the proxy", who(answer)), Some(INSTALL)),
        Err(error) => silence(error),
    };
    finding("proxied", exchange, verdict, seen, advice)
}

/// The server's address of an IP version that this pod can use beside the first. It may be blocked: then programs use the first.
pub(super) fn other_address(exchange: &Exchange, is_allowed: bool) -> Finding {
    match &exchange.outcome {
        Err(error) => finding("proxied", exchange, Verdict::Protected, format!("it is closed: {error}"), None),
        Ok(answer) if is_allowed && !is_ours(answer) => {
            finding("proxied", exchange, Verdict::Allowed, "it is open, as --redirect-allow says".to_owned(), None)
        }
        Ok(_) => proxied(exchange),
    }
}

/// The server through another interface of this pod, which may lead nowhere.
pub(super) fn other_interface(exchange: &Exchange) -> Finding {
    match &exchange.outcome {
        Err(error) => finding("proxied", exchange, Verdict::Protected, format!("it is closed: {error}"), None),
        Ok(answer) if is_ours(answer) => proxied(exchange),
        Ok(answer) => {
            let seen = format!("answered by {}, not by the proxy", who(answer));
            finding("proxied", exchange, Verdict::Unprotected, seen, Some(BLOCK))
        }
    }
}

pub(super) fn name(found: IpAddr, exchange: &Exchange) -> Finding {
    let mut finding = Finding { topic: "name", ..proxied(exchange) };
    if ![IpAddr::V4(METADATA_V4), IpAddr::V6(METADATA_V6)].contains(&found) {
        finding.seen = format!("the name resolves to {found}; there, {}", finding.seen);
    }
    finding
}

pub(super) fn unknown_name(name: &str, error: &io::Error) -> Finding {
    Finding::new("name", Verdict::Trouble, format!("look up {name}"), format!("it has no address: {error}")).advising(
        "check the DNS resolver used here: it must forward this name to the metadata server (169.254.169.254, port 53); \
         or set GCE_METADATA_HOST=169.254.169.254",
    )
}

/// Whether a request is for a directory. The response may come without the secrets.
pub(super) fn is_listing(request: &str) -> bool {
    request.contains('?')
}

/// Whether each built-in policy conceals what is requested, in any API version. So nobody but the proxy refuses it, whether the
/// server has it or not.
pub(super) fn is_always_concealed(request: &str) -> bool {
    request.ends_with("/attributes/kube-env")
}

pub(super) fn secret(exchange: &Exchange) -> Finding {
    let (verdict, seen, advice) = match &exchange.outcome {
        Ok(answer) if answer.status.is_success() && !is_listing(&exchange.request) => {
            (Verdict::Unprotected, format!("{} returns it", who(answer)), Some(CONCEAL))
        }
        Ok(answer) if answer.status.is_success() => match secrets_in(&answer.body) {
            secrets if secrets.is_empty() => {
                (Verdict::Protected, "answered without the secret values".to_owned(), None)
            }
            secrets => {
                let seen =
                    format!("{} returns it with {}, which the policy compat conceals", who(answer), secrets.join(", "));
                (Verdict::Unprotected, seen, Some(CONCEAL))
            }
        },
        Ok(answer) if is_refusal(answer) && !is_ours(answer) && is_always_concealed(&exchange.request) => {
            let seen = format!("{}: {} was asked, and does not have it", answer.status.as_u16(), who(answer));
            (Verdict::Unprotected, seen, Some(PASSED_ON))
        }
        Ok(answer) => refused(answer),
        Err(error) => silence(error),
    };
    finding("concealed", exchange, verdict, seen, advice)
}

/// The names in a recursive read of attributes that the policy `compat` conceals.
fn secrets_in(attributes: &[u8]) -> Vec<String> {
    let Ok(attributes) = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(attributes) else {
        // Of no known format. The name would be there in any.
        let has_secrets = String::from_utf8_lossy(attributes).contains("kube-env");
        return has_secrets.then(|| "kube-env".to_owned()).into_iter().collect();
    };
    let compat = Choice::default().load().expect("it is built in");
    attributes
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| !compat.shows(&format!("instance/attributes/{name}")))
        .collect()
}

/// Whether pods get the node's identity tokens. Tokens of the pod's own account are fine: with workload identity, the proxy
/// itself answers requests for the aliases of the pod's own account, and forwards those for the node's.
pub(super) fn identity(exchange: &Exchange, aliases: &Exchange) -> Finding {
    let is_own = aliases.outcome.as_ref().is_ok_and(|answer| answer.status.is_success() && is_ours(answer));
    let (verdict, seen, advice) = match &exchange.outcome {
        Ok(answer) if answer.status.is_success() && is_ours(answer) && is_own => {
            (Verdict::Protected, "the proxy issues one of the pod's own account, and not the node's".to_owned(), None)
        }
        Ok(answer) if answer.status.is_success() => {
            let seen = format!("{} issues an identity token of the node", who(answer));
            let advice = "check that the proxy answers here (the first line); if its policy allows identity tokens, \
                          every pod can impersonate this node: conceal them unless that is intended";
            (Verdict::Unprotected, seen, Some(advice))
        }
        Ok(answer) => refused(answer),
        Err(error) => silence(error),
    };
    finding("identity", exchange, verdict, seen, advice)
}

pub(super) fn token(exchange: &Exchange) -> Finding {
    /// Only this field is read; the rest is discarded.
    #[derive(Deserialize)]
    struct Token {
        expires_in: u64,
    }
    let (verdict, seen, advice) = match &exchange.outcome {
        Ok(answer) if answer.status == StatusCode::NOT_FOUND => {
            (Verdict::Protected, "404: this machine has no service account".to_owned(), None)
        }
        Ok(answer) if answer.status.is_success() => match serde_json::from_slice::<Token>(&answer.body) {
            Ok(Token { expires_in }) if exchange.took > SLOW_TOKEN_TIME => {
                let advice = "check the upstream latency in the proxy's /metrics: the metadata server is slow or refuses requests";
                (Verdict::Trouble, format!("slow: a token for {expires_in} s"), Some(advice))
            }
            Ok(Token { expires_in }) => (Verdict::Protected, format!("a token for {expires_in} s"), None),
            Err(_) => {
                let seen = format!("{} answers with something that is not a token", who(answer));
                (Verdict::Trouble, seen, Some("check who answers at this address (the first line)"))
            }
        },
        Ok(answer) => {
            let seen = format!("no token: {} from {}", answer.status.as_u16(), who(answer));
            let server_failed = "check the proxy's log and /readyz for errors of the metadata server";
            match sentence(answer) {
                None => (Verdict::Trouble, seen, Some(server_failed)),
                Some(why) => {
                    let is_own = answer.status == StatusCode::FORBIDDEN || why.starts_with(OWN_TOKEN);
                    let advice = if is_own { NO_OWN_TOKEN } else { server_failed };
                    (Verdict::Trouble, format!("{seen}: {why}"), Some(advice))
                }
            }
        }
        Err(error) => silence(error),
    };
    finding("token", exchange, verdict, seen, advice)
}

/// Judges a token request by POST. Only clients with an agent certificate request tokens this way.
pub(super) fn bound_token(exchange: &Exchange) -> Finding {
    let (verdict, seen, advice) = match &exchange.outcome {
        Ok(answer) if answer.status == StatusCode::NOT_FOUND && is_ours(answer) => {
            let seen = "404: no token is bound to a certificate here; pods with an agent certificate set \
                        GOOGLE_API_ENABLE_RUNTIME_BOUND_TOKEN=false";
            (Verdict::Protected, seen.to_owned(), None)
        }
        Ok(answer) => (Verdict::Protected, format!("{} from {}", answer.status.as_u16(), who(answer)), None),
        Err(error) => silence(error),
    };
    finding("bound_token", exchange, verdict, seen, advice)
}

/// Whether a connection succeeded that should be blocked, unless it is allowed. `error` is `None` if it succeeded.
pub(super) fn way_round(addr: SocketAddr, error: Option<&io::Error>, is_allowed: bool) -> Finding {
    let found = |verdict, seen| Finding::new("way_round", verdict, format!("connect to {addr}"), seen);
    match error {
        Some(error) => found(Verdict::Protected, &*format!("it is closed: {error}")),
        None if is_allowed => found(Verdict::Allowed, "it is open, as --redirect-allow says"),
        None => found(Verdict::Unprotected, "it is open").advising(CLOSE),
    }
}

fn finding(
    check: &'static str,
    exchange: &Exchange,
    verdict: Verdict,
    seen: String,
    advice: Option<&'static str>,
) -> Finding {
    let found = Finding::new(check, verdict, &exchange.request, seen);
    let took = exchange.outcome.is_ok().then_some(exchange.took);
    Finding { advice: advice.map(str::to_owned), took, ..found }
}

fn refused(answer: &Response) -> (Verdict, String, Option<&'static str>) {
    let status = answer.status.as_u16();
    match status {
        403 if is_ours(answer) => (Verdict::Protected, "403: the proxy conceals it".to_owned(), None),
        _ if is_refusal(answer) => {
            (Verdict::Protected, format!("{status}: {} does not have it or refuses it", who(answer)), None)
        }
        _ => (Verdict::Trouble, format!("{status} from {}", who(answer)), Some(START)),
    }
}

fn is_refusal(answer: &Response) -> bool {
    matches!(answer.status.as_u16(), 401 | 403..=405)
}

/// Nobody answers. A proxy that is not there is refused by the kernel at once; a network policy says nothing.
fn silence(error: &io::Error) -> (Verdict, String, Option<&'static str>) {
    let advice = if error.kind() == io::ErrorKind::TimedOut { ALLOW } else { START };
    (Verdict::Trouble, format!("nobody answers: {error}"), Some(advice))
}

fn is_ours(answer: &Response) -> bool {
    answer.server.as_ref().is_some_and(|server| reply::SERVER == server.as_str())
}

/// The first line of the proxy's own refusal, if the proxy answered.
fn sentence(answer: &Response) -> Option<String> {
    let line = std::str::from_utf8(&answer.body).ok()?.lines().next()?.trim();
    (is_ours(answer) && !line.is_empty()).then(|| line.trim_end_matches('.').to_owned())
}

fn who(answer: &Response) -> String {
    match &answer.server {
        _ if is_ours(answer) => "the proxy".to_owned(),
        Some(server) => format!("{server:?}"),
        None => "an unnamed server".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantNames;

    use super::super::SECRETS;
    use super::*;
    use protocol::metadata::{MetadataPath, Query, Request};
    use proxy::policy::{BuiltIn, Decision, Source};

    fn exchange(status: u16, server: Option<&str>, body: &'static str) -> Exchange {
        let status = StatusCode::from_u16(status).expect("a status");
        let answer = Response { status, server: server.map(ToOwned::to_owned), body: body.into() };
        Exchange {
            request: "GET http://169.254.169.254/".to_owned(),
            outcome: Ok(answer),
            took: Duration::from_millis(3),
        }
    }

    fn failed() -> Exchange {
        Exchange { outcome: Err(io::ErrorKind::ConnectionRefused.into()), ..exchange(200, None, "") }
    }

    const OURS: Option<&str> = Some("gce-metadata-proxy");
    const REAL: Option<&str> = Some("Metadata Server for VM");

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
    fn a_secret_is_unprotected_only_if_it_is_returned() {
        for (status, verdict) in [
            (200, Verdict::Unprotected),
            (403, Verdict::Protected),
            (404, Verdict::Protected),
            (429, Verdict::Trouble),
            (503, Verdict::Trouble),
        ] {
            assert_eq!(secret(&exchange(status, REAL, "x")).verdict, verdict, "{status}");
            assert_eq!(identity(&exchange(status, REAL, "x"), &exchange(200, REAL, "")).verdict, verdict, "{status}");
        }
    }

    #[test]
    fn a_listing_holds_secrets_if_compat_conceals_any_of_its_names() {
        let directory =
            |body| Exchange { request: "GET http://h/a/?recursive=true".to_owned(), ..exchange(200, OURS, body) };
        for (body, verdict) in [
            (r#"{"cluster-name":"a"}"#, Verdict::Protected),
            ("{}", Verdict::Protected),
            (r#"{"kube-env":"a"}"#, Verdict::Unprotected),
            (r#"{"cluster-name":"a","user-data":"b"}"#, Verdict::Unprotected),
            (r#"{"ssh-keys":"a"}"#, Verdict::Unprotected),
            (r#"{"sshKeys":"a"}"#, Verdict::Unprotected),
            (r#"{"startup-script":"a"}"#, Verdict::Unprotected),
            (r#"{"kubeconfig":"a"}"#, Verdict::Unprotected),
            ("kube-env a\n", Verdict::Unprotected),
            ("cluster-name a\n", Verdict::Protected),
        ] {
            assert_eq!(secret(&directory(body)).verdict, verdict, "{body}");
        }
        let seen = secret(&directory(r#"{"user-data":"password"}"#)).seen;
        assert!(seen.contains("user-data") && !seen.contains("password"), "names and no values: {seen}");
        // The policy of whoever runs this may show it on purpose.
        let intended = secret(&directory(r#"{"user-data":"password"}"#));
        let advice = intended.advice.unwrap_or_default();
        assert!(intended.seen.ends_with("user-data, which the policy compat conceals"), "{}", intended.seen);
        assert!(advice.contains("its policy shows this") && advice.contains("on purpose"), "{advice}");
    }

    #[test]
    fn what_every_policy_conceals_is_refused_by_the_proxy_or_by_nobody() {
        let node = |status, server| {
            let request = "HEAD http://169.254.169.254/computeMetadata/v1/instance/attributes/kube-env".to_owned();
            secret(&Exchange { request, ..exchange(status, server, "") })
        };
        for (status, server, verdict) in [
            (403, OURS, Verdict::Protected),
            (404, OURS, Verdict::Protected),
            (404, REAL, Verdict::Unprotected),
            (403, REAL, Verdict::Unprotected),
            (503, REAL, Verdict::Trouble),
        ] {
            assert_eq!(node(status, server).verdict, verdict, "{status} {server:?}");
        }
        assert!(node(404, REAL).advice.is_some_and(|advice| advice.contains("--policy-mode audit")));
        for path in SECRETS.into_iter().filter(|path| is_always_concealed(path)) {
            let path = MetadataPath::parse(&path.parse().expect("a target")).expect("a path");
            for built_in in BuiltIn::VARIANTS {
                let choice = Choice { source: Source::parse(built_in), recursive: None };
                let policy = choice.load().expect("it is built in");
                let request = Request::get(path.clone(), Query::default());
                assert!(matches!(policy.judge(&request), Decision::Conceal(_)), "{built_in} shows {path}");
            }
        }
    }

    #[test]
    fn an_identity_token_of_the_pods_own_account_exposes_nothing() {
        let found = |token, aliases| identity(&exchange(200, token, "ey"), &aliases);
        for (token, aliases, verdict) in [
            (OURS, exchange(200, OURS, "default\n"), Verdict::Protected),
            (OURS, exchange(200, REAL, "default\n"), Verdict::Unprotected),
            (OURS, exchange(403, OURS, "no\n"), Verdict::Unprotected),
            (OURS, failed(), Verdict::Unprotected),
            (REAL, exchange(200, OURS, "default\n"), Verdict::Unprotected),
        ] {
            let shown = format!("{aliases:?}");
            assert_eq!(found(token, aliases).verdict, verdict, "{token:?} {shown}");
        }
    }

    #[test]
    fn why_there_is_no_token_is_said_by_the_proxy() {
        let why = "Pods of shop/checkout do not get tokens, because this account has no binding.\n";
        let refusal = token(&exchange(403, OURS, why));
        assert_eq!(refusal.verdict, Verdict::Trouble);
        assert_eq!(refusal.seen, format!("no token: 403 from the proxy: {}", why.trim_end_matches(".\n")));
        assert_eq!(refusal.advice.as_deref(), Some(NO_OWN_TOKEN));
        let own = token(&exchange(503, OURS, "The pod's own token is not available: Google is slow.\n"));
        assert_eq!(own.advice.as_deref(), Some(NO_OWN_TOKEN), "{own:?}");
        let down = token(&exchange(503, OURS, "The metadata server is not available: it is slow.\n"));
        assert!(down.seen.contains("it is slow") && down.advice.as_deref() != Some(NO_OWN_TOKEN), "{down:?}");
        let others = token(&exchange(403, REAL, "<html>"));
        assert!(!others.seen.contains("html"), "{}", others.seen);
    }

    #[test]
    fn a_client_with_a_certificate_is_told_the_remedy() {
        let told = bound_token(&exchange(404, OURS, "no\n"));
        assert!(
            told.verdict.is_good() && told.seen.ends_with("GOOGLE_API_ENABLE_RUNTIME_BOUND_TOKEN=false"),
            "{told:?}"
        );
        assert_eq!(
            bound_token(&exchange(200, REAL, "{}")).verdict,
            Verdict::Protected,
            "the first line says who answers"
        );
        assert_eq!(bound_token(&failed()).verdict, Verdict::Trouble);
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
    fn a_token_is_checked_and_never_printed() {
        let token = |status, body, took| token(&Exchange { took, ..exchange(status, REAL, body) });
        let whole = r#"{"access_token":"ya29.secret","expires_in":3599,"token_type":"Bearer"}"#;
        let (soon, late) = (Duration::from_millis(2), Duration::from_millis(1001));
        assert_eq!(token(200, whole, soon).verdict, Verdict::Protected);
        assert!(!format!("{:?}", token(200, whole, soon)).contains("ya29"));
        assert_eq!(token(200, whole, late).verdict, Verdict::Trouble);
        assert_eq!(token(200, "<html>", soon).verdict, Verdict::Trouble);
        assert_eq!(token(404, "", soon).verdict, Verdict::Protected);
        assert_eq!(token(503, "", soon).verdict, Verdict::Trouble);
    }

    #[test]
    fn an_unexpected_address_of_the_name_is_reported() {
        let elsewhere = name(IpAddr::from([10, 0, 0, 1]), &exchange(200, REAL, ""));
        assert!(elsewhere.seen.contains("10.0.0.1"), "{elsewhere:?}");
        assert_eq!((elsewhere.topic, elsewhere.verdict), ("name", Verdict::Unprotected));
    }
}
