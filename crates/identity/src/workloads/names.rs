//! [`Names`]: the names by which pods know their accounts.

use std::borrow::Cow;
use std::sync::OnceLock;

use super::federation::POOL_SUFFIX;
use super::{Federation, Trust, Workload};
use crate::cluster::ACCOUNT_PREFIX;
use protocol::metadata::ServiceAccount;

/// The names of federated identities, in place of e-mails, if their service accounts are not linked to a Google account.
#[derive(Debug)]
pub struct Names {
    /// The pool's name. Client libraries put it into paths, as they do an e-mail.
    pool: Box<str>,
    subjects: Subjects,
    /// The number of the pool's project, once it is known.
    project: OnceLock<Box<str>>,
}

/// The form of a Kubernetes service account's name in a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subjects {
    /// `ns/NAMESPACE/sa/NAME`, the pool of a GKE cluster's project.
    Gke,
    /// `system:serviceaccount:NAMESPACE:NAME`, the `sub` of its tokens, which providers map to the subject by default.
    Provider,
}

impl Names {
    /// The names in the pool that Google trusts.
    pub fn of(federation: &Federation) -> Self {
        let (subjects, project) = match &federation.trust {
            Trust::Pool(..) => (Subjects::Gke, OnceLock::new()),
            Trust::Provider(provider) => (Subjects::Provider, OnceLock::from(Box::from(provider.project()))),
        };
        Self { pool: federation.pool().into(), subjects, project }
    }

    /// Sets the number of the project with this ID, if it is the pool's. Later calls have no effect: numbers do not change.
    pub fn know_project(&self, id: &str, number: &str) {
        if self.pool.strip_suffix(POOL_SUFFIX) == Some(id) {
            self.project.get_or_init(|| number.into());
        }
    }

    /// The value shown as the account's e-mail: that of its Google account, or its pool's name. If an annotation
    /// requests it, and the project's number is known, its principal in place of the pool's name.
    pub fn email<'a>(&'a self, workload: &'a Workload) -> Cow<'a, str> {
        let Ok(link) = &workload.link else { return Cow::Borrowed(&self.pool) };
        match (&link.google_account, self.project.get()) {
            (Some(account), _) => Cow::Borrowed(account.as_str()),
            (None, Some(project)) if link.principal_as_email => Cow::Owned(self.principal(project, workload)),
            (None, _) => Cow::Borrowed(&self.pool),
        }
    }

    /// Whether an account in a path is the workload's own: `default`, its e-mail, or its pool's name. The latter also
    /// if it is linked: a client may have learned the name before, and keeps it in its paths.
    pub fn is_own(&self, account: &ServiceAccount, workload: &Workload) -> bool {
        self.is_everybodys(account) || matches!(account, ServiceAccount::Email(name) if **name == *self.email(workload))
    }

    /// Whether an account in a path is every workload's own: `default`, or the pool's name.
    pub fn is_everybodys(&self, account: &ServiceAccount) -> bool {
        match account {
            ServiceAccount::Default => true,
            ServiceAccount::Email(name) => **name == *self.pool,
        }
    }

    /// The name of a workload as a member of an IAM policy. `None` if the project of its pool is not known.
    pub fn member(&self, workload: &Workload) -> Option<String> {
        let (pool, Workload { namespace, name, .. }) = (&self.pool, workload);
        match self.subjects {
            Subjects::Gke => Some(format!("serviceAccount:{pool}[{namespace}/{name}]")),
            Subjects::Provider => Some(self.principal(self.project.get()?, workload)),
        }
    }

    fn principal(&self, project: &str, workload: &Workload) -> String {
        let Workload { namespace, name, .. } = workload;
        let subject = match self.subjects {
            Subjects::Gke => format!("ns/{namespace}/sa/{name}"),
            Subjects::Provider => format!("{ACCOUNT_PREFIX}{namespace}:{name}"),
        };
        let pool = &self.pool;
        format!(
            "principal://iam.googleapis.com/projects/{project}/locations/global/workloadIdentityPools/{pool}/subject/{subject}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Annotations;
    use crate::workloads::federation::tests::{CLUSTER, elsewhere, federation};
    use crate::workloads::{ClusterUri, Link, Malformed, WorkloadPool};

    fn workload(link: Result<Link, Malformed>) -> Workload {
        Workload { namespace: "shop".into(), name: "checkout".into(), uid: "u".into(), link }
    }

    fn linked(account: Option<&str>, principal: Option<&str>) -> Workload {
        let [google_account, principal_as_email] = [account, principal].map(|it| it.map(str::to_owned));
        let annotations = Annotations { google_account, principal_as_email, ..Annotations::default() };
        workload(Link::parse(&annotations))
    }

    fn gke() -> Names {
        let pool = WorkloadPool::parse(POOL).expect("a pool");
        Names::of(&federation(Trust::Pool(pool, ClusterUri::parse(CLUSTER).expect("a URI"))))
    }

    const POOL: &str = "p.svc.id.goog";
    const GOOGLE: &str = "x@p.iam.gserviceaccount.com";

    #[test]
    fn a_google_account_is_shown_before_all_else() {
        let names = gke();
        names.know_project("p", "12");
        assert_eq!(names.email(&linked(Some(GOOGLE), Some("true"))), GOOGLE);
        assert_eq!(names.email(&linked(None, None)), POOL);
        assert_eq!(names.email(&workload(Err(Malformed::GoogleAccount))), POOL);
    }

    #[test]
    fn a_principal_is_shown_if_it_is_asked_for_and_known() {
        let asks = linked(None, Some("true"));
        let names = gke();
        assert_eq!(names.email(&asks), POOL, "the project's number is not known");
        names.know_project("another", "13");
        assert_eq!(names.email(&asks), POOL, "that is not the pool's project");
        names.know_project("p", "12");
        let principal = "principal://iam.googleapis.com/projects";
        let pool = "12/locations/global/workloadIdentityPools/p.svc.id.goog";
        assert_eq!(names.email(&asks), format!("{principal}/{pool}/subject/ns/shop/sa/checkout"));
        assert_eq!(names.email(&linked(None, Some("false"))), POOL);
        let names = Names::of(&elsewhere());
        let pool = "123/locations/global/workloadIdentityPools/my-pool";
        assert_eq!(names.email(&asks), format!("{principal}/{pool}/subject/system:serviceaccount:shop:checkout"));
        assert_eq!(names.email(&linked(None, None)), "my-pool");
    }

    #[test]
    fn a_member_of_a_policy_is_named_as_its_pool_names_it() {
        let workload = linked(None, None);
        assert_eq!(gke().member(&workload).as_deref(), Some("serviceAccount:p.svc.id.goog[shop/checkout]"));
        let names = Names::of(&elsewhere());
        let principal = "principal://iam.googleapis.com/projects/123/locations/global/workloadIdentityPools/my-pool/subject/\
                         system:serviceaccount:shop:checkout";
        assert_eq!(names.member(&workload).as_deref(), Some(principal));
    }

    #[test]
    fn only_its_own_names_are_its_own() {
        let names = gke();
        let own = |name: &str| names.is_own(&ServiceAccount::from_name(name), &linked(Some(GOOGLE), None));
        assert!(own("default") && own(GOOGLE) && own(POOL));
        for other in
            ["y@p.iam.gserviceaccount.com", "q.svc.id.goog", "", "Default", "12-compute@developer.gserviceaccount.com"]
        {
            assert!(!own(other), "{other}");
        }
        let unlinked = linked(None, None);
        assert!(!names.is_own(&ServiceAccount::from_name(GOOGLE), &unlinked));
    }
}
