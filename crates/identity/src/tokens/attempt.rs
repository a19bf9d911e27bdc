//! Tries each step to a Google token once, for `identity doctor`, which reports the step that fails. Nothing is kept, and
//! no token is given out.

use std::fmt;
use std::time::Duration;

use super::google::Google;
use super::iam::Impersonation;
use super::kept::Ask;
use super::not_given::NotGiven;
use super::secret::Secret;
use super::sts::{CLOUD_PLATFORM, Exchange};
use crate::cluster::PodToken;
use crate::workloads::{Federation, GoogleAccount, Link};
use base::clock::BootTime;

/// A federated token. Never shown.
pub struct Federated(Secret);

impl fmt::Debug for Federated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Federated")
    }
}

impl Federated {
    pub fn life(&self) -> Duration {
        self.0.expires.since(self.0.asked)
    }
}

/// Exchanges a Kubernetes token at the Security Token Service, in the same way as for pods of an account with this link.
pub async fn exchange(
    google: &Google,
    federation: &Federation,
    token: PodToken,
    link: &Link,
) -> Result<Federated, NotGiven> {
    let PodToken { secret, life } = token;
    let subject = Secret::new(secret, BootTime::now(), life);
    let quota_project = link.quota_project.as_ref().filter(|_| link.google_account.is_none());
    let exchange = Exchange { subject: &subject, scopes: CLOUD_PLATFORM, quota_project, bound_to: None };
    exchange.send(google, federation).await.map(Federated)
}

/// Requests an access token of a Google account from IAM. Returns its lifetime.
pub async fn impersonate(
    google: &Google,
    federation: &Federation,
    federated: &Federated,
    account: &GoogleAccount,
    link: &Link,
) -> Result<Duration, NotGiven> {
    let ask = Ask::default_token();
    let impersonation = Impersonation { account, link, federated: &federated.0, ask: &ask };
    let issued = impersonation.send(google, &federation.iam).await?;
    Ok(issued.expires.since(issued.asked))
}
