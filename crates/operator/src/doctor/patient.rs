//! [`Patient`]: the account and the pod whose token is tried.

use identity::AccountName;
use identity::cluster::{NodeName, PodObject};
use identity::pods::{self, Pod};

/// The account to choose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whose {
    /// Any account of a pod of this node.
    Any,
    /// This account, which needs a pod on this node.
    Account(AccountName),
    /// The account of this pod. A pod's name has the same format.
    Pod(AccountName),
}

/// The account and the pod whose token is tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Patient {
    pub(super) namespace: String,
    pub(super) account: String,
    pub(super) pod: String,
    pub(super) pod_uid: String,
}

/// Why no token can be tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unfit {
    /// No pod of this node has tokens of its own.
    Nobody,
    /// No pod of this account runs on this node.
    NoPodOf(AccountName),
    /// The pod is not on this node.
    NoPod(AccountName),
    /// The pod uses the node's network, or has ended.
    NoNetwork(AccountName),
    /// The pod has no account.
    NoAccount(AccountName),
    /// The account acts as the node.
    PassedThrough(AccountName),
}

impl Patient {
    /// Chooses among the pods of this node. Terminating pods come last. Before them come pods without an address, and before
    /// those pods of `kube-system` and of default accounts.
    pub(super) fn choose(
        objects: &[PodObject],
        node: &NodeName,
        whose: &Whose,
        passthrough: &[AccountName],
    ) -> Result<Self, Unfit> {
        let mut pods: Vec<Pod> = objects.iter().filter_map(|object| pods::read(object, node)).collect();
        let is_node = |pod: &Pod| passthrough.iter().any(|account| is(account, &pod.namespace, &pod.account));
        let found = match whose {
            Whose::Any => {
                let order = |pod: &Pod| (stage(pod), &*pod.namespace == "kube-system", &*pod.account == "default");
                pods.retain(|pod| pod.has_identity() && !is_node(pod));
                pods.sort_by(|one, other| order(one).cmp(&order(other)).then_with(|| name(one).cmp(&name(other))));
                pods.into_iter().next().ok_or(Unfit::Nobody)
            }
            Whose::Account(account) => {
                pods.retain(|pod| pod.has_identity() && is(account, &pod.namespace, &pod.account));
                pods.sort_by_key(stage);
                pods.into_iter().next().ok_or_else(|| Unfit::NoPodOf(account.clone()))
            }
            Whose::Pod(wanted) => match pods.into_iter().find(|pod| is(wanted, &pod.namespace, &pod.name)) {
                None => Err(Unfit::NoPod(wanted.clone())),
                Some(pod) if !pod.has_network() => Err(Unfit::NoNetwork(wanted.clone())),
                Some(pod) if !pod.has_identity() => Err(Unfit::NoAccount(wanted.clone())),
                Some(pod) => Ok(pod),
            },
        }?;
        if is_node(&found) {
            let account = AccountName::parse(&format!("{}/{}", found.namespace, found.account));
            return Err(account.map_or(Unfit::Nobody, Unfit::PassedThrough));
        }
        Ok(Self {
            namespace: found.namespace.to_string(),
            account: found.account.to_string(),
            pod: found.name.to_string(),
            pod_uid: found.uid.to_string(),
        })
    }

    /// `NAMESPACE/ACCOUNT`
    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.account)
    }

    /// `NAMESPACE/POD`
    pub(super) fn pod_name(&self) -> String {
        format!("{}/{}", self.namespace, self.pod)
    }
}

impl Whose {
    /// Describes the pods in question before one is chosen.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Any => "this node".to_owned(),
            Self::Account(account) => account.to_string(),
            Self::Pod(pod) => format!("the account of {pod}"),
        }
    }
}

/// Sort key: pods that can get tokens now come first.
fn stage(pod: &Pod) -> (bool, bool) {
    (pod.terminating, pod.addresses.is_empty())
}

fn is(wanted: &AccountName, namespace: &str, name: &str) -> bool {
    wanted.namespace() == namespace && wanted.name() == name
}

fn name(pod: &Pod) -> (&str, &str) {
    (&pod.namespace, &pod.name)
}
