//! The assembled proxy in front of the mock metadata server: scenarios by behaviour.
//!
//! `tests/support` holds what test binaries share. Everything runs on loopback, on ports that the system picks.

#![allow(unreachable_pub, reason = "everything here is private to this binary")]

mod concealment;
mod conformance;
mod framing;
mod handover;
mod observability;
#[cfg(feature = "otlp")]
mod otlp;
mod process;
mod statusz;
#[allow(dead_code, unreachable_pub, unused_imports, reason = "each test binary uses a part of it")]
#[path = "../support/mod.rs"]
mod support;
mod telemetry;
mod tokens;
mod upstream;
