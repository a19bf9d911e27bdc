//! The listening side: sockets, connections, and their end. What is answered is the stack's business.

mod accept;
mod activity;
mod connection;
mod connections;
pub mod drain;
mod framing;
mod inbox;
mod reset;
mod socket;
mod wire;

pub use accept::{Server, bind, inherited};
pub use activity::Timeouts;
pub use connection::{NewStack, Stack};
pub use connections::{Connections, OPEN_BYTES, SERVING_BYTES};
pub use drain::Drain;
pub use reset::Reset;
