//! Whether pods get secrets of the node, or its identity tokens.

use super::answer::{Asked, is_ours, is_refusal, who};
use super::verdict::Finding;
use crate::check::probe::Exchange;
use proxy::policy::Choice;

const CONCEAL: &str = "check that the proxy answers here (the first line). If it does, its policy shows this, or it runs with \
                       --policy-mode audit (its /statusz says which): conceal it, unless all pods may read it. This check judges by \
                       compat and cannot know what a policy shows on purpose, so it stays OPEN";
const PASSED_ON: &str = "the request reached the server. If the proxy answers here (the first line), it runs with --policy-mode audit, \
                         or with a policy that conceals too little: its /statusz says which";

/// Whether a request is for a directory. The response may come without the secrets.
pub(in crate::check) fn is_listing(request: &str) -> bool {
    request.contains('?')
}

/// Whether each built-in policy conceals what is requested, in any API version. So nobody but the proxy refuses it, whether the
/// server has it or not.
fn is_always_concealed(request: &str) -> bool {
    request.ends_with("/attributes/kube-env")
}

pub(in crate::check) fn secret(exchange: &Exchange) -> Finding {
    let asked = Asked("concealed", exchange);
    match &exchange.outcome {
        Ok(answer) if answer.status.is_success() && !is_listing(&exchange.request) => {
            asked.unprotected(format!("{} returns it", who(answer)), CONCEAL)
        }
        Ok(answer) if answer.status.is_success() => match secrets_in(&answer.body) {
            secrets if secrets.is_empty() => asked.protected("answered without the secret values"),
            secrets => {
                let (who, secrets) = (who(answer), secrets.join(", "));
                asked.unprotected(format!("{who} returns it with {secrets}, which the policy compat conceals"), CONCEAL)
            }
        },
        Ok(answer) if is_refusal(answer) && !is_ours(answer) && is_always_concealed(&exchange.request) => {
            let seen = format!("{}: {} was asked, and does not have it", answer.status.as_u16(), who(answer));
            asked.unprotected(seen, PASSED_ON)
        }
        Ok(answer) => asked.refused(answer),
        Err(error) => asked.silent(error),
    }
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
pub(in crate::check) fn identity(exchange: &Exchange, aliases: &Exchange) -> Finding {
    let asked = Asked("identity", exchange);
    let is_own = aliases.outcome.as_ref().is_ok_and(|answer| answer.status.is_success() && is_ours(answer));
    match &exchange.outcome {
        Ok(answer) if answer.status.is_success() && is_ours(answer) && is_own => {
            asked.protected("the proxy issues one of the pod's own account, and not the node's")
        }
        Ok(answer) if answer.status.is_success() => asked.unprotected(
            format!("{} issues an identity token of the node", who(answer)),
            "check that the proxy answers here (the first line); if its policy allows identity tokens, every pod can \
             impersonate this node: conceal them unless that is intended",
        ),
        Ok(answer) => asked.refused(answer),
        Err(error) => asked.silent(error),
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantNames;

    use super::super::answer::samples::{OURS, REAL, exchange, failed};
    use super::super::verdict::Verdict;
    use super::*;
    use crate::check::SECRETS;
    use protocol::metadata::{MetadataPath, Query, Request};
    use proxy::policy::{BuiltIn, Decision, Source};

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

    /// It answers, so it runs, and its redirect has not closed pods.
    #[test]
    fn a_proxy_that_fails_says_why_and_is_not_said_to_be_away() {
        let down = |server, body| secret(&exchange(503, server, body));
        let found = down(OURS, "The metadata server is not available: it is slow.\n");
        assert_eq!(found.seen, "503 from the proxy: The metadata server is not available: it is slow");
        for (found, is_up) in [(found, true), (down(OURS, ""), true), (down(REAL, "x"), false)] {
            let advice = found.advice.as_deref().unwrap_or_default();
            assert_eq!((advice.contains("gce-metadata-proxy status"), advice.contains("is running")), (is_up, !is_up));
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
        // A policy of one's own may show it on purpose.
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
}
