//! The listening side: sockets, connections and graceful shutdown. The stack makes the responses.
//!
//! | concern | files | interface |
//! |---|---|---|
//! | accepting connections, and limits on them | `door`, `accept`, `patience`, `connections` | [`Server`], [`Connections`] |
//! | *turns*: which client gets processor time | `turns` | `Turns::share` polls a task in turn |
//! | *park*: a connection without a request being served | `park`, `inbox`, `framing` | `park::gather` reads until a head is complete |
//! | *serve*: a connection with hyper | `connection`, `service`, `bodies`, `stack` | [`Stack`], [`NewStack`] |
//! | *watchdog*: which deadline applies when | `watchdog`, `activity` | `Watchdog::poll` is ready when to park or to close |
//! | *wire*: what hyper reads and writes, and how a connection is closed | `wire`, `large`, `socket`, `outstanding` | `Watched`, `Socket` |
//! | the end of the process | `drain` | [`Drain`] |
//!
//! The concerns share one `Activity` per connection: the wire records bytes, the service records requests, and the
//! watchdog and `connections` read them.

mod accept;
mod activity;
mod arrival;
mod bodies;
mod connection;
mod connections;
mod door;
pub mod drain;
mod framing;
mod inbox;
mod large;
mod outstanding;
mod park;
mod patience;
mod reset;
mod service;
mod socket;
mod stack;
mod turns;
mod watchdog;
mod wire;

pub use accept::Server;
pub use arrival::Arrival;
pub use bodies::Bodies;
pub use connections::{Connections, Whose};
pub use door::{Door, Listen, bind, bind_queues, is_shared};
pub use drain::Drain;
pub use reset::Reset;
pub use stack::{NewStack, Payload, Remembering, Stack};
