//! The path of a request: from the connection of a pod through the layers to the metadata server, and back.
//!
//! This crate does not know how pods are identified, and knows neither Kubernetes nor TLS. It has three seams: the
//! sender of a request ([`layers::classify::Identify`]), the source of tokens ([`tokens::TokenSource`]), and hooks.

#![forbid(unsafe_code)]

pub mod cgroup;
pub mod error;
pub mod failure;
pub mod flights;
pub mod layers;
pub mod memory;
mod outcome;
pub mod policy;
mod refused;
pub mod reply;
pub mod room;
pub mod server;
pub mod shares;
pub mod single_flight;
pub mod tokens;
pub mod upstream;
