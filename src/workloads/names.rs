//! [`Names`]: under which names pods know their accounts.

use std::borrow::Cow;
use std::sync::OnceLock;

use super::Workload;
use crate::metadata::ServiceAccount;

/// What a federated identity is called, in place of an e-mail, if its service account is not linked to a Google account.
#[derive(Debug)]
pub struct Names {
    /// The pool's name. Client libraries put it into paths, as they do an e-mail.
    pool: Box<str>,
    subjects: Subjects,
    /// The number of the pool's project, once it is known.
    project: OnceLock<Box<str>>,
}

/// How a pool names a Kubernetes service account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subjects {
    /// `ns/NAMESPACE/sa/NAME`, the pool of a GKE cluster's project.
    Gke,
    /// `system:serviceaccount:NAMESPACE:NAME`, the `sub` of its tokens, which providers map to the subject by default.
    Provider,
}

impl Names {
    /// The names in this pool.
    pub fn new(pool: &str, subjects: Subjects) -> Self {
        Self { pool: pool.into(), subjects, project: OnceLock::new() }
    }

    /// Sets the number of the pool's project. Later calls have no effect: a pool's project does not change.
    pub fn know_project(&self, number: &str) {
        self.project.get_or_init(|| number.into());
    }

    /// What is shown as the account's e-mail: that of its Google account, or its pool's name. If an annotation asks for it,
    /// and the project's number is known, its principal in place of the pool's name.
    pub fn email<'a>(&'a self, workload: &'a Workload) -> Cow<'a, str> {
        let Ok(link) = &workload.link else { return Cow::Borrowed(&self.pool) };
        match (&link.google_account, self.project.get()) {
            (Some(account), _) => Cow::Borrowed(account.as_str()),
            (None, Some(project)) if link.principal_as_email => Cow::Owned(self.principal(project, workload)),
            (None, _) => Cow::Borrowed(&self.pool),
        }
    }

    /// Whether an account in a path is the workload's own: `default`, its e-mail, or its pool's name.
    pub fn is_own(&self, account: &ServiceAccount, workload: &Workload) -> bool {
        match account {
            ServiceAccount::Default => true,
            ServiceAccount::Email(name) => **name == *self.pool || **name == *self.email(workload),
        }
    }

    fn principal(&self, project: &str, workload: &Workload) -> String {
        let Workload { namespace, name, .. } = workload;
        let subject = match self.subjects {
            Subjects::Gke => format!("ns/{namespace}/sa/{name}"),
            Subjects::Provider => format!("system:serviceaccount:{namespace}:{name}"),
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
    use crate::workloads::{Annotations, Link, Malformed};

    fn workload(link: Result<Link, Malformed>) -> Workload {
        Workload { namespace: "shop".into(), name: "checkout".into(), uid: "u".into(), link }
    }

    fn linked(account: Option<&str>, principal: Option<&str>) -> Workload {
        let annotations =
            Annotations { google_account: account, principal_as_email: principal, ..Annotations::default() };
        workload(Link::parse(&annotations))
    }

    const POOL: &str = "p.svc.id.goog";
    const GOOGLE: &str = "x@p.iam.gserviceaccount.com";

    #[test]
    fn a_google_account_is_shown_before_all_else() {
        let names = Names::new(POOL, Subjects::Gke);
        names.know_project("12");
        assert_eq!(names.email(&linked(Some(GOOGLE), Some("true"))), GOOGLE);
        assert_eq!(names.email(&linked(None, None)), POOL);
        assert_eq!(names.email(&workload(Err(Malformed::GoogleAccount))), POOL);
    }

    #[test]
    fn a_principal_is_shown_if_it_is_asked_for_and_known() {
        for (subjects, subject) in
            [(Subjects::Gke, "ns/shop/sa/checkout"), (Subjects::Provider, "system:serviceaccount:shop:checkout")]
        {
            let names = Names::new(POOL, subjects);
            let asks = linked(None, Some("true"));
            assert_eq!(names.email(&asks), POOL, "the project's number is not known");
            names.know_project("12");
            let pool = "projects/12/locations/global/workloadIdentityPools/p.svc.id.goog";
            assert_eq!(names.email(&asks), format!("principal://iam.googleapis.com/{pool}/subject/{subject}"));
            assert_eq!(names.email(&linked(None, Some("false"))), POOL);
        }
    }

    #[test]
    fn only_its_own_names_are_its_own() {
        let names = Names::new(POOL, Subjects::Gke);
        let own = |name: &str| names.is_own(&ServiceAccount::from_segment(name), &linked(Some(GOOGLE), None));
        assert!(own("default") && own(GOOGLE) && own(POOL));
        for other in
            ["y@p.iam.gserviceaccount.com", "q.svc.id.goog", "", "Default", "12-compute@developer.gserviceaccount.com"]
        {
            assert!(!own(other), "{other}");
        }
        let unlinked = linked(None, None);
        assert!(!names.is_own(&ServiceAccount::from_segment(GOOGLE), &unlinked));
    }
}
