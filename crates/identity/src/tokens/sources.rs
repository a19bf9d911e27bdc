//! [`Sources`]: chooses the source of a token by the principal.

use std::sync::Arc;
use std::time::Duration;

use super::WorkloadSource;
use protocol::metadata::Principal;
use proxy::shares::Client;
use proxy::tokens::{Fetched, MetadataServer, NoToken, TokenKey, TokenSource, Urgency};

/// The node's token is the metadata server's, a workload's is Google's.
#[derive(Debug)]
pub struct Sources<N = MetadataServer> {
    node: N,
    /// `None` if workloads have no tokens.
    workloads: Option<Arc<WorkloadSource>>,
}

impl<N> Sources<N> {
    /// Tokens of the node only.
    pub fn of_node(node: N) -> Self {
        Self { node, workloads: None }
    }

    /// The source of workloads' tokens. `None` if they have none.
    pub fn of_workloads(&self) -> Option<&Arc<WorkloadSource>> {
        self.workloads.as_ref()
    }

    /// Also tokens of workloads.
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
        if let (Principal::Workload(_), Some(workloads)) = (key.principal, &self.workloads) {
            return workloads.fetch(key, client, urgency).await;
        }
        // It refuses other principals.
        self.node.fetch(key, client, urgency).await
    }
}
