//! THE ORDER: the request path, from the outside in.

use std::sync::Arc;

use tower::ServiceBuilder;

use crate::layers::classify::ClassifyLayer;
use crate::layers::conceal::ConcealLayer;
use crate::layers::discovery::DiscoveryLayer;
use crate::layers::leaves::{KnownLeavesLayer, Leaves};
use crate::layers::rescue::RescueLayer;
use crate::layers::token_cache::{TokenCacheLayer, Tokens};
use crate::metadata::host::AllowedHosts;
use crate::reply::Body;
use crate::server::Stack;
use crate::telemetry::Metrics;
use crate::tokens::MetadataServer;
use crate::upstream::Forward;

/// What the layers are made from.
#[derive(Debug)]
pub struct Parts {
    /// Names under which requests are let in.
    pub hosts: AllowedHosts,
    /// Counts answers and refusals.
    pub metrics: Arc<Metrics>,
    /// Values that do not change.
    pub leaves: Arc<Leaves>,
    /// Tokens.
    pub tokens: Tokens<MetadataServer>,
    /// Everything else.
    pub forward: Forward,
}

/// Assembles the stack that answers pods.
pub fn assemble(parts: Parts) -> impl Stack<Body = Body, Future: Send> + Send + 'static {
    ServiceBuilder::new()
        // Outermost, so that every refusal and failure below is given its form once.
        .layer(RescueLayer::new(parts.metrics))
        // Before everything that decides, so that all of it works on one reading of the request.
        .layer(ClassifyLayer::new(parts.hosts))
        // Before anything that can refuse for want of room, so that "is this a metadata server?" is always answered.
        .layer(DiscoveryLayer)
        // Before anything that keeps answers, so that nothing kept can outrun the policy.
        .layer(ConcealLayer)
        // Before the token cache only because its lookup is the cheaper one; they share no path.
        .layer(KnownLeavesLayer::new(parts.leaves))
        // Innermost of what answers here: everything above has had its say, and what it lets through is cached.
        .layer(TokenCacheLayer::new(parts.tokens))
        .service(parts.forward)
}
