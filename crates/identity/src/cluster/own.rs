//! [`OwnCluster`]: requests to the API server in the credential's own name, not in that of its node.

use std::sync::Arc;
use std::time::SystemTime;

use http::Request;
use http::header::ACCEPT;
use kube::client::Body;
use serde::Deserialize;
use serde_json::json;

use super::client::{Clients, Name};
use super::hints::Hint;
use super::{Cluster, ClusterError, NODE_PREFIX, RequestError, Settings, events, in_time, post};

/// Maximum size of a response, in bytes. Twenty keys have 10 KiB.
const MAX_BYTES: usize = 64 << 10;

/// The API server, accessed in the credential's own name.
pub struct OwnCluster {
    clients: Arc<Clients>,
}

/// The user that the API server derives from the credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Its name, such as `system:serviceaccount:NAMESPACE:NAME`.
    pub name: String,
    /// The node whose credential it is, or that of the pod which a service account's token is bound to.
    pub node: Option<String>,
    /// The pod that a service account's token is bound to.
    pub pod: Option<BoundPod>,
}

/// The pod that a token is bound to. It is in the namespace of the token's account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundPod {
    pub name: String,
    pub uid: String,
}

/// A document that the API server publishes about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Public {
    /// The issuer of service account tokens.
    Issuer,
    /// The keys that sign them.
    Keys,
}

/// A response, and its time by the API server's clock.
#[derive(Debug)]
pub struct Published<T> {
    pub answer: Result<T, RequestError>,
    /// The time by the API server's clock, to the second.
    pub date: Option<SystemTime>,
}

#[derive(Deserialize)]
struct Review {
    status: ReviewStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewStatus {
    user_info: UserInfo,
}

#[derive(Deserialize)]
struct UserInfo {
    username: String,
    #[serde(default)]
    extra: Extra,
}

/// The fields of a token that is bound to a pod. Each is a list of one.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Extra {
    #[serde(rename = "authentication.kubernetes.io/node-name")]
    node: Vec<String>,
    #[serde(rename = "authentication.kubernetes.io/pod-name")]
    pod: Vec<String>,
    #[serde(rename = "authentication.kubernetes.io/pod-uid")]
    uid: Vec<String>,
}

impl From<UserInfo> for User {
    fn from(UserInfo { username: name, extra }: UserInfo) -> Self {
        let [node, pod, uid] = [extra.node, extra.pod, extra.uid].map(|values| values.into_iter().next());
        let pod = pod.zip(uid).map(|(name, uid)| BoundPod { name, uid });
        let node = name.strip_prefix(NODE_PREFIX).map(str::to_owned).or(node);
        Self { name, node, pod }
    }
}

impl User {
    /// Whether it is a node.
    pub fn is_node(&self) -> bool {
        self.name.starts_with(NODE_PREFIX)
    }
}

impl Public {
    pub fn path(self) -> &'static str {
        match self {
            Self::Issuer => "/.well-known/openid-configuration",
            Self::Keys => "/openid/v1/jwks",
        }
    }
}

impl OwnCluster {
    /// Reads the credential. Requests nothing yet.
    ///
    /// # Panics
    ///
    /// Outside a runtime.
    pub async fn connect(settings: &Settings) -> Result<Self, ClusterError> {
        Ok(Self { clients: Arc::new(Clients::new(settings.clone(), Name::Own).await?) })
    }

    /// Uses the connections of a `Cluster` without impersonation.
    pub(super) fn of(bare: &Cluster) -> Self {
        Self { clients: Arc::clone(&bare.clients) }
    }

    /// The user that the API server derives from the credential. Kubernetes allows everybody to request this, from 1.28 on.
    pub async fn user(&self) -> Published<User> {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let Published { answer, date } = self.ask(post(path, &review)).await;
        let user = answer.and_then(|body| {
            let review: Review =
                serde_json::from_slice(&body).map_err(|error| RequestError::Invalid(error.to_string()))?;
            Ok(review.status.user_info.into())
        });
        Published { answer: user, date }
    }

    /// A published document, unparsed. By default service accounts may read it, and nodes may not.
    pub async fn published(&self, what: Public) -> Published<Vec<u8>> {
        // The API server refuses other types.
        let types = "application/json, application/jwk-set+json";
        self.ask(Request::get(what.path()).header(ACCEPT, types).body(Body::empty())).await
    }

    async fn ask(&self, request: http::Result<Request<Body>>) -> Published<Vec<u8>> {
        let response = match self.clients.send(request).await {
            Ok(response) => response,
            Err(error) => return Published { answer: Err(error), date: None },
        };
        let date = proxy::tokens::date(response.headers());
        let answer = async {
            let body = self.clients.accepted(response, Hint::default()).await?;
            Ok(events::read_whole(body, MAX_BYTES).await?.to_vec())
        };
        Published { answer: in_time(answer).await, date }
    }
}
