//! The assembled proxy in front of the mock metadata server: scenarios by behaviour.
//!
//! `support` holds what they share. Everything runs on loopback, on ports that the system picks.

#![allow(unreachable_pub, reason = "everything here is private to this binary")]

mod clients;
mod concealment;
mod conformance;
mod framing;
mod handover;
mod overload;
mod process;
mod support;
mod survival;
mod tokens;
mod upstream;
