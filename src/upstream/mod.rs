//! The side that we call: the node's metadata server.
//!
//! [`Client`] owns connections and deadlines; [`Forward`], the innermost service of the stack, decides what goes on the
//! wire. Nobody else talks to the upstream.

mod body;
mod client;
mod forward;
mod health;
mod pool;
mod timing;

pub use client::{Client, Patience};
pub use forward::Forward;
pub use health::Health;
