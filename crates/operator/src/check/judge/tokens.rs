//! Whether pods get tokens.

use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;

use super::answer::{Asked, FAILING, is_ours, sentence, who};
use super::verdict::Finding;
use crate::check::probe::Exchange;
use proxy::failure::OWN_TOKEN;

/// Longest time to fetch a token that is not reported. Slower tokens noticeably delay the start of programs.
const SLOW_TOKEN_TIME: Duration = Duration::from_secs(1);

const NO_OWN_TOKEN: &str = "do what the sentence says; docs/identity-operations.md#when-pods-get-no-tokens has more";

pub(in crate::check) fn token(exchange: &Exchange) -> Finding {
    /// Only this field is read; the rest is discarded.
    #[derive(Deserialize)]
    struct Token {
        expires_in: u64,
    }
    let asked = Asked("token", exchange);
    match &exchange.outcome {
        Ok(answer) if answer.status == StatusCode::NOT_FOUND => {
            asked.protected("404: this machine has no service account")
        }
        Ok(answer) if answer.status.is_success() => match serde_json::from_slice::<Token>(&answer.body) {
            Ok(Token { expires_in }) if exchange.took > SLOW_TOKEN_TIME => asked.trouble(
                format!("slow: a token for {expires_in} s"),
                "check the upstream latency in the proxy's /metrics: the metadata server is slow or refuses requests",
            ),
            Ok(Token { expires_in }) => asked.protected(format!("a token for {expires_in} s")),
            Err(_) => asked.trouble(
                format!("{} answers with something that is not a token", who(answer)),
                "check who answers at this address (the first line)",
            ),
        },
        Ok(answer) => {
            let seen = format!("no token: {} from {}", answer.status.as_u16(), who(answer));
            let Some(why) = sentence(answer) else { return asked.trouble(seen, FAILING) };
            let is_own = answer.status == StatusCode::FORBIDDEN || why.starts_with(OWN_TOKEN);
            asked.trouble(format!("{seen}: {why}"), if is_own { NO_OWN_TOKEN } else { FAILING })
        }
        Err(error) => asked.silent(error),
    }
}

/// Judges a token request by POST. Only clients with an agent certificate request tokens this way.
pub(in crate::check) fn bound_token(exchange: &Exchange) -> Finding {
    let asked = Asked("bound_token", exchange);
    match &exchange.outcome {
        Ok(answer) if answer.status == StatusCode::NOT_FOUND && is_ours(answer) => asked.protected(
            "404: no token is bound to a certificate here; pods with an agent certificate set \
             GOOGLE_API_ENABLE_RUNTIME_BOUND_TOKEN=false",
        ),
        Ok(answer) => asked.protected(format!("{} from {}", answer.status.as_u16(), who(answer))),
        Err(error) => asked.silent(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::answer::samples::{OURS, REAL, exchange, failed};
    use super::super::verdict::Verdict;
    use super::*;

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
}
