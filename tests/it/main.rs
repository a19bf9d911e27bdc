//! The assembled proxy in front of the mock metadata server: scenarios grouped by behaviour.
//!
//! `tests/support` contains shared code. Everything runs on loopback, on ports picked by the system.

#![allow(unreachable_pub, reason = "everything here is private to this binary")]

mod concealment;
mod conformance;
mod framing;
mod handover;
mod kept;
mod nowhere;
mod observability;
mod panics;
mod posts;
mod process;
mod quiet;
mod status;
mod statusz;
#[allow(dead_code, unreachable_pub, unused_imports, reason = "each test binary uses a part of it")]
#[path = "../support/mod.rs"]
mod support;
mod telemetry;
mod tokens;
mod upstream;
mod usage;
