//! [`Steps`]: each step from a pod's service account to a token of Google's.
//!
//! ```text
//!  service account ── API server ──> Kubernetes token, bound to a pod
//!                                      │ STS
//!                                      ├──> federated token for all of Google's APIs ── IAM ──> token of a Google account
//!                                      └──> federated token with other scopes
//! ```

mod subject;

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

use super::google::Google;
use super::halt::Halt;
use super::haste::Haste;
use super::iam::{Impersonation, NotIssued};
use super::kept::{Ask, Stages};
use super::metrics::{ExchangeMetrics, Step};
use super::pace::{BURST, INTERVAL, RenewalPace, RenewalTurn};
use super::quotas::Payer;
use super::rest::Rest;
use super::secret::{Secret, Want};
use super::server::{Fault, Server, Turn};
use super::stage::{MAX_FLIGHT, Stage};
use super::sts::{self, CLOUD_PLATFORM};
use crate::cluster::Cluster;
use crate::pods::Pods;
use crate::workloads::{Federation, GoogleAccount, Link, Workload, Workloads};
use base::clock::BootTime;
use protocol::metadata::{Fingerprint, WorkloadId};
use proxy::failure::{ExchangeFailure, TokenServer, Withheld};
use proxy::tokens::{NoToken, Urgency};
use telemetry::labels::Label as _;
use telemetry::sampled::{Brief, SampledBy};

/// Minimum age of a federated token that is replaced because IAM does not accept it.
const MIN_AGE_TO_REPLACE: Duration = Duration::from_secs(60);

/// Minimum age of a Kubernetes token that is renewed because the Security Token Service refuses it. If it refuses all, the API
/// server gets one request in this time for each workload.
const MIN_SUBJECT_AGE_TO_REPLACE: Duration = Duration::from_secs(300);

/// Minimum interval between log lines about one workload for one reason.
const LINE_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum sets of a workload, a reason and what it is for that have log lines of their own.
const MAX_LINES: usize = 512;

