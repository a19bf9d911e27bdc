//! Gathers [`Facts`] from the API server.

use http::StatusCode;
use kube::client::Body;
use serde::Deserialize;
use serde_json::{Value, json};

use super::facts::{Attempt, Facts, Outcome, Way};
use super::judge;
use super::right::{CREATE_TOKENS, PATCH_NODES, Right};
use crate::cluster::hints::Resource;
use crate::cluster::{
    ACCOUNT_PREFIX, Cluster, NODE_PREFIX, OwnCluster, RequestError, User, events, merge_patch, post, token_path,
    token_request,
};

/// Maximum size of a review, in bytes. It has some hundred, and the reason, which names roles.
const MAX_BYTES: usize = 32 << 10;

/// A UID that no pod has.
const NO_UID: &str = "00000000-0000-0000-0000-000000000000";

/// Too short for every API server, which checks this after it has authorized a node's request.
const TOO_SHORT_SECONDS: u32 = 1;

/// Longer than the proxy requests.
const TOO_LONG_SECONDS: u32 = 10 * 3600;

/// Gathers all facts: a review for each right, and some token requests that yield no token.
pub(super) async fn facts(cluster: &Cluster, audience: Option<&str>) -> Result<Facts, RequestError> {
    let (bare, acts_as) = cluster.bare().await?;
    let user = OwnCluster::of(&bare).user().await.answer.map_err(or_unreachable)?;
    let way = match acts_as {
        Some(name) if name.starts_with(NODE_PREFIX) => Way::OwnNode,
        _ if user.is_node() => Way::Kubelet,
        _ => Way::Itself,
    };
    let mut allowed = Vec::new();
    for right in judge::questions(way, audience.is_some()) {
        if may(&bare, right).await? {
            allowed.push(right);
        }
    }
    let subject = match Subject::of(&user) {
        Some(own) => Some(own),
        // Any pod of this node. A user that may not list pods lacks a right, which is judged.
        None if way != Way::OwnNode => match any_pod(cluster).await {
            Err(RequestError::Refused { .. }) => None,
            found => found?,
        },
        None => None,
    };
    let mut attempts = Vec::new();
    if let Some(subject) = &subject {
        let asker = Asker { bare: &bare, cluster, subject, audience };
        let of_itself = allowed.contains(&CREATE_TOKENS) && way != Way::Kubelet;
        for attempt in attempts_of(way, of_itself) {
            if let Some(outcome) = asker.attempt(attempt).await? {
                attempts.push((attempt, outcome));
            }
        }
    }
    let change = if allowed.contains(&PATCH_NODES) && !user.is_node() { change_node(&bare).await? } else { None };
    let node = cluster.node().clone();
    Ok(Facts { node, has_tokens: audience.is_some(), user, way, allowed, attempts, change })
}

/// The attempts to make. As itself only those that RBAC allows: the others are known to be refused.
fn attempts_of(way: Way, of_itself: bool) -> Vec<Attempt> {
    let mut attempts = Vec::new();
    if way != Way::Itself {
        attempts.extend([Attempt::AsNode, Attempt::UnboundAsNode]);
    }
    if of_itself {
        attempts.extend([Attempt::AsAsked, Attempt::ForTheApiServer, Attempt::ForHours, Attempt::BoundToNoPod]);
    }
    attempts
}

/// A pod of this node, for which tokens are requested.
#[derive(Debug)]
struct Subject {
    namespace: String,
    account: String,
    pod: String,
    uid: String,
}

impl Subject {
    /// The account of a token, and the pod that it is bound to.
    fn of(user: &User) -> Option<Self> {
        let (namespace, account) = user.name.strip_prefix(ACCOUNT_PREFIX)?.split_once(':')?;
        let [namespace, account] = [namespace, account].map(str::to_owned);
        let pod = user.pod.clone()?;
        Some(Self { namespace, account, pod: pod.name, uid: pod.uid })
    }
}

/// Makes attempts.
struct Asker<'a> {
    bare: &'a Cluster,
    cluster: &'a Cluster,
    subject: &'a Subject,
    audience: Option<&'a str>,
}

