//! [`WorkloadSource`]: each pod's own token, from Google.
//!
//! # Steps
//!
//! The API server issues a token of the pod's Kubernetes service account, bound to one of its pods. Google's Security Token
//! Service exchanges that for a federated token. If the account is linked to a Google account, the IAM Credentials API
//! issues a token of the Google account for the federated token. Without a link, the federated token is the result.
//!
//! The token of each step is kept, and renewed at about half of its life while it is in use (`renew.rs`); Google tokens are
//! kept by the token cache. So the Security Token Service gets two requests an hour for each workload, whatever scopes
//! and audiences its pods request; without a link also for each other set of scopes, and for each certificate that a token
//! is bound to. Each step is one flight for all that wait for it, and continues when they have given up: the next request
//! resumes from there.
//!
//! The token that pods request first is fetched when a pod is scheduled, so that it is there before the pod's first
//! container runs (`prefetch.rs`).
//!
//! # When something fails
//!
//! | failure | response | next attempt |
//! |---|---|---|
//! | the service account is not known, or was deleted | 503, or 403 | see `workloads` |
//! | its annotation is malformed | 403 with Google's text | with the next read of it |
//! | the API server refuses a token | 503 with the missing right | after 10 s |
//! | the API server refuses the proxy's credential (401) | 503 | after 0.6 to 0.9 s, with the credential that is on disk then |
//! | the pod that the token is for is gone | another pod is tried, up to 3 | at once |
//! | the Security Token Service refuses (400, 401, 403) | 403 with its message | after 10 s; after `invalid_grant` with a new Kubernetes token, at most each 5 minutes |
//! | IAM refuses | its status, with Google's text | after 5 s, doubling to 60 s |
//! | IAM does not accept the federated token | 503 | with a new one, at most once a minute |
//! | 429 from Google | 503 with `Retry-After` | after that; doubling from 1 to 30 s; if no pod waits, after minutes (`quota.rs`) |
//! | 429 from the API server, or 503 with `Retry-After` | 503 with `Retry-After` | after that; doubling to 60 s with a valid token; each account by itself |
//! | no response, or a server error | 503 | after 0.6 to 0.9 s |
//! | a server fails for several workloads | 503 at once | once a second by one of them (`server.rs`) |
//!
//! A valid token is used in any case, by the token cache and between the steps, and never past its end.

pub mod attempt;
mod google;
mod halt;
mod handed;
mod haste;
mod iam;
mod kept;
pub mod metrics;
mod not_given;
mod pace;
mod prefetch;
mod quota;
mod quotas;
mod renew;
mod rest;
mod secret;
mod server;
mod sources;
mod stage;
mod steps;
mod sts;

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::Mutex;
use tokio::time::Instant;
use zeroize::Zeroizing;

pub use google::Google;
use halt::{Halt, no_token, refused};
pub use handed::{ExportedWorkload, NotTaken, WorkloadRecord};
use haste::Haste;
use kept::Ask;
pub use kept::Kept;
use metrics::ExchangeMetrics;
pub use not_given::{NotGiven, Said};
use pace::RenewalPace;
use prefetch::Askers;
pub use prefetch::prefetch;
pub use renew::renew;
use secret::Want;
pub use sources::Sources;
use steps::{Means, Reason, Servers, Steps};

use crate::cluster::Cluster;
use crate::pods::Pods;
use crate::workloads::{Federation, LinkError, Workload, Workloads};
use base::clock::BootTime;
use protocol::metadata::query::Param;
use protocol::metadata::token::AccessToken;
use protocol::metadata::{NotBound, Principal, RequestError, WorkloadId};
use proxy::failure::{ExchangeFailure, TokenFailure, UPSTREAM_TIMEOUT};
use proxy::shares::Client;
use proxy::tokens::{Fetched, NoToken, Token, TokenKey, TokenKind, TokenSource, Urgency};
use telemetry::Registry;

/// Maximum time of a fetch. A little less than clients of the token cache wait, so that they get the reason.
const TIMEOUT: Duration = Duration::from_millis(2400);

/// The parts of the proxy that the steps use.
#[derive(Debug)]
pub struct Parts {
    pub federation: Arc<Federation>,
    /// The accounts of pods.
    pub workloads: Arc<Workloads>,
    /// The pods to which tokens are bound.
    pub pods: Arc<Pods>,
    /// The API server.
    pub cluster: Cluster,
    /// Google's APIs.
    pub google: Google,
    /// The tokens kept for each workload. They must be deleted there when a workload is forgotten.
    pub kept: Arc<Kept>,
}

/// Each pod's own token, from Google.
#[derive(Debug)]
pub struct WorkloadSource {
    means: Arc<Means>,
    kept: Arc<Kept>,
    askers: Askers,
    /// Held while tokens are renewed that nobody waits for.
    renewing: Mutex<()>,
}

impl WorkloadSource {
    /// Sends no request yet.
    pub fn new(parts: Parts, registry: &Registry) -> Self {
        let Parts { federation, workloads, pods, cluster, google, kept } = parts;
        let metrics = ExchangeMetrics::new(registry);
        let servers = Servers::new(&metrics);
        let means = Means {
            federation,
            workloads,
            pods,
            cluster,
            google,
            servers,
            metrics,
            lines: steps::lines(),
            renewals: RenewalPace::default(),
        };
        Self { means: Arc::new(means), kept, askers: Askers::default(), renewing: Mutex::default() }
    }

    /// A line for each server, about the requests that this node sent so far.
    pub fn spent(&self) -> Vec<String> {
        self.means.metrics.lines()
    }

