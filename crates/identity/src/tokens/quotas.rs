//! [`Quotas`]: what is known of a server's quotas, one for each project that it charges.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::quota::Quota;
use crate::workloads::{Link, QuotaProject};
use proxy::failure::Withheld;
use proxy::tokens::Urgency;

/// Maximum number of quotas that are remembered. Beyond it, those that hold nothing back are forgotten. Only hostile pods name so
/// many projects on a node.
const MAX_QUOTAS: usize = 256;

/// The project whose quota a request counts against. By default that of the workload pool, or of the cluster, which is the same for
/// all workloads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Payer(Option<Arc<str>>);

impl Payer {
    /// The payer of exchanges: the workload pool's project. An exchange that names another project may get 429 because of that one.
    pub(super) fn at_sts(link: &Link) -> Self {
        let named = link.quota_project.as_ref().filter(|_| link.google_account.is_none());
        Self(named.map(|project| project.as_str().into()))
    }

    /// The payer of requests to IAM: the project that the annotation names, else that of the Google account.
    pub(super) fn at_iam(link: &Link) -> Self {
        let annotated = link.quota_project.as_ref().map(QuotaProject::as_str);
        Self(annotated.or_else(|| Some(link.google_account.as_ref()?.project())).map(Arc::from))
    }

    /// Whether all workloads share it.
    pub(super) fn is_common(&self) -> bool {
        self.0.is_none()
    }

    /// The reason for a refusal while the quota is used up.
    pub(super) fn withheld(&self) -> Withheld {
        if self.is_common() { Withheld::Quota } else { Withheld::Project }
    }
}

/// The quotas of a server.
#[derive(Debug, Default)]
pub(super) struct Quotas(Mutex<HashMap<Payer, Arc<Quota>>>);

impl Quotas {
    /// The quota of a project.
    pub(super) fn of(&self, payer: &Payer, now: Instant) -> Arc<Quota> {
        let mut quotas = self.0.lock();
        if let Some(quota) = quotas.get(payer) {
            return Arc::clone(quota);
        }
        if quotas.len() >= MAX_QUOTAS {
            quotas.retain(|_, quota| !quota.left(Urgency::Background, now).is_zero());
        }
        if quotas.len() >= MAX_QUOTAS {
            quotas.clear();
        }
        Arc::clone(quotas.entry(payer.clone()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cluster::Annotations;

    fn payer(google_account: &str, quota_project: Option<&str>) -> Payer {
        let (google_account, quota_project) = (Some(google_account.to_owned()), quota_project.map(str::to_owned));
        let annotations = Annotations { google_account, quota_project, ..Annotations::default() };
        Payer::at_iam(&Link::parse(&annotations).expect("a link"))
    }

    #[test]
    fn accounts_of_a_project_share_its_quota() {
        let shop = payer("app@shop.iam.gserviceaccount.com", None);
        assert_eq!(payer("other@shop.iam.gserviceaccount.com", None), shop);
        assert_eq!(payer("app@bank.iam.gserviceaccount.com", Some("shop")), shop);
        assert_ne!(payer("app@bank.iam.gserviceaccount.com", None), shop);
        assert_ne!(payer("app@shop.iam.gserviceaccount.com", Some("bank")), shop);
        let [one, other] =
            ["shop@appspot.gserviceaccount.com", "bank@appspot.gserviceaccount.com"].map(|it| payer(it, None));
        assert_ne!(one, other);
    }

    #[test]
    fn quotas_take_bounded_memory_and_what_is_held_back_stays() {
        let (quotas, now) = (Quotas::default(), Instant::now());
        let shop = payer("app@shop.iam.gserviceaccount.com", None);
        quotas.of(&shop, now).used_up(Urgency::Demanded, now, Duration::ZERO, now, 0.0);
        for number in 0..1000 {
            quotas.of(&payer(&format!("app@shop-{number}.iam.gserviceaccount.com"), None), now);
        }
        assert!(quotas.0.lock().len() <= MAX_QUOTAS);
        assert!(!quotas.of(&shop, now).left(Urgency::Demanded, now).is_zero());
    }
}
