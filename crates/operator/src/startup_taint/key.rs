//! [`TaintKey`]: the key of a taint.

use std::fmt;
use std::str::FromStr;

/// Prefixes of Kubernetes' own taints, which it sets and removes itself.
const KUBERNETES: [&str; 2] = ["node.kubernetes.io", "node.cloudprovider.kubernetes.io"];

/// Maximum lengths of a prefix and a name in Kubernetes.
const MAX_PREFIX: usize = 253;
const MAX_NAME: usize = 63;

/// The key of a taint: a name, or a DNS subdomain, a slash and a name. Not one of Kubernetes' own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaintKey(String);

/// A key that no taint can have, or that is Kubernetes' own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected the key of a taint, such as example.com/not-ready, that is not one of Kubernetes' own")]
pub struct TaintKeyError;

impl TaintKey {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TaintKey {
    type Err = TaintKeyError;

    fn from_str(key: &str) -> Result<Self, TaintKeyError> {
        let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
        let is_valid = prefix.is_none_or(is_prefix) && is_name(name);
        is_valid.then(|| Self(key.to_owned())).ok_or(TaintKeyError)
    }
}

impl fmt::Display for TaintKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_prefix(prefix: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(is_inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    prefix.len() <= MAX_PREFIX && prefix.split('.').all(is_label) && !KUBERNETES.contains(&prefix)
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
            assert_eq!(key.parse::<TaintKey>().map(|key| key.to_string()), Ok(key.to_owned()));
        }
        for key in
            ["", "/a", "a/", "a/b/c", "-a", "a-", "A/b", "a b", "a=b:NoSchedule", "a:NoSchedule", &"a".repeat(64)]
        {
            assert_eq!(key.parse::<TaintKey>(), Err(TaintKeyError), "{key:?}");
        }
    }

    #[test]
    fn kubernetes_own_taints_stay() {
        for key in ["node.kubernetes.io/not-ready", "node.cloudprovider.kubernetes.io/uninitialized"] {
            assert_eq!(key.parse::<TaintKey>(), Err(TaintKeyError), "{key:?}");
        }
    }
}
