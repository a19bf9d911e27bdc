//! The base of all other crates: the clock for token lifetimes, back-off, hooks, and the kernel's network interfaces and routes.

#![forbid(unsafe_code)]

pub mod backoff;
pub mod clock;
pub mod hook;
pub mod links;
pub mod netlink;
pub mod routes;
