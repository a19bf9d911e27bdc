//! The first step: a Kubernetes token for a workload, from the API server.

use std::sync::Arc;

use http::StatusCode;

use super::{Halt, Haste, Means, NoToken, Rest, Secret, Step, Steps, Want, patiently};
use crate::cluster::{Failure, RequestError, TokenRequest, TokenRequestError};
use crate::pods::Pod;
use crate::tokens::server::Fault;
use crate::workloads::Workload;
use base::clock::BootTime;
use proxy::failure::ExchangeFailure;

/// Maximum number of pods for which a token is requested, one after the other.
const MAX_SPONSORS: usize = 3;

impl Steps {
    /// The workload's Kubernetes token.
    pub(in crate::tokens) async fn subject(&self, haste: &Haste) -> Result<Arc<Secret>, NoToken> {
        let steps = self.clone();
        let work = |haste: Haste| async move {
            // Annotations are read again with each renewal. If they have changed, this workload gets another number.
            steps.means.workloads.recheck(steps.number);
            let sponsors = steps.sponsors();
            let issued = if sponsors.is_empty() {
                // Without a request, nothing is known of the API server.
                Err(NotIssuedHere::NoPod(steps.no_sponsor()))
            } else {
                steps.ask(Step::Kubernetes, &haste, steps.ask_for_subject(sponsors)).await?
            };
            steps.counted(Step::Kubernetes, &haste, issued.map_err(|error| error.halt()))
        };
        self.stages.subject.get(Want::Young, (patiently(), haste), work).await
    }

    /// The pods to which the token can be bound.
    fn sponsors(&self) -> Vec<Arc<Pod>> {
        let Workload { namespace, name, .. } = &*self.workload;
        self.means.pods.sponsors(namespace, name)
    }

    fn no_sponsor(&self) -> String {
        format!("no running pod of {}/{} is known any more", self.workload.namespace, self.workload.name)
    }

    async fn ask_for_subject(&self, sponsors: Vec<Arc<Pod>>) -> Result<Secret, NotIssuedHere> {
        let Means { cluster, federation, .. } = &*self.means;
        let Workload { namespace, name, .. } = &*self.workload;
        let mut why = self.no_sponsor();
        for pod in sponsors.iter().take(MAX_SPONSORS) {
            let uid = pod.uid.to_string();
            let audience = federation.token_audience();
            let request = TokenRequest { namespace, account: name, audience, pod: &pod.name, pod_uid: &uid };
            let asked = BootTime::now();
            match cluster.token(&request).await {
                Ok(token) => return Ok(Secret::new(token.secret, asked, token.life)),
                Err(error @ TokenRequestError::SponsorGone { .. }) => why = error.to_string(),
                Err(TokenRequestError::Audience(error) | TokenRequestError::Request(error)) => {
                    return Err(NotIssuedHere::Request(error));
                }
            }
        }
        Err(NotIssuedHere::NoPod(why))
    }
}

/// Reason why there is no Kubernetes token.
enum NotIssuedHere {
    /// No pod to which it could be bound.
    NoPod(String),
    Request(RequestError),
}

impl NotIssuedHere {
    /// Distinguishes a refusal, which stays until somebody changes something, from a failure.
    fn halt(&self) -> Halt {
        // What the API server refuses one account says nothing about the others'.
        let kind = if self.is_failure() { ExchangeFailure::Kubernetes } else { ExchangeFailure::KubernetesRefused };
        let error = match self {
            Self::NoPod(why) => return Halt::failed(kind(why.clone())),
            Self::Request(error) => error,
        };
        let failure = kind(error.to_string());
        let demanded = error.demanded(0.0);
        let rest = match error.failure() {
            Failure::Refused(StatusCode::TOO_MANY_REQUESTS) => Rest::Throttled(demanded),
            // The proxy's credential, which 401 is about, is read again within a second.
            Failure::Refused(status) if status.is_client_error() && status != StatusCode::UNAUTHORIZED => {
                return Halt::stays(failure);
            }
            _ if demanded.is_zero() => Rest::Brief,
            _ => Rest::Demanded(demanded),
        };
        Halt { rest, ..Halt::failed(failure) }
    }
}

impl Fault for NotIssuedHere {
    fn is_failure(&self) -> bool {
        match self {
            Self::NoPod(_) => false,
            Self::Request(error) => match error.failure() {
                // Without a valid credential of the proxy, no account gets a token.
                Failure::Refused(status) => status.is_server_error() || status == StatusCode::UNAUTHORIZED,
                Failure::Cluster
                | Failure::Connection
                | Failure::Tls(_)
                | Failure::Silent
                | Failure::Expired
                | Failure::Invalid => true,
            },
        }
    }
}
