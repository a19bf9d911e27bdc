//! The second listener, for operators: metrics, health and readiness, and what goes on.

mod service;
pub mod statusz;

pub use service::Admin;