    /// The steps of a workload, once its Google identity is known.
    async fn steps(&self, number: WorkloadId) -> Result<Steps, NoToken> {
        let workloads = &self.means.workloads;
        let workload = workloads.link(number).await.map_err(|error| unknown(&error))?;
        let link = match &workload.link {
            Ok(link) => link.clone(),
            Err(malformed) => return Err(refused(StatusCode::FORBIDDEN, format!("{malformed}\n"))),
        };
        let stages = self.kept.of(number, BootTime::now());
        // The workload may have been forgotten just before, and would not be forgotten again.
        if !workloads.has(number) {
            self.kept.forget(number);
            return Err(unknown(&LinkError::Outdated));
        }
        Ok(Steps { means: Arc::clone(&self.means), stages, number, workload, link })
    }

    async fn ask(&self, key: &TokenKey, urgency: Urgency) -> Result<Fetched, NoToken> {
        let Principal::Workload(number) = key.principal else { return Err(TokenFailure::ForeignPrincipal.into()) };
        let deadline = Instant::now() + TIMEOUT;
        let steps = self.steps(number).await?;
        let fetched = self.token(&steps, key, deadline, &urgency.into()).await;
        fetched.map_err(|why| match &why {
            NoToken::Failed(failure) => match **failure {
                TokenFailure::Exchange(ExchangeFailure::Slow(None, time), _) => {
                    let slow = Halt::from(no_token(ExchangeFailure::Slow(Some(steps.awaited()), time)));
                    if urgency == Urgency::Demanded {
                        steps.log(Reason::Slow, urgency, &slow);
                    }
                    slow.why
                }
                _ => why,
            },
            NoToken::Refused(_) | NoToken::Overloaded(_) => why,
        })
    }

    async fn token(&self, steps: &Steps, key: &TokenKey, deadline: Instant, haste: &Haste) -> Result<Fetched, NoToken> {
        steps.stages.asked(BootTime::now());
        if !self.means.workloads.names().is_some_and(|names| names.is_own(&key.account, &steps.workload)) {
            return Err(refused(StatusCode::NOT_FOUND, NO_SUCH_ACCOUNT));
        }
        let is_linked = steps.link.google_account.is_some();
        match key.kind {
            TokenKind::Access => {
                let scopes = key.param(Param::Scopes).unwrap_or_default();
                let bound_to = key.bound_to.clone();
                if is_linked && bound_to.is_some() {
                    return Err(not_bound(NotBound::Linked));
                }
                let is_federated = !is_linked && bound_to.is_none() && matches!(scopes, "" | sts::CLOUD_PLATFORM);
                let secret = if is_federated {
                    self.askers.saw(&steps.workload);
                    steps.federated(Want::Young, deadline, haste).await?
                } else {
                    let ask = Ask { kind: key.kind, what: scopes.into(), bound_to };
                    steps.google_token(&ask, deadline, haste).await?
                };
                let source = if is_linked { ExchangeFailure::Iam } else { ExchangeFailure::Sts };
                let token = AccessToken::bearer(Zeroizing::new(secret.text.as_str().to_owned()))
                    .map_err(|error| no_token(source(error.to_string())))?;
                Ok(secret.given_as(Token::Access(token)))
            }
            TokenKind::Identity => {
                let audience = key.param(Param::Audience).unwrap_or_default();
                if key.bound_to.is_some() {
                    return Err(not_bound(NotBound::Identity));
                }
                if audience.is_empty() {
                    return Err(refused(StatusCode::BAD_REQUEST, NO_AUDIENCE));
                }
                if !is_linked {
                    return Err(refused(StatusCode::NOT_FOUND, not_annotated(&steps.workload)));
                }
                let ask = Ask { kind: key.kind, what: audience.into(), bound_to: None };
                let secret = steps.google_token(&ask, deadline, haste).await?;
                Ok(secret.given_as(Token::Identity(secret::bytes(Arc::clone(&secret)))))
            }
        }
    }
}

impl TokenSource for WorkloadSource {
    fn deadline(&self) -> Duration {
        UPSTREAM_TIMEOUT
    }

    async fn fetch(&self, key: &TokenKey, _: Client, urgency: Urgency) -> Result<Fetched, NoToken> {
        self.ask(key, urgency).await
    }
}

/// The response of Google's server to names of other accounts.
const NO_SUCH_ACCOUNT: &str = "Not Found\n";

const NO_AUDIENCE: &str = "non-empty audience parameter required\n";

/// Google's text.
fn not_annotated(workload: &Workload) -> String {
    let Workload { namespace, name, .. } = workload;
    format!(
        "Your Kubernetes service account ({namespace}/{name}) is not annotated with a target Google service account, which is \
         a requirement for retrieving Identity Tokens using Workload Identity.\n\
         Please add the iam.gke.io/gcp-service-account=[GSA_NAME]@[PROJECT_ID] annotation to your Kubernetes service account.\n\
         Refer to https://cloud.google.com/kubernetes-engine/docs/how-to/workload-identity\n"
    )
}

/// Client libraries read 404 as a server without bound tokens.
fn not_bound(why: NotBound) -> NoToken {
    refused(StatusCode::NOT_FOUND, format!("{}\n", RequestError::from(why)))
}

fn unknown(error: &LinkError) -> NoToken {
    match error {
        // A retry would not help.
        LinkError::Deleted { .. } => refused(StatusCode::FORBIDDEN, format!("{error}\n")),
        LinkError::Unread { .. } | LinkError::Outdated => no_token(ExchangeFailure::Account(error.to_string())),
    }
}

#[cfg(test)]
mod tests;