impl Asker<'_> {
    /// `None` if the attempt shows nothing, because the pod has just ended.
    async fn attempt(&self, attempt: Attempt) -> Result<Option<Outcome>, RequestError> {
        let is_node = matches!(attempt, Attempt::AsNode | Attempt::UnboundAsNode);
        let by = if is_node { self.cluster } else { self.bare };
        let path = token_path(&self.subject.namespace, &self.subject.account);
        match create(by, &path, &self.token_request(attempt)).await {
            // A token was minted, so something changes requests on their way. It is wiped with the connection's buffers.
            Ok(_) => Ok(Some(Outcome::Passed)),
            Err(RequestError::Refused { status, message, .. }) => Ok(match status {
                StatusCode::UNPROCESSABLE_ENTITY if is_node => Some(Outcome::Passed),
                StatusCode::NOT_FOUND if is_node => None,
                StatusCode::NOT_FOUND | StatusCode::CONFLICT => Some(Outcome::Passed),
                _ => Some(Outcome::Refused(message)),
            }),
            Err(error) => Err(error),
        }
    }

    fn token_request(&self, attempt: Attempt) -> Value {
        let pod = |uid| json!({"apiVersion": "v1", "kind": "Pod", "name": self.subject.pod, "uid": uid});
        let bound = match attempt {
            Attempt::AsNode => pod(self.subject.uid.as_str()),
            Attempt::UnboundAsNode => Value::Null,
            Attempt::AsAsked | Attempt::ForTheApiServer | Attempt::ForHours => pod(NO_UID),
            Attempt::BoundToNoPod => {
                json!({"apiVersion": "v1", "kind": "Secret", "name": "gce-metadata-proxy-none", "uid": NO_UID})
            }
        };
        let seconds = match attempt {
            Attempt::AsNode | Attempt::UnboundAsNode => TOO_SHORT_SECONDS,
            Attempt::ForHours => TOO_LONG_SECONDS,
            Attempt::AsAsked | Attempt::ForTheApiServer | Attempt::BoundToNoPod => token_request::LIFE_SECONDS,
        };
        let audience = self.audience.filter(|_| attempt != Attempt::ForTheApiServer);
        let audiences: Vec<&str> = audience.into_iter().collect();
        json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": bound},
        })
    }
}

#[derive(Deserialize)]
struct Review {
    status: Access,
}

#[derive(Deserialize)]
struct Access {
    #[serde(default)]
    allowed: bool,
}

/// Whether the requesting user has a right.
async fn may(bare: &Cluster, right: Right) -> Result<bool, RequestError> {
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let body = events::read_whole(create(bare, path, &right.review()).await?, MAX_BYTES).await?;
    let review: Review =
        serde_json::from_slice(&body).map_err(|error| RequestError::Invalid(format!("a review: {error}")))?;
    Ok(review.status.allowed)
}

/// Tries, in a dry run, to change a part of the node that the startup taint's policy lets nobody change. `None` if the
/// result shows nothing.
async fn change_node(bare: &Cluster) -> Result<Option<Outcome>, RequestError> {
    let patch = json!({"metadata": {"annotations": {"gce-metadata-proxy/none": "none"}}});
    let request = merge_patch(&format!("{}?dryRun=All", bare.node_path()), &patch);
    match bare.send(request, Resource::Rights).await.map_err(or_unreachable) {
        Ok(_) => Ok(Some(Outcome::Passed)),
        Err(RequestError::Refused {
            status: StatusCode::FORBIDDEN | StatusCode::UNPROCESSABLE_ENTITY,
            message,
            ..
        }) => Ok(Some(Outcome::Refused(message))),
        // There is no such node, or a webhook does not support dry runs; neither says anything about a policy.
        Err(RequestError::Refused { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A pod of this node that has an account and is not ending.
async fn any_pod(cluster: &Cluster) -> Result<Option<Subject>, RequestError> {
    let (pods, _) = cluster.list().await?;
    let mut able = pods
        .into_iter()
        .filter(|pod| !pod.spec.service_account_name.is_empty() && !pod.has_ended() && !pod.is_terminating());
    Ok(able.next().map(|pod| Subject {
        namespace: pod.metadata.namespace,
        account: pod.spec.service_account_name,
        pod: pod.metadata.name,
        uid: pod.metadata.uid,
    }))
}

/// Sends an object. A failure of the server itself becomes [`RequestError::Unreachable`]; a refusal has its message.
async fn create(by: &Cluster, path: &str, object: &Value) -> Result<Body, RequestError> {
    by.send(post(path, object), Resource::Rights).await.map_err(or_unreachable)
}

/// Treats a refusal that does not concern the request as a failure of the server itself.
fn or_unreachable(error: RequestError) -> RequestError {
    match error {
        RequestError::Refused { status, message, hint, .. }
            if status.is_server_error() || status == StatusCode::UNAUTHORIZED =>
        {
            RequestError::Unreachable(format!("{status}: {message}{hint}"))
        }
        error => error,
    }
}
