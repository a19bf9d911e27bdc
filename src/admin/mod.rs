//! The second listener, for operators: metrics, health, readiness, and the status page.

mod guard;
mod service;
pub mod statusz;

pub use service::Admin;