/// Reason why there is no token, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Reason {
    /// Its pods requested too many.
    Pace,
    /// A server failed, or refused with this status.
    Server(&'static str, Option<StatusCode>),
    /// A server gets no requests at present.
    HeldBack(&'static str),
    /// A step goes on for longer than pods wait.
    Slow,
}

/// The log lines about workloads without tokens.
pub(super) type Lines = SampledBy<(WorkloadId, Reason, &'static str)>;

/// Starts without any line.
pub(super) fn lines() -> Lines {
    SampledBy::new(LINE_INTERVAL, MAX_LINES)
}

/// The parts that all steps of all workloads need.
#[derive(Debug)]
pub(super) struct Means {
    pub(super) federation: Arc<Federation>,
    pub(super) workloads: Arc<Workloads>,
    pub(super) pods: Arc<Pods>,
    pub(super) cluster: Cluster,
    pub(super) google: Google,
    pub(super) servers: Servers,
    pub(super) metrics: ExchangeMetrics,
    pub(super) lines: Lines,
    /// How fast valid tokens are renewed.
    pub(super) renewals: RenewalPace,
}

/// The servers on the way to a token, each with places of its own.
#[derive(Debug)]
pub(super) struct Servers {
    pub(super) kubernetes: Server,
    pub(super) sts: Server,
    pub(super) iam: Server,
}

impl Servers {
    /// No request was sent yet.
    pub(super) fn new(metrics: &ExchangeMetrics) -> Self {
        let server = |failure, step| Server::new(failure, metrics.spent(step));
        Self {
            kubernetes: server(ExchangeFailure::Kubernetes, Step::Kubernetes),
            sts: server(ExchangeFailure::Sts, Step::Sts),
            iam: server(ExchangeFailure::Iam, Step::Iam),
        }
    }

    fn of(&self, step: Step) -> &Server {
        match step {
            Step::Kubernetes => &self.kubernetes,
            Step::Sts => &self.sts,
            Step::Iam => &self.iam,
        }
    }
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

/// Deadline of a step that waits for another one: not before its own flight gives up.
pub(super) fn patiently() -> Instant {
    Instant::now() + MAX_FLIGHT
}

impl Steps {
    pub(super) fn turn(&self, step: Step, haste: &Haste) -> Turn {
        let payer = match step {
            Step::Kubernetes => Payer::default(),
            Step::Sts => Payer::at_sts(&self.link),
            Step::Iam => Payer::at_iam(&self.link),
        };
        Turn { workload: self.number, haste: haste.clone(), payer }
    }

    /// The server that a missing token waits for.
    pub(super) fn awaited(&self) -> TokenServer {
        let now = BootTime::now();
        if self.link.google_account.is_some() && self.stages.federated.has_valid(now) {
            TokenServer::Iam
        } else if self.stages.subject.has_valid(now) {
            TokenServer::Sts
        } else {
            TokenServer::Kubernetes
        }
    }

    /// The workload's token for all of Google's APIs, until `deadline`. One that is due is renewed when the pace of renewals allows
    /// it, or when it ends soon.
    pub(super) async fn federated(&self, want: Want, deadline: Instant, haste: &Haste) -> Result<Arc<Secret>, NoToken> {
        let now = BootTime::now();
        let Some(kept) = self.stages.federated.aging(now) else {
            return self.federated_now(want, (deadline, haste), None).await;
        };
        let renewals = &self.means.renewals;
        let turn = match renewals.take(kept.expires, now) {
            Some(turn) => turn,
            None if kept.ends_soon(now) => renewals.take_next(kept.expires, now),
            None => return Ok(kept),
        };
        self.federated_now(want, (deadline, haste), Some(turn)).await
    }

    /// The same, regardless of the pace.
    pub(super) async fn federated_now(
        &self,
        want: Want,
        patience: (Instant, &Haste),
        turn: Option<RenewalTurn>,
    ) -> Result<Arc<Secret>, NoToken> {
        let steps = self.clone();
        let work = |haste: Haste| async move {
            let issued = steps.exchange(CLOUD_PLATFORM, None, &haste).await;
            if let Some(turn) = turn {
                let failure = issued.as_ref().err().map(|halt| &halt.why);
                steps.means.renewals.ended(turn, failure, 1, BootTime::now(), fastrand::f64());
            }
            issued
        };
        self.stages.federated.get(want, patience, work).await
    }

    /// Exchanges the Kubernetes token for one with these scopes, separated by spaces.
    async fn exchange(&self, scopes: &str, bound_to: Option<&Fingerprint>, haste: &Haste) -> Result<Secret, Halt> {
        // A young one, because the token issued for it ends with it.
        let subject = self.subject(haste).await?;
        // With a Google account, the request to IAM names the project.
        let quota_project = self.link.quota_project.as_ref().filter(|_| self.link.google_account.is_none());
        let exchange = sts::Exchange { subject: &subject, scopes, quota_project, bound_to };
        let Means { google, federation, .. } = &*self.means;
        let issued = self.ask(Step::Sts, haste, exchange.send(google, federation)).await?;
        if issued.as_ref().is_err_and(sts::refuses_subject) {
            self.stages.subject.is_due_at(&subject, subject.asked + MIN_SUBJECT_AGE_TO_REPLACE);
        }
        self.counted(Step::Sts, haste, issued.map_err(|error| sts::halt(error, quota_project.is_some())))
    }

    /// A Google token, which the token cache keeps from now on. Waits until `deadline`.
    pub(super) async fn google_token(
        &self,
        ask: &Ask,
        deadline: Instant,
        haste: &Haste,
    ) -> Result<Arc<Secret>, NoToken> {
        let stage = self.stages.google_token(ask, BootTime::now())?;
        let outcome = self.issue(ask, &stage, (deadline, haste)).await;
        if outcome.is_ok() {
            self.stages.collected(ask, &stage);
        }
        outcome
    }

    /// Fetches the token that pods request first, for their first request to collect.
    pub(super) async fn prepare(&self) -> Result<(), NoToken> {
        let haste = Urgency::Background.into();
        if self.link.google_account.is_none() {
            return self.federated(Want::Young, patiently(), &haste).await.map(drop);
        }
        let ask = Ask::default_token();
        let stage = self.stages.google_token(&ask, BootTime::now())?;
        self.issue(&ask, &stage, (patiently(), &haste)).await.map(drop)
    }

    async fn issue(&self, ask: &Ask, stage: &Stage, patience: (Instant, &Haste)) -> Result<Arc<Secret>, NoToken> {
        let (steps, asked) = (self.clone(), ask.clone());
        let work = |haste: Haste| async move {
            // There is only one token that pods request first, so it is not limited.
            let _permit = if asked.is_default_token() {
                None
            } else {
                let permit = Arc::clone(&steps.stages.permits).acquire_owned().await;
                steps.pace(&asked, &haste)?;
                Some(permit)
            };
            match steps.link.google_account.clone() {
                Some(account) => steps.impersonate(&account, &asked, &haste).await,
                None => steps.exchange(&asked.scopes(), asked.bound_to.as_deref(), &haste).await,
            }
        };
        stage.get(ask.want(), patience, work).await
    }

    /// Whether Google may get a request now.
    fn pace(&self, ask: &Ask, haste: &Haste) -> Result<(), Halt> {
        let is_bound = ask.bound_to.is_some();
        let pace = if is_bound { &self.stages.bound_pace } else { &self.stages.pace };
        pace.take(BootTime::now()).map_err(|wait| {
            let Workload { namespace, name, .. } = &*self.workload;
            let what = if is_bound { "scopes or certificates" } else { "scopes or audiences" };
            let text = format!(
                "Pods of {namespace}/{name} on this node have asked for more than {BURST} tokens with {what} of their \
                 own; until they ask for fewer, one more is issued every {} ms. Ask for the same scopes, or for none: known \
                 tokens and the default one are served at once.\n",
                INTERVAL.as_millis()
            );
            // Not longer each time: another pod of the account may have taken the turns of this one.
            let halt = Halt { rest: Rest::Held(wait), ..Halt::throttled(Withheld::Pace, text, wait) };
            self.log(Reason::Pace, haste.now(), &halt);
            halt
        })
    }

    /// A token of a Google account.
    async fn impersonate(&self, account: &GoogleAccount, ask: &Ask, haste: &Haste) -> Result<Secret, Halt> {
        let federated = self.federated(Want::Valid, patiently(), haste).await?;
        let impersonation = Impersonation { account, link: &self.link, federated: &federated, ask };
        let Means { google, federation, .. } = &*self.means;
        let issued = self.ask(Step::Iam, haste, impersonation.send(google, &federation.iam)).await?;
        let result = issued.map_err(|error| match impersonation.not_issued(error) {
            NotIssued::Halt(halt) => halt,
            // A new one would fare no better, and each attempt would cost an exchange.
            NotIssued::NotAccepted(halt) if BootTime::now().since(federated.asked) < MIN_AGE_TO_REPLACE => {
                Halt { rest: Rest::Doubling, ..halt }
            }
            NotIssued::NotAccepted(halt) => {
                // The next attempt begins with a new federated token.
                self.stages.federated.reject(&federated);
                halt
            }
        });
        self.counted(Step::Iam, haste, result)
    }

    /// Sends a request to a server, and logs that it is held back if a pod waits for it.
    async fn ask<T, E: Fault>(
        &self,
        step: Step,
        haste: &Haste,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<Result<T, E>, Halt> {
        self.means.servers.of(step).ask(self.turn(step, haste), request).await.inspect_err(|halt| {
            if haste.now() == Urgency::Demanded {
                self.log(Reason::HeldBack(step.label()), haste.now(), halt);
            }
        })
    }

    /// Counts the result of a request to a server, and logs a failure.
    fn counted(&self, step: Step, haste: &Haste, result: Result<Secret, Halt>) -> Result<Secret, Halt> {
        self.means.metrics.count(step, result.as_ref().err());
        result.map_err(|halt| {
            self.log(Reason::Server(step.label(), halt.status()), haste.now(), &halt);
            let rest = match halt.rest {
                // No quota of a minute as Google's are, so each workload waits for itself. And not longer each time: the API server
                // knows best when it can take the next request.
                Rest::Throttled(least) if step == Step::Kubernetes => Rest::Demanded(least),
                Rest::Throttled(_) => self.means.servers.of(step).rest_after_429(&self.turn(step, haste)),
                rest => rest,
            };
            Halt { rest, ..halt }
        })
    }

    /// Logs the reason why there is no token, or no next one while pods have one or ask for none, once a minute for each reason.
    pub(super) fn log(&self, reason: Reason, urgency: Urgency, halt: &Halt) {
        let Workload { namespace, name, .. } = &*self.workload;
        let what = match urgency {
            Urgency::Demanded => "no token",
            Urgency::Soon | Urgency::Background => "no token in advance",
        };
        if let Some(count) = self.means.lines.due((self.number, reason, what), Instant::now()) {
            tracing::warn!(count, "{what} for pods of {namespace}/{name}: {}", Brief(halt.line()));
        } else {
            tracing::debug!("{what} for pods of {namespace}/{name}: {}", halt.line());
        }
    }
}
