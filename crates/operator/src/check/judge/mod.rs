//! Interprets observations and suggests fixes. Pure.

mod answer;
mod concealed;
mod reached;
mod tokens;
mod verdict;

pub(super) use concealed::{identity, is_listing, secret};
pub(super) use reached::{name, other_address, other_interface, proxied, unknown_name, way_round};
pub(super) use tokens::{bound_token, token};
pub use verdict::{Finding, Verdict};
