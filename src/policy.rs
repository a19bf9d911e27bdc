//! Policies ([`protocol::policy`]), and the one in force.

mod live;

pub use live::{LivePolicy, Reloaded};
pub use protocol::policy::*;
