//! The listening side: sockets, connections, and their end. What is answered is the stack's business.

mod accept;
mod activity;
mod connection;
pub mod drain;
mod framing;
mod io;

pub use accept::{BACKLOG, bind, run};
pub use connection::{Stack, Timeouts, serve};
pub use drain::Drain;
