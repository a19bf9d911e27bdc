//! [`Settings`]: settings for the identification of pods.

use std::fmt;
use std::path::PathBuf;

use crate::pods::PodUid;
use crate::pods::owners::Attest;
use crate::text::is_made_of;
use crate::workloads::Federation;

/// Settings for the identification of pods.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The node's own `/proc`.
    pub host_proc: PathBuf,
    /// Directory that keeps the known pods for the next process. `None` if they are not kept.
    pub state_dir: Option<PathBuf>,
    /// Whether the API server alone may say which pod has an address.
    pub attest: Attest,
    /// Accounts whose pods act as the node.
    pub passthrough: Vec<AccountName>,
    /// The source of tokens for pods' accounts. `None` if they have none.
    pub federation: Option<Federation>,
    /// This pod, if it takes over from another pod of its `DaemonSet`, and hands over to the next.
    pub own_pod: Option<PodUid>,
    /// The node, and the credential for the API server.
    pub cluster: crate::cluster::Settings,
}

/// A Kubernetes service account, as `NAMESPACE/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AccountName {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl AccountName {
    /// Parses `NAMESPACE/NAME`. Both are names that Kubernetes allows.
    pub fn parse(text: &str) -> Option<Self> {
        let is_name = |name: &str| name.len() <= 253 && is_made_of(name, b"-.");
        let (namespace, name) = text.split_once('/')?;
        (is_name(namespace) && is_name(name)).then(|| Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for AccountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
