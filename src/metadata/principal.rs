//! [`Principal`]: the identity on whose behalf a request is answered.

/// The caller as the proxy knows it.
///
/// There is one value today: every pod acts as the node. Workload Identity will add pods. Everything kept for
/// a caller, such as a cached token, is keyed by this type, so that no pod ever receives another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Principal {
    /// The node, whose metadata server is behind the proxy.
    Node,
}
