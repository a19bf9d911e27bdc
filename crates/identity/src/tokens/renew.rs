//! [`renew`]: renews Kubernetes and federated tokens at half of their life.
//!
//! Otherwise they would be renewed only when the token cache next needs them, perhaps just when the API server is
//! unreachable. So it may be unreachable for half an hour, and pods still get even tokens that are not cached.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::WorkloadSource;
use super::halt::no_token;
use super::secret::Want;
use super::stage::MAX_FLIGHT;
use super::steps::patiently;
use base::backoff::{Backoff, Jitter};
use base::clock::BootTime;
use protocol::metadata::WorkloadId;
use proxy::failure::{ExchangeFailure, TokenServer};
use proxy::tokens::{NoToken, Urgency};

/// Interval between scans for tokens that are past half of their life.
const INTERVAL: Duration = Duration::from_secs(15);

/// Intervals after failures: the first is twice the usual one.
const BACK_OFF: Backoff = Backoff::new(INTERVAL.saturating_mul(2), Duration::from_secs(240)).with(JITTER);

/// Keeps the nodes from sending requests at once when a server is back.
const JITTER: Jitter = Jitter(1.0, 1.25);

/// Maximum workloads whose tokens are renewed at once.
const MAX_AT_ONCE: usize = 4;

/// Renews the tokens in use, forever.
pub async fn renew(source: Arc<WorkloadSource>) -> Infallible {
    let mut failures = 0_u32;
    loop {
        let random = fastrand::f64();
        sleep(if failures == 0 { JITTER.of(INTERVAL, random) } else { BACK_OFF.wait(failures, random) }).await;
        failures = if renew_all(&source).await { failures.saturating_add(1) } else { 0 };
    }
}

/// Renews the tokens that are due. Returns whether a renewal failed.
async fn renew_all(source: &Arc<WorkloadSource>) -> bool {
    let (mut renewing, mut has_failed) = (JoinSet::new(), false);
    for number in source.kept.aging(BootTime::now()) {
        if renewing.len() >= MAX_AT_ONCE {
            has_failed |= !matches!(renewing.join_next().await, Some(Ok(Ok(()))));
        }
        let source = Arc::clone(source);
        renewing.spawn(async move { source.renew(number).await });
    }
    while let Some(renewed) = renewing.join_next().await {
        has_failed |= !matches!(renewed, Ok(Ok(())));
    }
    has_failed
}

impl WorkloadSource {
    /// Renews the tokens of a workload that are past half of their life. Failures are logged by the steps.
    async fn renew(&self, number: WorkloadId) -> Result<(), NoToken> {
        let steps = self.steps(number).await?;
        // First, because a federated token ends with the Kubernetes token that it was given for.
        steps.subject(Urgency::Background).await?;
        steps.stages.subject.settled().await;
        if steps.stages.subject.is_aging(BootTime::now()) {
            // It was not renewed, so a new federated token would end with the old one.
            return Err(no_token(ExchangeFailure::Slow(Some(TokenServer::Kubernetes), MAX_FLIGHT)));
        }
        steps.federated(Want::Young, patiently(), Urgency::Background).await?;
        steps.stages.federated.settled().await;
        Ok(())
    }
}
