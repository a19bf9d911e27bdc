//! `gce-metadata-proxy identity doctor`: why pods of this node get tokens of their own, or why not.
//!
//! It follows a pod's token step by step, with the settings of the proxy: it lists this node's pods, has the
//! API server issue a Kubernetes token of one of their accounts, has Google exchange it, and for a linked account has IAM
//! issue a token. It asks the running proxy which pod it sees. Everything is asked for as the proxy asks for it, so that each refusal is the one that the proxy would
//! get. It changes nothing, and prints no token: the tokens that it is given are dropped.
//!
//! Each step gives a [`Finding`]: what was looked at, what it means, and for a trouble the command that mends it. A step
//! that needs what another one did not give is reported as not tried.
//!
//! `kubernetes`, `rights` and `google` ask, `judge` says what the answers mean, and `commands` has the commands.

mod claims;
mod commands;
mod google;
mod judge;
mod kubernetes;
mod patient;
mod report;
mod rights;

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

pub use patient::Whose;
pub use report::{Finding, Report, Step, Verdict};

use crate::ask::AskError;
use crate::explain;
use crate::identity::Settings;
use google::{Exchanged, Reached};
use patient::Patient;

/// Maximum time of all steps together.
const MAX_TIME: Duration = Duration::from_secs(15);

/// Maximum time of each request. The steps that a healthy set-up takes need some milliseconds each.
const MAX_STEP: Duration = Duration::from_secs(4);

/// How much time is left.
#[derive(Debug, Clone, Copy)]
struct Deadline {
    /// When all steps end.
    end: Instant,
    /// Maximum time of each request.
    step: Duration,
}

impl Deadline {
    /// Of an examination that begins now.
    fn new(total: Duration, step: Duration) -> Self {
        Self { end: Instant::now() + total, step }
    }

    /// What comes of this in time. `None` if nothing does.
    async fn within<T>(self, step: impl Future<Output = T>) -> Option<T> {
        timeout_at(self.end.min(Instant::now() + self.step), step).await.ok()
    }

    /// What comes in time of work that blocks. It has a thread of its own, which the end of the process does not wait for.
    async fn aside<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (sender, done) = oneshot::channel();
        thread::spawn(move || sender.send(work()));
        self.within(done).await?.ok()
    }
}

/// Runs all steps, in at most 15 s. `proxy` is where the running proxy serves operators.
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
            Some(federation) => google::reach(federation, deadline).await,
            None => Reached::default(),
        }
    };
    let (mut kubernetes, mut reached) =
        tokio::join!(Box::pin(kubernetes::ask(settings, whose, deadline)), Box::pin(reach));
    let mut findings = std::mem::take(&mut kubernetes.findings);
    findings.append(&mut reached.findings);
    findings.push(judge::token::clock(
        judge::token::Clocks { of_cluster: kubernetes.ahead, of_google: reached.ahead },
        settings.cluster.node.as_str(),
    ));
    findings.push(ask_proxy(proxy, kubernetes.patient.as_ref(), deadline).await);
    let name = kubernetes.patient.as_ref().map_or_else(|| whose.name(), Patient::name);
    let Some(federation) = federation else {
        findings.push(judge::settings::none());
        return Report::new(findings, &name, None);
    };
    let exchanging = google::exchange(federation, kubernetes, &reached, deadline);
    let Exchanged { identity, findings: more } = Box::pin(exchanging).await;
    findings.extend(more);
    Report::new(findings, &name, identity.as_deref())
}

/// Asks the running proxy which pod it sees.
async fn ask_proxy(proxy: SocketAddr, patient: Option<&Patient>, deadline: Deadline) -> Finding {
    let Some(patient) = patient else {
        return Finding::not_tried(Step::Proxy, "the running proxy's knowledge of the pod", "it is not known which");
    };
    let asked = deadline.within(explain::whois(proxy, &patient.pod_name())).await;
    let silent = || Err(AskError::Unreachable(proxy, "it did not answer in time".to_owned()));
    judge::proxy::proxy(patient, &asked.unwrap_or_else(silent))
}

#[cfg(test)]
mod tests;
