//! The second listener, for operators: metrics, health and readiness, and what goes on.

mod readiness;
mod service;
pub mod statusz;

pub use readiness::{Readiness, State};
pub use service::Admin;
