//! The second listener, for operators: metrics, health and readiness.

mod readiness;
mod service;

pub use readiness::{Readiness, State};
pub use service::Admin;
