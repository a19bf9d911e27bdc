//! [`Sources`]: chooses the source of a token by who asks.

#[cfg(feature = "workload-identity")]
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "workload-identity")]
use crate::metadata::Principal;
use crate::shares::Client;
#[cfg(feature = "workload-identity")]
use crate::tokens::workload::WorkloadSource;
use crate::tokens::{Fetched, MetadataServer, NoToken, TokenKey, TokenSource, Urgency};

/// The node's token is the metadata server's, a workload's is Google's.
#[derive(Debug)]
pub struct Sources<N = MetadataServer> {
    node: N,
    /// `None` if workloads have no tokens.
    #[cfg(feature = "workload-identity")]
    workloads: Option<Arc<WorkloadSource>>,
}

impl<N> Sources<N> {
    /// Tokens of the node only.
    pub fn of_node(node: N) -> Self {
        Self {
            node,
            #[cfg(feature = "workload-identity")]
            workloads: None,
        }
    }

    /// The source of workloads' tokens. `None` if they have none.
    #[cfg(feature = "workload-identity")]
    pub fn of_workloads(&self) -> Option<&Arc<WorkloadSource>> {
        self.workloads.as_ref()
    }

    /// Also tokens of workloads.
    #[cfg(feature = "workload-identity")]
    #[must_use]
    pub fn with_workloads(self, workloads: Arc<WorkloadSource>) -> Self {
        Self { workloads: Some(workloads), ..self }
    }
}

impl<N: TokenSource> TokenSource for Sources<N> {
    fn deadline(&self) -> Duration {
        // Both have the same, because clients wait for either.
        self.node.deadline()
    }

    async fn fetch(&self, key: &TokenKey, client: Client, urgency: Urgency) -> Result<Fetched, NoToken> {
        #[cfg(feature = "workload-identity")]
        if let (Principal::Workload(_), Some(workloads)) = (key.principal, &self.workloads) {
            return workloads.fetch(key, client, urgency).await;
        }
        // It refuses other principals.
        self.node.fetch(key, client, urgency).await
    }
}
