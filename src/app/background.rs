//! Tasks beside the connections, which keep caches, policy and measures up to date.

use std::future;
use std::sync::Arc;

use tokio::task::{JoinError, JoinSet};

use crate::shared::Shared;
use crate::warm::WarmStart;
use proxy::layers::conceal::Mode;
use proxy::policy::{A_RESTART_FAILS, Reloaded};
use proxy::upstream::Upstream;

/// Starts the background tasks.
pub(super) fn start(shared: &Arc<Shared>, tasks: &mut JoinSet<()>) {
    match shared.config.upstream {
        Upstream::Server(_) => {
            tasks.spawn(WarmStart::new(shared).run(shared.readiness.clone()));
        }
        // All values are in memory already.
        Upstream::None(_) => shared.readiness.warm(),
    }
    let followed = Arc::clone(shared);
    tasks.spawn(async move { follow_policy(&followed).await });
    if let Some(identity) = shared.identity.clone() {
        tasks.spawn(identity.tend());
    }
    let measured = Arc::clone(shared);
    tasks.spawn(async move { measured.measures.run().await });
}

/// Waits until one of these tasks panics. One that ends otherwise has done all it had to.
pub(super) async fn panicked(tasks: &mut JoinSet<()>) -> JoinError {
    loop {
        match tasks.join_next().await {
            Some(Err(panicked)) => return panicked,
            Some(Ok(())) => {}
            None => future::pending().await,
        }
    }
}

/// Follows the policy file. Logs and counts its changes.
async fn follow_policy(shared: &Shared) {
    let Shared { concealment, leaves, limits, .. } = shared;
    let (live, metrics) = (concealment.policy(), concealment.metrics());
    metrics.in_force(&live.current());
    let report = |reloaded: Reloaded<'_>| {
        metrics.reloaded(&reloaded);
        match reloaded {
            Reloaded::Applied(policy) => {
                let (name, version, hash) = (policy.name(), policy.version(), policy.hash());
                tracing::info!(name, version, hash, rules = policy.rule_count(), "policy reloaded");
                if shared.config.policy_mode == Mode::Enforce {
                    // The new policy may conceal what they wait for.
                    limits.watches.end_all();
                }
                // The new policy may show more of the trees. What it conceals is left out of the cached trees, too.
                let leaves = Arc::clone(leaves);
                tokio::spawn(async move { leaves.refresh_trees().await });
            }
            Reloaded::Rejected { error, in_force } => {
                let in_force = in_force.name();
                tracing::error!(%error, in_force, "invalid policy file; keeping the previous policy; {A_RESTART_FAILS}");
            }
        }
    };
    live.follow(report).await;
}
