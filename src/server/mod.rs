//! The listening side: sockets, connections and graceful shutdown. The stack decides what to answer.

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
pub use connections::Connections;
pub use drain::Drain;
pub use reset::Reset;
