//! [`Steps`]: each step from a pod's service account to a token of Google's.
//!
//! ```text
//!  service account ── API server ──> Kubernetes token, bound to a pod
//!                                      │ STS
//!                                      ├──> federated token for all of Google's APIs ── IAM ──> token of a Google account
//!                                      └──> federated token with other scopes
//! ```

use std::sync::Arc;

use http::StatusCode;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::google::Google;
use super::halt::Halt;
use super::iam::{Impersonation, NotIssued, What};
use super::kept::{Ask, Stages};
use super::metrics::{ExchangeMetrics, Step};
use super::pace::{BURST, INTERVAL};
use super::secret::{Secret, Want};
use super::stage::{MAX_FLIGHT, Stage};
use super::sts::{self, CLOUD_PLATFORM};
use crate::clock::BootTime;
use crate::cluster::{Cluster, Failure, RequestError, TokenRequest, TokenRequestError};
use crate::failure::ExchangeFailure;
use crate::metadata::WorkloadId;
use crate::pods::Pods;
use crate::tokens::{NoToken, TokenKind};
use crate::workloads::{Federation, GoogleAccount, Link, Workload, Workloads};

/// Maximum concurrent token requests to the API server. Each may need a connection of its own.
pub(super) const MAX_TOKEN_REQUESTS: usize = 24;

/// Maximum pods in whose names a token is asked for, one after the other.
const MAX_SPONSORS: usize = 3;

/// What all steps of all workloads need.
#[derive(Debug)]
pub(super) struct Means {
    pub(super) federation: Arc<Federation>,
    pub(super) workloads: Arc<Workloads>,
    pub(super) pods: Arc<Pods>,
    pub(super) cluster: Cluster,
    pub(super) google: Google,
    pub(super) token_requests: Semaphore,
    pub(super) metrics: ExchangeMetrics,
}

/// The steps of one workload. A clone is the same.
#[derive(Debug, Clone)]
pub(super) struct Steps {
    pub(super) means: Arc<Means>,
    pub(super) stages: Arc<Stages>,
    pub(super) number: WorkloadId,
    pub(super) workload: Arc<Workload>,
    pub(super) link: Link,
}

/// When a step that waits for another one gives up: not before its own flight does.
pub(super) fn patiently() -> Instant {
    Instant::now() + MAX_FLIGHT
}

impl Steps {
    /// The workload's Kubernetes token.
    pub(super) async fn subject(&self) -> Result<Arc<Secret>, NoToken> {
        let steps = self.clone();
        let work = || async move { steps.counted(Step::Kubernetes, steps.ask_for_subject().await) };
        self.stages.subject.get(Want::Young, patiently(), work).await
    }

    async fn ask_for_subject(&self) -> Result<Secret, Halt> {
        let Means { workloads, pods, cluster, token_requests, federation, .. } = &*self.means;
        // Annotations are looked at with each renewal. If they have changed, this workload gets another number.
        workloads.recheck(self.number);
        let _permit = token_requests.acquire().await;
        let Workload { namespace, name, .. } = &*self.workload;
        let mut why = format!("no running pod of {namespace}/{name} is known any more");
        for pod in pods.sponsors(namespace, name).iter().take(MAX_SPONSORS) {
            let uid = pod.uid.to_string();
            let audience = federation.token_audience();
            let request = TokenRequest { namespace, account: name, audience, pod: &pod.name, pod_uid: &uid };
            let asked = BootTime::now();
            match cluster.token(&request).await {
                Ok(token) => return Ok(Secret::new(token.secret, asked, token.life)),
                Err(error @ TokenRequestError::SponsorGone { .. }) => why = error.to_string(),
                Err(TokenRequestError::Audience(error) | TokenRequestError::Request(error)) => {
                    return Err(not_issued(&error));
                }
            }
        }
        Err(Halt::failed(ExchangeFailure::Kubernetes(why)))
    }

    /// The workload's token for all of Google's APIs, until `deadline`.
    pub(super) async fn federated(&self, want: Want, deadline: Instant) -> Result<Arc<Secret>, NoToken> {
        let steps = self.clone();
        let work = || async move { steps.exchange(CLOUD_PLATFORM).await };
        self.stages.federated.get(want, deadline, work).await
    }

