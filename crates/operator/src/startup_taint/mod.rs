//! [`StartupTaint`]: keeps pods off a new node until it is protected.
//!
//! Nodes register with a taint that only the proxy's pod tolerates. `redirect install --keep` removes it once the rules are
//! installed and the proxy is ready. A node that is deleted and registered again has the taint again, and this process may
//! live on, so it looks for the taint from then on.

mod key;

use std::net::SocketAddr;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, sleep};

use crate::ask;
use base::backoff::{Backoff, Jitter};
use identity::cluster::{self, Cluster, Failure, NodeName, RequestError};
use telemetry::sampled::Sampled;

pub use key::TaintKey;

/// Interval between readiness requests to the proxy.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between log lines while the proxy is not ready.
const REMINDER_INTERVAL: Duration = Duration::from_secs(30);

/// Wait before the next attempt to remove the taint.
const BACK_OFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Interval between looks whether the taint is back. 5,000 nodes are 42 requests a second for one object each.
const LOOK_INTERVAL: Duration = Duration::from_secs(120);

/// Nodes that start together must not stay together.
const JITTER: Jitter = Jitter(0.75, 1.25);

/// The page that says whether the proxy is ready.
const READYZ: &str = "/readyz";

/// A taint to remove from this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartupTaint {
    /// All taints with this key are removed.
    pub key: TaintKey,
    /// This node, and the credential for it.
    pub cluster: cluster::Settings,
    /// The proxy's listener for operators, which serves its readiness.
    pub admin: SocketAddr,
}

impl StartupTaint {
    /// Waits until the proxy is ready and the rules are installed, and then removes the taint, each time that the node has it.
    /// Retries until it is gone: a brief outage of the API server must not keep pods off the node.
    pub async fn keep_away(self, is_redirected: impl AsyncFn() -> bool) {
        let works = async || {
            loop {
                proxy_is_ready(self.admin).await;
                // Another program may have flushed them at the node's start, while the proxy's image was pulled.
                if is_redirected().await {
                    return;
                }
                tracing::warn!(
                    "the redirect was changed since it was installed; the startup taint stays until it is restored"
                );
                sleep(REMINDER_INTERVAL).await;
            }
        };
        works().await;
        let mut retry = Retry::new(&self.cluster.node, &self.key);
        // The credential's files may appear later.
        let cluster = loop {
            match Cluster::connect(&self.cluster).await {
                Ok(cluster) => break cluster,
                Err(error) => retry.after(&error.into()).await,
            }
        };
        keep_away_from(&cluster, &self.key, works).await;
    }
}

/// Removes the taint from this cluster's node, and again whenever it is back and everything works.
async fn keep_away_from(cluster: &Cluster, key: &TaintKey, works: impl AsyncFn()) {
    loop {
        remove_from(cluster, key).await;
        while !is_back(cluster, key).await {}
        works().await;
    }
}

/// Whether the node has the taint, after a while. An API server that does not answer is asked again.
async fn is_back(cluster: &Cluster, key: &TaintKey) -> bool {
    sleep(JITTER.of(LOOK_INTERVAL, fastrand::f64())).await;
    cluster.taints().await.is_ok_and(|node| node.without_taint(key.as_str()).is_some())
}

/// Removes the taint from this cluster's node.
async fn remove_from(cluster: &Cluster, key: &TaintKey) {
    let node = cluster.node();
    let mut retry = Retry::new(node, key);
    loop {
        match try_remove(cluster, key).await {
            Ok(true) => {
                tracing::info!(%node, taint = %key, "the redirect and the proxy work: removed the startup taint");
                return;
            }
            Ok(false) => {
                tracing::info!(%node, taint = %key, "the node has no startup taint");
                return;
            }
            Err(error) => retry.after(&error).await,
        }
    }
}

/// Fails with a conflict if the node has changed since it was read, as it does when its kubelet reports.
async fn try_remove(cluster: &Cluster, key: &TaintKey) -> Result<bool, RequestError> {
    let rest = cluster.taints().await?.without_taint(key.as_str());
    if let Some(rest) = &rest {
        cluster.set_taints(rest).await?;
    }
    Ok(rest.is_some())
}

/// The back-off between attempts.
struct Retry<'a> {
    node: &'a NodeName,
    key: &'a TaintKey,
    failures: u32,
}

impl<'a> Retry<'a> {
    fn new(node: &'a NodeName, key: &'a TaintKey) -> Self {
        Self { node, key, failures: 0 }
    }

    /// Logs the error, and waits, longer after each failure.
    async fn after(&mut self, error: &RequestError) {
        if error.failure() == Failure::Refused(StatusCode::CONFLICT) {
            tracing::info!(node = %self.node, "the node has changed since it was read; trying again");
            return sleep(BACK_OFF.wait(1, 0.0)).await;
        }
        self.failures = self.failures.saturating_add(1);
        let wait = BACK_OFF.wait(self.failures, 0.0);
        tracing::error!(
            node = %self.node, taint = %self.key, %error,
            "cannot remove the startup taint, so no pod is scheduled on this node; trying again in {} s",
            wait.as_secs()
        );
        sleep(wait).await;
    }
}

/// Waits until the proxy reports that it is ready.
async fn proxy_is_ready(admin: SocketAddr) {
    let reminders = Sampled::new(REMINDER_INTERVAL);
    while let Err(why) = is_ready(admin).await {
        if reminders.due(Instant::now()).is_some() {
            tracing::info!(%why, "waiting for the proxy at http://{admin}{READYZ}; the startup taint stays until it is ready");
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Checks whether the proxy is ready. Returns the reason if it is not.
async fn is_ready(admin: SocketAddr) -> Result<(), String> {
    match ask::send(admin, READYZ).await? {
        (StatusCode::OK, _) => Ok(()),
        (status, text) => Err(format!("{status}: {}", text.trim())),
    }
}

#[cfg(test)]
mod tests;
