//! What any answer, or none, says: who sent it, and whether it refuses.

use std::io;

use super::verdict::{Finding, Verdict};
use crate::check::probe::{Exchange, Response};
use proxy::reply;

const START: &str = "check that the proxy of this node is running and ready (see its log and /readyz); until then pods get \
                     neither metadata nor the node's secrets. If it is well, its redirect may have closed pods: \
                     kubectl exec POD -c redirect -- /gce-metadata-proxy redirect check says why";
const ALLOW: &str = "somebody drops packets on the way or answers too late. If network policies select this pod, they must allow \
                     its requests: docs/redirect.md#network-policies says which address. Otherwise check that the proxy of \
                     this node is running and ready (see its log and /readyz)";

pub(super) const FAILING: &str = "run 'gce-metadata-proxy status' in the container of this node's proxy: it says what fails, such as the \
                                  metadata server, and what to do";

/// A check, and the request that it sent, for the finding to come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a>(pub(super) &'static str, pub(super) &'a Exchange);

impl Asked<'_> {
    pub(super) fn protected(self, seen: impl AsRef<str>) -> Finding {
        self.found(Verdict::Protected, seen)
    }

    pub(super) fn trouble(self, seen: impl AsRef<str>, advice: &str) -> Finding {
        self.found(Verdict::Trouble, seen).advising(advice)
    }

    pub(super) fn unprotected(self, seen: impl AsRef<str>, advice: &str) -> Finding {
        self.found(Verdict::Unprotected, seen).advising(advice)
    }

    pub(super) fn found(self, verdict: Verdict, seen: impl AsRef<str>) -> Finding {
        let Self(check, exchange) = self;
        let took = exchange.outcome.is_ok().then_some(exchange.took);
        Finding { took, ..Finding::new(check, verdict, &exchange.request, seen) }
    }

    /// The answer has nothing of what was requested.
    pub(super) fn refused(self, answer: &Response) -> Finding {
        let status = answer.status.as_u16();
        if status == 403 && is_ours(answer) {
            return self.protected("403: the proxy conceals it");
        }
        if is_refusal(answer) {
            return self.protected(format!("{status}: {} does not have it or refuses it", who(answer)));
        }
        let seen = format!("{status} from {}", who(answer));
        match sentence(answer) {
            Some(why) => self.trouble(format!("{seen}: {why}"), FAILING),
            // A head has no sentence.
            None => self.trouble(seen, if is_ours(answer) { FAILING } else { START }),
        }
    }

    /// Nobody answers. A proxy that is not there is refused by the kernel at once; a network policy says nothing.
    pub(super) fn silent(self, error: &io::Error) -> Finding {
        let advice = if error.kind() == io::ErrorKind::TimedOut { ALLOW } else { START };
        self.trouble(format!("nobody answers: {error}"), advice)
    }
}

pub(super) fn is_refusal(answer: &Response) -> bool {
    matches!(answer.status.as_u16(), 401 | 403..=405)
}

pub(super) fn is_ours(answer: &Response) -> bool {
    answer.server.as_ref().is_some_and(|server| reply::SERVER == server.as_str())
}

/// The first line of the proxy's own refusal, if the proxy answered.
pub(super) fn sentence(answer: &Response) -> Option<String> {
    let line = std::str::from_utf8(&answer.body).ok()?.lines().next()?.trim();
    (is_ours(answer) && !line.is_empty()).then(|| line.trim_end_matches('.').to_owned())
}

pub(super) fn who(answer: &Response) -> String {
    match &answer.server {
        _ if is_ours(answer) => "the proxy".to_owned(),
        Some(server) => format!("{server:?}"),
        None => "an unnamed server".to_owned(),
    }
}

/// Answers for the tests of these files.
#[cfg(test)]
pub(super) mod samples {
    use std::time::Duration;

    use http::StatusCode;

    use super::*;

    pub(in crate::check::judge) fn exchange(status: u16, server: Option<&str>, body: &'static str) -> Exchange {
        let status = StatusCode::from_u16(status).expect("a status");
        let answer = Response { status, server: server.map(ToOwned::to_owned), body: body.into() };
        Exchange {
            request: "GET http://169.254.169.254/".to_owned(),
            outcome: Ok(answer),
            took: Duration::from_millis(3),
        }
    }

    pub(in crate::check::judge) fn failed() -> Exchange {
        Exchange { outcome: Err(io::ErrorKind::ConnectionRefused.into()), ..exchange(200, None, "") }
    }

    pub(in crate::check::judge) const OURS: Option<&str> = Some("gce-metadata-proxy");
    pub(in crate::check::judge) const REAL: Option<&str> = Some("Metadata Server for VM");
}
