//! [`follow`]: reviews the credential's rights again and again, and logs changes.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::sleep;

use super::{Finding, Report, Severity};
use crate::cluster::{Cluster, RequestError};
use base::backoff::{Backoff, Jitter};

/// Pause after a good result. The credential's token is replaced about as often.
const PAUSE: Duration = Duration::from_secs(3600);

/// Pause while something is to be fixed, so that the fix is soon noticed.
const PAUSE_UNTIL_MENDED: Duration = Duration::from_secs(5 * 60);

/// Pause while the node has no pod yet.
const PAUSE_UNTIL_KNOWN: Duration = Duration::from_secs(30);

/// Initial and maximum pause after a failure.
const BACK_OFF: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(10 * 60)).with(JITTER);

/// Keeps the nodes of a cluster apart.
const JITTER: Jitter = Jitter(0.9, 1.1);

/// Reviews the credential's rights, forever, and calls `on` with each result. Changes are logged.
///
/// `audience` is that of pods' tokens; `None` if they have none.
pub async fn follow(
    cluster: Cluster,
    audience: Option<Box<str>>,
    on: impl Fn(Result<&Report, &RequestError>),
) -> Infallible {
    let mut known = None;
    let mut failures = 0;
    loop {
        let asked = cluster.rights(audience.as_deref()).await;
        on(asked.as_ref());
        match asked {
            Ok(report) => {
                failures = 0;
                log(&report, known.as_ref());
                known = Some(report);
            }
            Err(error) => {
                failures += 1;
                failed(&error, failures);
            }
        }
        sleep(pause(known.as_ref(), failures, fastrand::f64())).await;
    }
}

/// Logs the findings that were not known before.
fn log(report: &Report, known: Option<&Report>) {
    let Report { user, findings } = report;
    if known == Some(report) {
        return;
    }
    if findings.is_empty() {
        tracing::info!(
            user,
            "the credential for the API server has the rights that the proxy needs, and only for its node"
        );
    }
    let is_known = |finding: &Finding| known.is_some_and(|known| known.findings.contains(finding));
    for finding in findings.iter().filter(|finding| !is_known(finding)) {
        match finding.severity() {
            Severity::Dangerous => tracing::warn!(user, "the credential for the API server is dangerous: {finding}"),
            Severity::Missing => tracing::warn!(user, "a right is missing at the API server: {finding}"),
            Severity::Unknown => tracing::debug!(user, "the credential for the API server: {finding}"),
            Severity::Notice => tracing::info!(user, "the credential for the API server: {finding}"),
        }
    }
}

/// Logs a failure late: the watch of pods has its own message for an unreachable API server.
fn failed(error: &RequestError, failures: u32) {
    if failures == 3 {
        tracing::warn!("cannot find out what the credential for the API server may do: {error}; retrying");
    } else {
        tracing::debug!(failures, "cannot find out what the credential for the API server may do: {error}");
    }
}

/// Time to wait. `random` is between 0 and 1.
fn pause(known: Option<&Report>, failures: u32, random: f64) -> Duration {
    if failures > 0 {
        return BACK_OFF.wait(failures, random);
    }
    let pause = match known.and_then(Report::severity) {
        None | Some(Severity::Notice) => PAUSE,
        Some(Severity::Missing | Severity::Dangerous) => PAUSE_UNTIL_MENDED,
        Some(Severity::Unknown) => PAUSE_UNTIL_KNOWN,
    };
    JITTER.of(pause, random)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::rights::Danger;

    #[test]
    fn it_asks_again_sooner_while_something_is_to_be_mended() {
        let report = |findings| Report { user: "u".to_owned(), findings };
        let (good, fenced) = (report(vec![]), report(vec![Finding::LastResort]));
        let bad = report(vec![Finding::LastResort, Finding::Danger(Danger::AllSecrets)]);
        assert_eq!(pause(Some(&good), 0, 0.5), PAUSE);
        assert_eq!(pause(Some(&fenced), 0, 0.5), PAUSE);
        assert_eq!(pause(Some(&report(vec![Finding::Untried])), 0, 0.5), PAUSE_UNTIL_KNOWN);
        assert_eq!(pause(Some(&bad), 0, 0.5), PAUSE_UNTIL_MENDED);
        assert_eq!(pause(None, 1, 0.5), Duration::from_secs(5));
        assert_eq!(pause(Some(&good), 40, 0.5), Duration::from_secs(600));
        assert!(pause(Some(&good), 0, 0.0) < PAUSE && PAUSE < pause(Some(&good), 0, 1.0));
    }
}
