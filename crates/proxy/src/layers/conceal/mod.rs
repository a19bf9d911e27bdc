//! conceal: enforces the policy on requests and responses.
//!
//! The decision is a pure function of the parsed request and a [`Policy`](crate::policy::Policy), which is data; the
//! service only carries it out. The layer precedes all caches, so that no cached value escapes the policy.
//! Trees are also redacted before they are cached, so that no concealed value is cached.
//!
//! It makes three kinds of response itself:
//!
//! - A refusal contains the parsed path, the policy and the reason, because its reader has a failing pod.
//! - A directory that is served only because of something below it is redirected here, because the upstream might have
//!   a leaf of the same name.
//! - Where only some of the names or values are visible, the upstream's response is buffered and [`redact`]ed.
//!   [`room`](crate::room) limits the memory.
//!
//! In audit mode nothing is refused or redacted. Requests that would be are logged and counted, so that a policy can be
//! tried on a cluster before it is enforced. A request that watches a value is judged on arrival, and ended
//! when the policy changes.

pub mod audit;
pub mod metrics;
#[cfg(test)]
mod pods;
pub mod redact;
mod redaction;
#[cfg(test)]
mod reload;
mod service;
#[cfg(test)]
mod trees;

pub use audit::Mode;
pub use metrics::PolicyMetrics;
pub use service::{Conceal, Concealment, OwnEmail, layer};
