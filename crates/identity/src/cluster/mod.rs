//! [`Cluster`]: requests to the cluster's API server.
//!
//! All requests are in the name of this node, so that the API server itself refuses those about another node: either with
//! the kubelet's own credential, or with the proxy's account, which then acts as its node (`Impersonate-User`). As a last
//! resort that account acts as itself, and an admission policy limits it. [`rights`] finds out the rights of the credential.

mod account;
mod cause;
mod client;
mod error;
mod events;
mod hints;
mod node;
mod node_name;
mod object;
mod own;
mod prune;
pub mod rights;
mod token_request;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use form_urlencoded::Serializer;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode};
use kube::client::Body;
use percent_encoding::{NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde_json::Value;
use tokio::time::timeout;

pub use account::{AccountMetadata, AccountObject, Annotations};
use client::{Clients, Name};
pub use error::{BadCertificate, ClusterError, Failure, RequestError, TlsFailure};
pub use events::{Event, Events};
use hints::{Hint, Resource};
pub use node::Node;
pub use node_name::{NodeName, NodeNameError, is_dns_subdomain};
use object::PodList;
pub use object::{Metadata, PodObject, Spec, Status};
pub use own::{BoundPod, OwnCluster, Public, Published, User};
use prune::Shape;
pub use token_request::{PodToken, TokenRequest, TokenRequestError};

use http_client::retry_after;

/// Maximum time from a request until its response begins, and from then until its end, except of lists and watches of pods.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time without a byte in a response. A watch has a bookmark each minute, or up to 2 s later, so that 60 s
/// would cut healthy watches; a lost machine is noticed by TCP after 30 s. This limit detects an API server, or a load
/// balancer in front of it, that is alive but silent.
pub const MAX_SILENCE: Duration = Duration::from_secs(75);

/// Range of the duration of a watch at the API server, in seconds. It is drawn for each watch, so that nodes do not
/// start theirs together. Short enough that the client is renewed with a replaced certificate.
const WATCH_SECONDS: std::ops::Range<u32> = 240..300;

/// Prefix of the user names of nodes.
pub const NODE_PREFIX: &str = "system:node:";

/// Prefix of the user names of service accounts.
pub const ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// This node, and the credential to prove it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub node: NodeName,
    pub credential: Credential,
}

/// The credential shown to the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// A kubeconfig. The kubelet's own is sufficient.
    Kubeconfig(PathBuf),
    /// This pod's service account.
    OwnAccount(Acting),
}

/// The identity used by this pod's service account.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Acting {
    /// As its node: Kubernetes 1.36, or 1.35 with a feature gate.
    #[default]
    AsItsNode,
    /// As itself: an admission policy must bound it.
    AsItself,
}

/// The start of a watch.
#[derive(Debug, Clone, Copy)]
pub enum Since<'a> {
    /// With all pods, as if they had just been added, and a bookmark that ends the list. Servers before 1.34 may refuse
    /// it.
    Beginning,
    /// After this version.
    Version(&'a str),
}

