//! Policies ([`protocol::policy`]), and the one in force.

mod live;

pub use live::{A_RESTART_FAILS, LivePolicy, Rejection, Reloaded};
pub use protocol::policy::*;
