//! The upstream: the node's metadata server.
//!
//! [`Client`] owns connections and deadlines. [`Forward`], the innermost service of the stack, decides what
//! is sent. All upstream requests go through them.

mod body;
mod client;
mod failure;
mod forward;
mod health;
mod pool;
mod timing;

pub use body::Streamed;
pub use client::{Client, DEADLINE, Patience, Target, TargetError};
pub use failure::Failure;
pub use forward::Forward;
pub use health::Health;