    /// Exchanges the Kubernetes token for one with these scopes, separated by spaces.
    async fn exchange(&self, scopes: &str) -> Result<Secret, Halt> {
        // A young one, because what is given for it ends with it.
        let subject = self.subject().await?;
        // Who acts as a Google account names the project when it does.
        let quota_project = self.link.quota_project.as_ref().filter(|_| self.link.google_account.is_none());
        let exchange = sts::Exchange { subject: &subject, scopes, quota_project };
        self.counted(Step::Sts, exchange.send(&self.means.google, &self.means.federation).await.map_err(sts::halt))
    }

    /// A token that the token cache keeps from now on, until `deadline`.
    pub(super) async fn google_token(&self, ask: &Ask, deadline: Instant) -> Result<Arc<Secret>, NoToken> {
        let stage = self.stages.google_token(ask, BootTime::now())?;
        let outcome = self.issue(ask, &stage, deadline).await;
        if outcome.is_ok() {
            self.stages.collected(ask, &stage);
        }
        outcome
    }

    /// Has the token issued that pods ask for first, for their first request to collect.
    pub(super) async fn prepare(&self) -> Result<(), NoToken> {
        if self.link.google_account.is_none() {
            return self.federated(Want::Young, patiently()).await.map(drop);
        }
        let ask = Ask::default_token();
        let stage = self.stages.google_token(&ask, BootTime::now())?;
        self.issue(&ask, &stage, patiently()).await.map(drop)
    }

    async fn issue(&self, ask: &Ask, stage: &Arc<Stage>, deadline: Instant) -> Result<Arc<Secret>, NoToken> {
        let (steps, asked) = (self.clone(), ask.clone());
        let work = || async move {
            let permits = Arc::clone(&steps.stages.permits);
            let _permit = permits.acquire_owned().await;
            steps.pace(&asked)?;
            match steps.link.google_account.clone() {
                Some(account) => steps.impersonate(&account, &asked).await,
                None => steps.exchange(&asked.what.replace(',', " ")).await,
            }
        };
        stage.get(ask.want(), deadline, work).await
    }

    /// Whether Google is asked now. Of the token that pods ask for first there is one, so it is not bounded.
    fn pace(&self, ask: &Ask) -> Result<(), Halt> {
        if *ask == Ask::default_token() {
            return Ok(());
        }
        self.stages.pace.take(BootTime::now()).map_err(|wait| {
            let Workload { namespace, name, .. } = &*self.workload;
            let text = format!(
                "Pods of {namespace}/{name} on this node have asked for more than {BURST} tokens with scopes or audiences of their \
                 own; until they ask for fewer, one more is issued every {} ms. Ask for the same scopes, or for none: known \
                 tokens and the default one are served at once.\n",
                INTERVAL.as_millis()
            );
            Halt::throttled(text, wait).in_the_log(format_args!("{namespace}/{name}"))
        })
    }

    /// A token of a Google account.
    async fn impersonate(&self, account: &GoogleAccount, ask: &Ask) -> Result<Secret, Halt> {
        let federated = self.federated(Want::Valid, patiently()).await?;
        let what = match ask.kind {
            TokenKind::Access => What::Access(&ask.what),
            TokenKind::Identity => What::Identity(&ask.what),
        };
        let impersonation = Impersonation { account, link: &self.link, federated: &federated, what };
        let issued = impersonation.send(&self.means.google, &self.means.federation.iam).await;
        let result = issued.map_err(|error| match impersonation.not_issued(error) {
            NotIssued::Halt(halt) => halt,
            NotIssued::NotAccepted(halt) => {
                // The next attempt begins with a new one.
                self.stages.federated.reject(&federated);
                halt
            }
        });
        self.counted(Step::Iam, result)
    }

    /// Counts what came of a step, and words what is logged if it failed.
    fn counted(&self, step: Step, result: Result<Secret, Halt>) -> Result<Secret, Halt> {
        self.means.metrics.count(step, result.as_ref().err().map(|halt| halt.rest));
        let Workload { namespace, name, .. } = &*self.workload;
        result.map_err(|halt| halt.in_the_log(format_args!("{namespace}/{name}")))
    }
}

/// Tells a refusal, which stays until somebody changes something, from a failure.
fn not_issued(error: &RequestError) -> Halt {
    let failure = ExchangeFailure::Kubernetes(error.to_string());
    match error.failure() {
        Failure::Refused(StatusCode::TOO_MANY_REQUESTS) => Halt::failed(failure),
        Failure::Refused(status) if status.is_client_error() => Halt::stays(failure),
        _ => Halt::failed(failure),
    }
}
