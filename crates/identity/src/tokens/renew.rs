//! [`renew`]: renews Kubernetes and federated tokens from 40 to 60 % of their life on.
//!
//! Otherwise they would be renewed only when the token cache next needs them, perhaps just when the API server is
//! unreachable. So it may be unreachable for 20 minutes, and pods still get even tokens that are not cached.
//!
//! They are renewed one after the other, not faster than they come due on average and a little more ([`RenewalPace`]), so that many
//! nodes whose tokens were issued together, or that waited for a server, do not come together.
//!
//! [`RenewalPace`]: super::pace::RenewalPace

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::WorkloadSource;
use super::halt::no_token;
use super::secret::Want;
use super::stage::{MAX_FLIGHT, Stage};
use super::steps::patiently;
use base::backoff::{Backoff, Jitter};
use base::clock::BootTime;
use protocol::metadata::WorkloadId;
use proxy::failure::{ExchangeFailure, TokenServer};
use proxy::tokens::{NoToken, Urgency};

/// Maximum interval between scans for tokens that are due.
const INTERVAL: Duration = Duration::from_secs(15);

/// Scans for each renewal that the pace allows, so that the intervals between scans take little of it.
const SCANS: u32 = 4;

/// Intervals after failures, of one workload or of a server: the first is twice the usual one.
const BACK_OFF: Backoff = Backoff::new(INTERVAL.saturating_mul(2), Duration::from_secs(240)).with(JITTER);

/// Keeps the nodes from sending requests at once when a server is back.
const JITTER: Jitter = Jitter(1.0, 1.25);

/// The workloads whose last renewal failed: how often in a row, and when each is next.
type Resting = HashMap<WorkloadId, (u32, BootTime)>;

/// Renews the tokens in use, forever.
pub async fn renew(source: Arc<WorkloadSource>) -> Infallible {
    let (mut failures, mut resting) = (0_u32, Resting::new());
    loop {
        let random = fastrand::f64();
        let interval = INTERVAL.min(source.means.renewals.interval() / SCANS);
        sleep(if failures == 0 { JITTER.of(interval, random) } else { BACK_OFF.wait(failures, random) }).await;
        failures = if source.renew_next(&mut resting).await { failures.saturating_add(1) } else { 0 };
    }
}

impl WorkloadSource {
    /// Renews the tokens of a workload that are due, if the pace allows it. If that fails, the next one has its turn: what is wrong
    /// may be one workload's, which then rests. Returns whether it failed for all of them.
    async fn renew_next(&self, resting: &mut Resting) -> bool {
        let _renewing = self.renewing.lock().await;
        let now = BootTime::now();
        let (in_use, mut aging) = self.kept.aging(now);
        let renewals = &self.means.renewals;
        renewals.share(in_use);
        resting.retain(|number, _| aging.iter().any(|(_, aging)| aging == number));
        aging.retain(|(_, number)| resting.get(number).is_none_or(|(_, next)| *next <= now));
        let Some((expires, _)) = aging.first().copied() else { return false };
        let Some(turn) = renewals.take(expires, now) else { return false };
        let (mut failure, mut failed) = (None, Vec::new());
        for (_, number) in aging {
            failure = self.renew(number).await.err();
            if failure.is_none() {
                break;
            }
            failed.push(number);
        }
        let (tried, now) = (failed.len() + usize::from(failure.is_none()), BootTime::now());
        let affects_all = renewals.ended(turn, failure.as_ref(), tried, now, fastrand::f64());
        if !affects_all {
            for number in failed {
                let (failures, next) = resting.entry(number).or_insert((0, now));
                *failures = failures.saturating_add(1);
                *next = now + BACK_OFF.wait(*failures, fastrand::f64());
            }
        }
        affects_all
    }

    /// Renews the tokens of a workload that are due. Failures are logged by the steps.
    async fn renew(&self, number: WorkloadId) -> Result<(), NoToken> {
        let steps = self.steps(number).await?;
        let haste = Urgency::Background.into();
        // First, because a federated token ends with the Kubernetes token that it was given for.
        steps.subject(&haste).await?;
        // If it was not renewed, a new federated token would end with the old one.
        renewed(&steps.stages.subject, TokenServer::Kubernetes).await?;
        steps.federated_now(Want::Young, (patiently(), &haste), None).await?;
        renewed(&steps.stages.federated, TokenServer::Sts).await
    }
}

/// Waits for the renewal of a token by this server. While the token is valid, a caller of its stage is not told why it failed.
async fn renewed(stage: &Stage, server: TokenServer) -> Result<(), NoToken> {
    stage.settled().await;
    let now = BootTime::now();
    if !stage.is_aging(now) {
        return Ok(());
    }
    let (_, failed) = stage.known(now);
    let slow = || no_token(ExchangeFailure::Slow(Some(server), MAX_FLIGHT));
    Err(failed.map_or_else(slow, |(failed, _)| failed.what))
}
