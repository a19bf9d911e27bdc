//! [`Settings`]: how pods are identified.

use std::fmt;
use std::path::PathBuf;

use crate::pods::PodUid;
use crate::pods::owners::Attest;
use crate::workloads::Federation;

/// How pods are identified.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The node's own `/proc`.
    pub host_proc: PathBuf,
    /// Where the pods that are known are kept for the next process. `None` if they are not.
    pub state_dir: Option<PathBuf>,
    /// Whether the API server alone may say which pod has an address.
    pub attest: Attest,
    /// Accounts whose pods act as the node.
    pub passthrough: Vec<AccountName>,
    /// Where the tokens of pods' accounts come from. `None` if they have none.
    pub federation: Option<Federation>,
    /// This pod, if it takes over from another pod of its `DaemonSet`, and hands over to the next.
    pub own_pod: Option<PodUid>,
    /// How to reach the API server.
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
        let is_name = |name: &str| {
            let is_allowed =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
            !name.is_empty() && name.len() <= 253 && name.bytes().all(is_allowed)
        };
        let (namespace, name) = text.split_once('/')?;
        (is_name(namespace) && is_name(name)).then(|| Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

impl AccountName {
    /// Its namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for AccountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
