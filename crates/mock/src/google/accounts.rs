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
    pub(super) fn check(&self, who: Principal, delegates: &[String], email: &str) -> Result<(), Denied> {
        let mut who = who;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_a_chain_must_be_allowed_to_act_as_the_next() {
        let mut accounts = Accounts::default();
        let app = || Principal::from(Workload::new("a", "app"));
        accounts.bind(app(), "first@p");
        accounts.bind("first@p".into(), "second@p");
        accounts.bind("second@p".into(), "last@p");
        let chain = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let both = chain(&["first@p", "second@p"]);
        assert_eq!(accounts.check(app(), &both, "last@p"), Ok(()));
        assert_eq!(accounts.check(app(), &[], "first@p"), Ok(()));
        assert_eq!(accounts.check(app(), &[], "last@p"), Err(Denied::Account));
        assert_eq!(accounts.check(app(), &both[..1], "last@p"), Err(Denied::Account));
        assert_eq!(accounts.check(app(), &both[1..], "last@p"), Err(Denied::Delegate));
        assert_eq!(accounts.check(app(), &chain(&["nobody@p"]), "last@p"), Err(Denied::Missing));
        assert_eq!(accounts.check(Workload::new("b", "app").into(), &[], "first@p"), Err(Denied::Account));
        accounts.unbind(&app(), "first@p");
        assert_eq!(accounts.check(app(), &[], "first@p"), Err(Denied::Account));
        accounts.remove("first@p");
        assert_eq!(accounts.check(app(), &[], "first@p"), Err(Denied::Missing));
    }
}
