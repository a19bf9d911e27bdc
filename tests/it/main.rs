//! The assembled proxy in front of the mock metadata server: scenarios grouped by behaviour.
//!
//! `support` contains shared code. Everything runs on loopback, on ports picked by the system.

#![allow(unreachable_pub, reason = "everything here is private to this binary")]

mod concealment;
mod conformance;
mod framing;
mod handover;
mod observability;
#[cfg(feature = "otlp")]
mod otlp;
mod overload;
mod process;
mod statusz;
mod support;
mod survival;
mod telemetry;
mod tokens;
mod upstream;
