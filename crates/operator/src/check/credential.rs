//! The rights of the API server credential of the proxy on this machine, as the proxy itself reports them.
//!
//! The check queries the proxy, not the API server: only the proxy has the credential, and it has checked the rights
//! already. Pods cannot reach the proxy's listener for operators; for them this check does not exist.

use std::net::SocketAddr;

use serde::Deserialize;

use super::judge::{Finding, Verdict};
use super::probe::{Client, Exchange};

const PAGE: &str = "/statusz?format=json";

/// Only these fields are read.
#[derive(Deserialize)]
struct Page {
    pods: Option<Pods>,
}

#[derive(Deserialize)]
struct Pods {
    credential: Credential,
}

#[derive(Deserialize)]
struct Credential {
    state: String,
    findings: Vec<String>,
}

/// Queries the proxy at this address for operators. `None` if there is none, or if it does not identify pods.
pub(super) async fn ask(client: &Client, admin: SocketAddr) -> Option<Finding> {
    judge(&client.ask_here(admin, PAGE).await)
}

fn judge(exchange: &Exchange) -> Option<Finding> {
    let answer = exchange.outcome.as_ref().ok().filter(|answer| answer.status.is_success())?;
    let Credential { state, findings } = serde_json::from_slice::<Page>(&answer.body).ok()?.pods?.credential;
    let verdict = match &*state {
        "confined" | "last_resort" => Verdict::Protected,
        "dangerous" => Verdict::Unprotected,
        _ => Verdict::Trouble,
    };
    let advice = "as each sentence says; docs/identity-operations.md#rights has the three ways";
    let tried = format!("{} (the proxy's credential for the API server)", exchange.request);
    let seen = std::iter::once(state).chain(findings).collect::<Vec<_>>().join("; ");
    let found = Finding { took: Some(exchange.took), ..Finding::new("credential", verdict, tried, seen) };
    Some(if verdict == Verdict::Protected { found } else { found.advising(advice) })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::StatusCode;

    use super::*;
    use crate::check::probe::Response;
    use identity::CredentialState;
    use telemetry::labels::Label;

    fn found(body: &str) -> Option<Finding> {
        let answer = Response { status: StatusCode::OK, server: None, body: body.to_owned().into() };
        judge(&Exchange { request: "GET http://h/".to_owned(), outcome: Ok(answer), took: Duration::ZERO })
    }

    #[test]
    fn each_state_has_its_verdict() {
        for state in CredentialState::ALL {
            let page = format!(r#"{{"pods":{{"credential":{{"state":"{}","findings":["why"]}}}}}}"#, state.label());
            let found = found(&page).expect("a finding");
            let verdict = match state {
                CredentialState::Confined | CredentialState::LastResort => Verdict::Protected,
                CredentialState::Unknown | CredentialState::Missing => Verdict::Trouble,
                CredentialState::Dangerous => Verdict::Unprotected,
            };
            assert_eq!((found.verdict, found.advice.is_some()), (verdict, verdict != Verdict::Protected), "{found:?}");
            assert_eq!(found.seen, format!("{}; why", state.label()));
        }
    }

    #[test]
    fn nothing_is_said_where_there_is_nothing() {
        for page in [r#"{"pods":null}"#, r#"{"version":"0"}"#, "<html>"] {
            assert!(found(page).is_none(), "{page}");
        }
    }
}
