//! [`Principal`]: on whose behalf a request is answered.

/// The caller as the proxy knows it.
///
/// There is one value today: every pod acts as the node. Workload Identity will add pods; whatever is kept for a caller
/// (a cached token, say) is keyed by this type from the first day, so that no pod is ever handed another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Principal {
    /// The node, whose metadata server is behind the proxy.
    Node,
}
