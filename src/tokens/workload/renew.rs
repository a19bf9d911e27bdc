//! [`renew`]: renews the tokens that lead to Google's at half of their life.
//!
//! Without it they would be renewed when the token cache asks next, which may be just when the API server is away. So
//! for half an hour it may be, and pods get even tokens that they never asked for before.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::WorkloadSource;
use super::secret::Want;
use super::steps::patiently;
use crate::clock::BootTime;

/// Interval between looks for tokens that are past half of their life.
const INTERVAL: Duration = Duration::from_secs(15);

/// Maximum workloads whose tokens are renewed at once.
const MAX_AT_ONCE: usize = 4;

/// Renews what is in use, for ever. What fails is tried again after the step's rest.
pub async fn renew(source: Arc<WorkloadSource>) -> Infallible {
    loop {
        sleep(INTERVAL).await;
        let mut renewing = JoinSet::new();
        for number in source.kept.aging(BootTime::now()) {
            if renewing.len() >= MAX_AT_ONCE {
                renewing.join_next().await;
            }
            let source = Arc::clone(&source);
            renewing.spawn(async move {
                if let Ok(steps) = source.steps(number).await {
                    // Its own failure is logged.
                    let _ = steps.federated(Want::Young, patiently()).await;
                }
            });
        }
        renewing.join_all().await;
    }
}
