//! conceal: enforces the policy on requests and responses.
//!
//! The decision is a pure function of the parsed request and a [`Policy`](crate::policy::Policy), which is data; the
//! service only carries it out. It stands before anything that keeps answers, so that nothing cached can outrun the policy.
//!
//! Three answers are made here. A refusal says what was asked for as it was read, and which policy conceals it and why:
//! whoever reads it has a failing pod. A directory that is served only for something below it gets its redirect from
//! here, since the upstream might know that name as a leaf. And where names may be seen and others not, the upstream's
//! answer is fetched whole and [`redact`]ed; [`room`](crate::room) bounds what that may cost.
//!
//! In audit mode nothing is refused and nothing is cut: what would be is logged and counted, so that a policy can be tried
//! on a cluster before it is enforced. A request that watches a value is judged when it comes: a policy that changes while
//! it waits counts from its next one.

pub mod audit;
pub mod metrics;
pub mod redact;
mod service;
#[cfg(test)]
mod trees;

pub use audit::Mode;
pub use metrics::PolicyMetrics;
pub use service::{Conceal, Concealment, layer};
