//! The base of all other crates: the clock for token lifetimes, back-off, and hooks.

#![forbid(unsafe_code)]

pub mod backoff;
pub mod clock;
pub mod hook;
