//! conceal: what a pod must not read.
//!
//! The decision is a pure function of the parsed request and a table of rules ([`policy`]); the service only carries it
//! out. It stands before anything that keeps answers, so that nothing cached can outrun the policy.

pub mod policy;
mod service;

pub use policy::{Concealed, Verdict};
pub use service::{Conceal, ConcealLayer};
