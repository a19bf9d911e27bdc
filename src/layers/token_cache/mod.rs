//! `token_cache`: caches tokens, with one upstream request for any number of concurrent clients.
//!
//! # What goes wrong without it
//!
//! The metadata server hands out the same token until about five minutes of its life are left. Client libraries want a
//! new one from 225 to 300 s before the end, each for itself and some at every use, so a node's pods storm the server in
//! the same minutes; and a server that fails under the storm fails them all, although a token that is good for minutes is
//! known. One failed refresh even makes Go's library stop trying until expiry.
//!
//! # What is done
//!
//! Every key ([`TokenKey`](crate::tokens::TokenKey): principal, account, all parameters) has one entry, and every entry
//! one task, its *keeper* (`flight.rs`). The keeper is the only one to fetch that key's token, so a flight is single by
//! construction; it belongs to no caller, so a client that hangs up cancels nothing; and nobody decides twice, since
//! callers only read what the keeper published. How fresh a token is, and when the keeper looks again, are pure functions
//! of the token and the time (`freshness.rs`).
//!
//! - *Fresh*: answered from memory, with the seconds that are left as of now.
//! - *Stale but valid* (330 s left or less): answered from memory all the same; the keeper is looking for a new one, every
//!   5 s while the server still gives the old one. Looking is not tied to requests: a key that was asked for in the last
//!   hour is kept fresh for the pod that asks once an hour, which is when its library's own copy is nearly over.
//! - *Expired, or never seen*: callers wait for the flight, at most 2.5 s.
//!
//! # When the server fails
//!
//! Only its own expiry ends a token's life. A failure is told to all who waited for it and to all who come within its
//! back-off (0.6 to 0.9 s with jitter; 10 s for a 404, which is how an unknown account looks); then the next caller
//! starts one more flight. So the server sees at most about one request a second and key, recovery is seen within a
//! second, and traffic can shorten neither. With a valid token in hand the keeper backs off further, up to 10 s.
//!
//! # Bounds
//!
//! The entries take [`LIMIT`] bytes at most, unless the store was made with another limit; clients share them (`store.rs`
//! says who gives way). [`FETCHES`] fetches are under way at once over all keys, some of them for renewals, and clients share
//! these, too (`flights.rs`). A flight that nobody waits for any more, or whose entry was evicted, is not begun.
//!
//! # Time
//!
//! A token's life is judged by [`crate::clock`], which goes on while the machine is suspended. Its memory is wiped when it
//! expires, whether anybody asks or not, and when its entry is evicted.
//!
//! # Why no model checker
//!
//! A key's state has one writer, its keeper, but for the eviction, which only adds a failure; it reaches readers through
//! tokio's `watch`, which tokio itself checks under loom. What is left to race is the making of an entry, which happens under
//! the store's lock, and the asking for a flight, which `Notify` keeps as a permit until the keeper looks; the order that
//! matters (subscribe, then ask) stands in one place.

pub mod audit;
mod cached_token;
mod entry;
mod flight;
mod flights;
mod freshness;
mod known;
pub mod metrics;
mod service;
mod store;
#[cfg(test)]
mod tests;

pub use audit::Audit;
pub use entry::TokenRow;
pub use flights::FETCHES;
pub use service::{TokenCache, Tokens, layer};
pub use store::{LIMIT, Store};
