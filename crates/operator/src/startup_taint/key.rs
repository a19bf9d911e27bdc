//! [`TaintKey`]: the key of a taint.

use std::fmt;

use identity::cluster::is_dns_subdomain;

/// Prefixes of Kubernetes' own taints, which it sets and removes itself.
const KUBERNETES: [&str; 2] = ["node.kubernetes.io", "node.cloudprovider.kubernetes.io"];

/// Maximum length of a name in Kubernetes.
const MAX_NAME: usize = 63;

/// The key of a taint: a name, or a DNS subdomain, a slash and a name. Not one of Kubernetes' own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaintKey(String);

impl TaintKey {
    /// `None` for a key that no taint can have, or that is Kubernetes' own.
    pub fn parse(key: &str) -> Option<Self> {
        let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
        let is_prefix = |prefix: &str| is_dns_subdomain(prefix) && !KUBERNETES.contains(&prefix);
        (prefix.is_none_or(is_prefix) && is_name(name)).then(|| Self(key.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaintKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_name(name: &str) -> bool {
    let is_outer = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let bytes = name.as_bytes();
    bytes.len() <= MAX_NAME && is_outer(bytes.first()) && is_outer(bytes.last()) && bytes.iter().copied().all(is_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_name_with_or_without_a_subdomain() {
        for key in ["not-ready", "example.com/not-ready", "startup-taint.cluster-autoscaler.kubernetes.io/a_b.C", "a/b"]
        {
            assert_eq!(TaintKey::parse(key).map(|key| key.to_string()).as_deref(), Some(key));
        }
        for key in
            ["", "/a", "a/", "a/b/c", "-a", "a-", "A/b", "a b", "a=b:NoSchedule", "a:NoSchedule", &"a".repeat(64)]
        {
            assert_eq!(TaintKey::parse(key), None, "{key:?}");
        }
    }

    #[test]
    fn kubernetes_own_taints_stay() {
        for key in ["node.kubernetes.io/not-ready", "node.cloudprovider.kubernetes.io/uninitialized"] {
            assert_eq!(TaintKey::parse(key), None, "{key:?}");
        }
    }
}
