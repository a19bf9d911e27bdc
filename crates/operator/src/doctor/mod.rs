//! `gce-metadata-proxy identity doctor`: why pods of this node get tokens of their own, or why not.
//!
//! It follows a pod's token step by step, with the settings of the proxy: it lists this node's pods, requests a Kubernetes
//! token of one of their accounts from the API server, exchanges it at Google, and for a linked account requests a token
//! from IAM. It asks the running proxy how it identifies the pod. It sends the same requests as the proxy, so that each
//! refusal is the one that the proxy would get. It changes nothing and prints no token: it drops the tokens that it gets.
//!
//! Each step yields a [`Finding`]: what was checked, what it means, and for a trouble the command that fixes it. A step
//! whose input an earlier step did not provide is reported as not tried.
//!
//! `kubernetes` and `google` send the requests, `judge` interprets the results, and `commands` has the commands.

mod claims;
mod commands;
mod google;
mod judge;
mod kubernetes;
mod patient;
mod report;

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

pub use patient::Whose;
pub use report::{Finding, Report, Step, Verdict};

use crate::ask::AskError;
use crate::explain;
use google::{Exchanged, Reached};
use identity::Settings;
use identity::cluster::RequestError;
use patient::Patient;

/// Maximum time for all steps together.
const MAX_TIME: Duration = Duration::from_secs(15);

/// Maximum time for each request. In a healthy set-up, a step takes some milliseconds.
const MAX_STEP: Duration = Duration::from_secs(4);

/// The time limits of the examination.
#[derive(Debug, Clone, Copy)]
struct Deadline {
    /// End of the last step.
    end: Instant,
    /// Maximum time for each request.
    step: Duration,
}

impl Deadline {
    /// The limits of an examination that begins now.
    fn new(total: Duration, step: Duration) -> Self {
        Self { end: Instant::now() + total, step }
    }

    /// Maximum time for a step that begins now.
    fn left(self) -> Duration {
        self.step.min(self.end.saturating_duration_since(Instant::now()))
    }

    /// Whether too little time is left to learn anything from a step that does not answer.
    fn is_over(self) -> bool {
        self.left() < self.step / 4
    }

    /// The result of a step, or `None` if it is not ready in time.
    async fn within<T>(self, step: impl Future<Output = T>) -> Option<T> {
        timeout(self.left(), step).await.ok()
    }

    /// The API server's answer, or an error if there is none in time.
    async fn answer<T, E: From<RequestError>>(self, step: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let left = self.left();
        self.within(Box::pin(step)).await.unwrap_or_else(|| Err(RequestError::Silent(left).into()))
    }

    /// The result of blocking work in time. The work has its own thread, which does not delay the end of the process.
    async fn aside<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (sender, done) = oneshot::channel();
        thread::spawn(move || sender.send(work()));
        self.within(done).await?.ok()
    }
}

/// Why a step is not tried when the others took all the time.
const NO_TIME: &str = "no time left, because of the steps before it";

/// Runs all steps, in at most 15 s. `proxy` is the running proxy's listener for operators.
///
/// # Panics
///
/// Outside a runtime.
pub async fn examine(proxy: SocketAddr, settings: &Settings, whose: &Whose) -> Report {
    examine_until(Deadline::new(MAX_TIME, MAX_STEP), proxy, settings, whose).await
}

async fn examine_until(deadline: Deadline, proxy: SocketAddr, settings: &Settings, whose: &Whose) -> Report {
    let federation = settings.federation.as_ref();
    let reach = async {
        match federation {
            Some(federation) => google::reach(federation, settings.cluster.node.as_str(), deadline).await,
            None => Reached::default(),
        }
    };
    let (mut kubernetes, mut reached) =
        tokio::join!(Box::pin(kubernetes::ask(settings, whose, deadline)), Box::pin(reach));
    let mut rights = std::mem::take(&mut kubernetes.rights);
    let mut findings = std::mem::take(&mut kubernetes.findings);
    findings.append(&mut reached.findings);
    findings.push(judge::token::clock(
        judge::token::Clocks { of_cluster: kubernetes.ahead, of_google: reached.ahead },
        settings.cluster.node.as_str(),
    ));
    findings.push(ask_proxy(proxy, kubernetes.patient.as_ref(), deadline).await);
    let name = kubernetes.patient.as_ref().map_or_else(|| whose.name(), Patient::name);
    let Exchanged { identity, findings: more } = match federation {
        Some(federation) => Box::pin(google::exchange(federation, kubernetes, &reached, deadline)).await,
        None => Exchanged { identity: None, findings: vec![judge::settings::none()] },
    };
    findings.extend(more);
    while let Some(found) = rights.join_next().await {
        findings.extend(found.unwrap_or_else(|_| judge::rights::found(None)));
    }
    Report::new(findings, &name, identity.as_deref())
}

/// Asks the running proxy how it identifies the pod.
async fn ask_proxy(proxy: SocketAddr, patient: Option<&Patient>, deadline: Deadline) -> Finding {
    let tried = Step::Proxy.trying("the running proxy's knowledge of the pod");
    let Some(patient) = patient else { return tried.not_tried("it is not known which") };
    if deadline.is_over() {
        return tried.not_tried(NO_TIME);
    }
    let asked = deadline.within(explain::whois(proxy, &patient.pod_name())).await;
    let silent = || Err(AskError::Unreachable(proxy, "it did not answer in time".to_owned()));
    judge::proxy::proxy(patient, &asked.unwrap_or_else(silent))
}

#[cfg(test)]
mod tests;
