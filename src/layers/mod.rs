//! The tower layers of the request path. Each makes one decision. `stack.rs` defines their order.
//!
//! `discovery` is the shortest example. A layer that decides immediately needs no future of its own; `outcome` has one.

pub mod accounts;
pub mod catch_panic;
pub mod classify;
pub mod conceal;
pub mod discovery;
pub mod hanging;
pub mod identify;
pub mod in_flight;
pub mod latency;
pub mod leaves;
mod outcome;
pub mod rescue;
pub mod token_cache;