/// The API server, accessed in the name of this node. Clones share the connections.
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
        Ok(Self { clients: Arc::new(Clients::new(settings.clone(), Name::Node).await?) })
    }

    /// The same credential without impersonation, and the user that this one impersonates.
    async fn bare(&self) -> Result<(Self, Option<String>), ClusterError> {
        let (clients, acts_as) = self.clients.bare().await?;
        Ok((Self { clients: Arc::new(clients) }, acts_as))
    }

    pub fn node(&self) -> &NodeName {
        &self.clients.settings().node
    }

    /// Watches this node's pods.
    pub async fn node_pods(&self, since: Since<'_>) -> Result<Events, RequestError> {
        let body = self.get(&format!("/api/v1/pods?{}", self.watch_query(since)), Resource::Pods).await?;
        Ok(Events::new(body, self.hint(Resource::Pods)))
    }

    /// This node's pods as of now, and the version from which a watch can resume.
    pub async fn list(&self) -> Result<(Vec<PodObject>, String), RequestError> {
        let body = self.get(&format!("/api/v1/pods?{}", self.query(&[]).finish()), Resource::Pods).await?;
        let list: PodList = events::read(body, Shape::List).await?;
        Ok((list.items.unwrap_or_default(), list.metadata.resource_version))
    }

    /// A pod of this node with its owners. `None` if no pod on this node has the name; one on another node may have it.
    ///
    /// It is listed, because acting as the node gives the right to list but not to get.
    pub async fn owned_pod(&self, namespace: &str, name: &str) -> Result<Option<PodObject>, RequestError> {
        let body = self.get(&self.named(namespace, name), Resource::Pods).await?;
        let list: PodList = in_time(events::read(body, Shape::Owners)).await?;
        Ok(list.items.into_iter().flatten().find(|pod| pod.metadata.name == name))
    }

    /// A service account. As a node, only that of one of its pods. `None` if there is none by this name.
    pub async fn service_account(&self, namespace: &str, name: &str) -> Result<Option<AccountObject>, RequestError> {
        match self.get(&account_path(namespace, name), Resource::Accounts).await {
            Ok(body) => in_time(events::read(body, Shape::Account)).await.map(Some),
            // In these words. Something in front of the API server may answer 404, too.
            Err(RequestError::Refused { status: StatusCode::NOT_FOUND, message, .. })
                if message.contains(&format!("serviceaccounts \"{name}\" not found")) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A token of a service account, for an hour.
    pub async fn token(&self, request: &TokenRequest<'_>) -> Result<PodToken, TokenRequestError> {
        let post = post(&token_path(request.namespace, request.account), &request.object());
        let body = self.send(post, Resource::Tokens).await.map_err(|error| request.refused(error))?;
        let answer = in_time(events::read_whole(body, token_request::MAX_BYTES)).await?;
        Ok(token_request::parse(&answer)?)
    }

    /// This node's object, for its UID and zone.
    pub async fn node_facts(&self) -> Result<Node, RequestError> {
        in_time(events::read(self.get(&self.node_path(), Resource::NodeFacts).await?, Shape::Node)).await
    }

    /// This node's object, for its taints.
    pub async fn taints(&self) -> Result<Node, RequestError> {
        in_time(events::read(self.get(&self.node_path(), Resource::NodeTaints).await?, Shape::Node)).await
    }

    /// Replaces this node's taints, unless the node has changed since it was read: then the API server answers 409
    /// Conflict.
    pub async fn set_taints(&self, node: &Node) -> Result<(), RequestError> {
        self.send(merge_patch(&self.node_path(), &node.patch_of_taints()), Resource::NodeTaints).await.map(drop)
    }

    fn node_path(&self) -> String {
        format!("/api/v1/nodes/{}", self.node())
    }

    /// The path that lists the pods of this node with a name: one at most.
    fn named(&self, namespace: &str, name: &str) -> String {
        let query = self.query(&[("metadata.name", name)]).finish();
        format!("/api/v1/namespaces/{}/pods?{query}", escaped(namespace))
    }

    fn watch_query(&self, since: Since<'_>) -> String {
        let mut query = self.query(&[]);
        query.append_pair("watch", "true").append_pair("allowWatchBookmarks", "true");
        query.append_pair("timeoutSeconds", &fastrand::u32(WATCH_SECONDS).to_string());
        match since {
            // Without a version the list is current. A version could be older than the known state.
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
            // Characters that would end the value.
            let value = value.replace('\\', r"\\").replace(',', r"\,").replace('=', r"\=");
            selector.extend([",", field, "=", value.as_str()]);
        }
        let mut query = Serializer::new(String::new());
        query.append_pair("fieldSelector", &selector);
        query
    }

    /// Requests this path, and returns the body of a response with status 200.
    async fn get(&self, path: &str, resource: Resource) -> Result<Body, RequestError> {
        self.send(Request::get(path).body(Body::empty()), resource).await
    }

    /// Sends a request, and returns the body of a response with status 200 or 201.
    async fn send(&self, request: http::Result<Request<Body>>, resource: Resource) -> Result<Body, RequestError> {
        self.clients.accepted(self.clients.send(request).await?, self.hint(resource)).await
    }

    /// The API server's URL.
    pub fn server(&self) -> String {
        self.clients.server()
    }

    /// Advice when this credential is refused.
    fn hint(&self, resource: Resource) -> Hint {
        Hint::new(&self.clients.settings().credential, resource)
    }
}

impl Clients {
    /// Sends a request, and returns any response.
    async fn send(&self, request: http::Result<Request<Body>>) -> Result<Response<Body>, RequestError> {
        let (client, number) = self.current().await?;
        let mut request = request.map_err(|error| RequestError::Invalid(error.to_string()))?;
        request.headers_mut().entry(ACCEPT).or_insert(JSON);
        match timeout(RESPONSE_TIMEOUT, client.send(request)).await {
            Err(_) => Err(RequestError::Silent(RESPONSE_TIMEOUT)),
            Ok(Err(error)) => {
                self.doubted();
                Err(error::not_sent(self.server(), error))
            }
            Ok(Ok(response)) => {
                if response.status() == StatusCode::UNAUTHORIZED {
                    self.refused(number);
                }
                Ok(response)
            }
        }
    }

    /// The body of a response with status 200 or 201. Otherwise the error that the response is.
    async fn accepted(&self, response: Response<Body>, hint: Hint) -> Result<Body, RequestError> {
        let (head, body) = response.into_parts();
        let status = head.status;
        if matches!(status, StatusCode::OK | StatusCode::CREATED) {
            return Ok(body);
        }
        let demanded = retry_after(&head.headers);
        // Reading the message may be slow.
        let refusal = timeout(RESPONSE_TIMEOUT, events::read_refusal(status, body, hint)).await;
        Err(match refusal.unwrap_or(RequestError::Silent(RESPONSE_TIMEOUT)) {
            RequestError::Refused { status: StatusCode::TOO_MANY_REQUESTS, message, .. } => {
                RequestError::Throttled { message, retry_after: demanded.unwrap_or(DEFAULT_RETRY_AFTER) }
            }
            RequestError::Refused { status, message, hint, .. } => {
                RequestError::Refused { status, message, hint, retry_after: demanded }
            }
            error => error,
        })
    }
}

/// Waits for the end of an answer.
async fn in_time<T>(answer: impl Future<Output = Result<T, RequestError>>) -> Result<T, RequestError> {
    timeout(RESPONSE_TIMEOUT, answer).await.unwrap_or(Err(RequestError::Silent(RESPONSE_TIMEOUT)))
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const MERGE_PATCH: HeaderValue = HeaderValue::from_static("application/merge-patch+json");

/// Delay after 429 if the API server names none.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);

fn post(path: &str, object: &Value) -> http::Result<Request<Body>> {
    Request::post(path).header(CONTENT_TYPE, JSON).body(Body::from(object.to_string().into_bytes()))
}

fn merge_patch(path: &str, changes: &Value) -> http::Result<Request<Body>> {
    Request::patch(path).header(CONTENT_TYPE, MERGE_PATCH).body(Body::from(changes.to_string().into_bytes()))
}

fn account_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{}/serviceaccounts/{}", escaped(namespace), escaped(name))
}

/// The path to which requests for tokens of a service account are posted.
fn token_path(namespace: &str, account: &str) -> String {
    account_path(namespace, account) + "/token"
}

/// A segment of a path, escaped.
fn escaped(segment: &str) -> PercentEncode<'_> {
    utf8_percent_encode(segment, NON_ALPHANUMERIC)
}

#[cfg(any(test, feature = "test-util"))]
pub mod fake;
#[cfg(test)]
mod tests;
