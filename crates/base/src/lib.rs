//! What every other crate may stand on: the clock of tokens, back-off, and hooks.

#![forbid(unsafe_code)]

pub mod backoff;
pub mod clock;
pub mod hook;
