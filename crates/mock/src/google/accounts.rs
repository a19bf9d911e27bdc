//! [`Accounts`]: Google service accounts, and the principals that may act as them.

use std::collections::{BTreeMap, BTreeSet};

use super::Workload;

/// An identity that may act as a Google service account.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Principal {
    /// A Kubernetes service account, by its federated token.
    Workload(Workload),
    /// A Google service account, as a delegate or by its own token.
    Account(String),
}

impl From<Workload> for Principal {
    fn from(workload: Workload) -> Self {
        Self::Workload(workload)
    }
}

impl From<&str> for Principal {
    fn from(email: &str) -> Self {
        Self::Account(email.to_owned())
    }
}

/// The existing accounts, each with the principals that may act as it.
#[derive(Debug, Default)]
pub(super) struct Accounts(BTreeMap<String, BTreeSet<Principal>>);

/// Why a principal may not act as an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Denied {
    /// An account in the chain does not exist.
    Missing,
    /// A delegate in the chain may not be used.
    Delegate,
    /// The account itself may not be used.
    Account,
}

impl Accounts {
    pub(super) fn add(&mut self, email: &str) {
        self.0.entry(email.to_owned()).or_default();
    }

    pub(super) fn remove(&mut self, email: &str) {
        self.0.remove(email);
    }

    /// Lets a principal act as an account, and adds the account if it does not exist.
    pub(super) fn bind(&mut self, who: Principal, email: &str) {
        self.0.entry(email.to_owned()).or_default().insert(who);
    }

    pub(super) fn unbind(&mut self, who: &Principal, email: &str) {
        if let Some(bound) = self.0.get_mut(email) {
            bound.remove(who);
        }
    }

    /// Whether `who` may act as the account through the delegates. Each of the chain must be allowed to act as the next.
    pub(super) fn check(&self, mut who: Principal, delegates: &[String], email: &str) -> Result<(), Denied> {
        for (step, account) in delegates.iter().map(String::as_str).chain([email]).enumerate() {
            let bound = self.0.get(account).ok_or(Denied::Missing)?;
            if !bound.contains(&who) {
                return Err(if step < delegates.len() { Denied::Delegate } else { Denied::Account });
            }
            who = Principal::from(account);
        }
        Ok(())
    }
}
