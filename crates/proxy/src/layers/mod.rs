//! The tower layers of the request path. Each makes one decision. `stack.rs` defines their order.
//!
//! Most are a function that decides on a request, which `filter` turns into a layer; `discovery` is the shortest
//! example. A layer with a service of its own needs no future of its own: `crate::outcome::Outcome` is one.

pub mod catch_panic;
pub mod classify;
pub mod conceal;
pub mod discovery;
pub mod filter;
pub mod hanging;
pub mod in_flight;
pub mod latency;
pub mod leaves;
pub mod rescue;
pub mod token_cache;
