//! [`Cluster`]: what is asked of the cluster's API server.
//!
//! Everything is asked in the name of this node, so that the API server itself refuses what is about another one:
//! either with the kubelet's own credential, or with the proxy's account, which then acts as its node
//! (`Impersonate-User`).

mod client;
mod error;
mod events;
mod node_name;
mod object;
mod prune;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use form_urlencoded::Serializer;
use http::header::ACCEPT;
use http::{Request, Response, StatusCode};
use kube::client::Body;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::timeout;

use client::Clients;
pub use error::{ClusterError, Failure, RequestError};
pub use events::{Event, Events};
pub use node_name::{NodeName, NodeNameError};
pub use object::{Metadata, PodObject, Spec, Status};

/// Maximum time from a request until its response begins.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time without a byte in a response. A watch has a bookmark each minute, or up to 2 s later, so that 60 s
/// would cut healthy watches; a lost machine is noticed by TCP after 30 s. What this limit finds is an API server, or a
/// load balancer in front of it, that lives and says nothing.
pub const MAX_SILENCE: Duration = Duration::from_secs(75);

/// How long the API server lets a watch run, in seconds. Each watch has another time, so that nodes do not start theirs
/// together. Short enough that the client is renewed with a replaced certificate.
const WATCH_SECONDS: std::ops::Range<u32> = 240..300;

/// What to do about a status, in words that follow the API server's.
type Hint = fn(StatusCode) -> &'static str;

/// Which node this is, and how to prove it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// This node.
    pub node: NodeName,
    /// What the API server is shown.
    pub credential: Credential,
}

/// What the API server is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// What a kubeconfig says. The kubelet's own will do.
    Kubeconfig(PathBuf),
    /// This pod's service account, acting as its node: Kubernetes 1.36, or 1.35 with a feature gate.
    OwnAccount,
}

/// Where a watch begins.
#[derive(Debug, Clone, Copy)]
pub enum Since<'a> {
    /// With all pods, as if they had just been added, and a bookmark that ends the list. Servers before 1.34 may refuse
    /// it.
    Beginning,
    /// After this version.
    Version(&'a str),
}

/// The API server, asked in the name of this node. Clones share the connections.
#[derive(Clone)]
pub struct Cluster {
    clients: Arc<Clients>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("settings", self.clients.settings()).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Reads the credential. Requests nothing yet.
    ///
    /// # Panics
    ///
    /// Outside a runtime.
    pub async fn connect(settings: &Settings) -> Result<Self, ClusterError> {
        Ok(Self { clients: Arc::new(Clients::new(settings.clone()).await?) })
    }

    /// This node.
    pub fn node(&self) -> &NodeName {
        &self.clients.settings().node
    }

    /// What happens to this node's pods.
    pub async fn node_pods(&self, since: Since<'_>) -> Result<Events, RequestError> {
        let body = self.get(&format!("/api/v1/pods?{}", self.watch_query(since))).await?;
        Ok(Events::new(body, self.hint()))
    }

    /// This node's pods as of now, and the version from which a watch can go on.
    pub async fn list(&self) -> Result<(Vec<PodObject>, String), RequestError> {
        let body = self.get(&format!("/api/v1/pods?{}", self.query(&[]).finish())).await?;
        events::read_list(body).await
    }

    /// A pod of this node. `None` if there is none by this name here; whether it is on another node remains unknown.
    ///
    /// It is listed, because acting as the node gives the right to list but not to get.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<Option<PodObject>, RequestError> {
        let namespace = utf8_percent_encode(namespace, NON_ALPHANUMERIC);
        let path = format!("/api/v1/namespaces/{namespace}/pods?{}", self.query(&[("metadata.name", name)]).finish());
        let (pods, _) = events::read_list(self.get(&path).await?).await?;
        Ok(pods.into_iter().find(|pod| pod.metadata.name == name))
    }

    fn watch_query(&self, since: Since<'_>) -> String {
        let mut query = self.query(&[]);
        query.append_pair("watch", "true").append_pair("allowWatchBookmarks", "true");
        query.append_pair("timeoutSeconds", &fastrand::u32(WATCH_SECONDS).to_string());
        match since {
            // Without a version the list is as of now. Any other could be older than what is known already.
            Since::Beginning => {
                query.append_pair("sendInitialEvents", "true").append_pair("resourceVersionMatch", "NotOlderThan")
            }
            Since::Version(version) => query.append_pair("resourceVersion", version),
        };
        query.finish()
    }

    /// A query that selects pods of this node with these fields.
    fn query(&self, fields: &[(&str, &str)]) -> Serializer<'static, String> {
        let mut selector = format!("spec.nodeName={}", self.node());
        for (field, value) in fields {
            // What would end the value.
            let value = value.replace('\\', r"\\").replace(',', r"\,").replace('=', r"\=");
            selector.extend([",", field, "=", value.as_str()]);
        }
        let mut query = Serializer::new(String::new());
        query.append_pair("fieldSelector", &selector);
        query
    }

    /// Requests this path, and returns the body of a response with status 200.
    async fn get(&self, path: &str) -> Result<Body, RequestError> {
        let client = self.clients.current().await?;
        let request = Request::get(path).header(ACCEPT, "application/json").body(Body::empty());
        let request = request.map_err(|error| RequestError::Invalid(error.to_string()))?;
        let response: Response<Body> = match timeout(RESPONSE_TIMEOUT, client.send(request)).await {
            Err(_) => return Err(RequestError::Silent(RESPONSE_TIMEOUT)),
            Ok(Err(error)) => return Err(error::not_sent(self.clients.server(), error)),
            Ok(Ok(response)) => response,
        };
        let (head, body) = response.into_parts();
        match head.status {
            StatusCode::OK => Ok(body),
            status => {
                if status == StatusCode::UNAUTHORIZED {
                    self.clients.refused();
                }
                // It may be slow.
                let refusal = timeout(RESPONSE_TIMEOUT, events::read_refusal(status, body, self.hint())).await;
                Err(refusal.unwrap_or(RequestError::Silent(RESPONSE_TIMEOUT)))
            }
        }
    }

    /// What to do when this credential is refused.
    fn hint(&self) -> Hint {
        match self.clients.settings().credential {
            Credential::Kubeconfig(_) => |status| match status {
                StatusCode::UNAUTHORIZED => ". The kubeconfig's certificate or token is not valid, or has expired",
                StatusCode::FORBIDDEN => {
                    ". The kubeconfig must be this node's own (system:node:NODE in the group system:nodes), \
                     or of an account that may list and watch pods"
                }
                _ => "",
            },
            Credential::OwnAccount => |status| match status {
                StatusCode::UNAUTHORIZED => ". The proxy's service account was deleted, or its token has expired",
                StatusCode::FORBIDDEN => {
                    ". The proxy's account needs a ClusterRole with the verb impersonate:associated-node for \
                     nodes in authentication.k8s.io, and with impersonate-on:associated-node:list and \
                     impersonate-on:associated-node:watch for pods; the API server needs Kubernetes 1.36, \
                     or 1.35 with the feature gate ConstrainedImpersonation; and --node-name must be the node \
                     of this pod"
                }
                _ => "",
            },
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
