//! `token_cache`: caches tokens, with one upstream request for any number of concurrent clients.
//!
//! # Why it exists
//!
//! The metadata server returns the same token until about five minutes before it expires. Client libraries request a
//! new one 225 to 300 s before expiry, each process for itself and some at every use, so all pods of a node send
//! requests within the same minutes. A server that fails under that load fails all of them, although a token that is
//! valid for minutes is known. A single failed refresh even makes Go's library stop trying until expiry.
//!
//! # Design
//!
//! Every key ([`TokenKey`](crate::tokens::TokenKey): principal, account, all parameters) has one entry, and every
//! entry has one task, its *keeper* (`flight.rs`). Only the keeper fetches the key's token, so there is never more
//! than one fetch (*flight*) of a key. The flight belongs to no request, so a client that disconnects cancels
//! nothing. Requests only read the state that the keeper publishes. Freshness, and the time of the next refresh, are
//! pure functions of the token's expiry and the current time (`freshness.rs`).
//!
//! - *Fresh*: answered from memory. `expires_in` is computed for each response.
//! - *Stale* (at most 330 s left): still valid, and answered from memory. The keeper fetches every 5 s until the server
//!   returns a new token. This does not depend on requests: a key requested within the last hour is kept fresh for pods
//!   that request it once an hour, when their library's own copy is about to expire. A workload's token, which its
//!   source renews at any time, is fetched again at 75 % of its life.
//! - *Expired or unknown*: requests wait for the flight, at most until the source's deadline (2.5 s).
//!
//! # When the server fails
//!
//! A valid token is served until it expires, whatever fails. A failure is the answer to all requests that waited for
//! it, and to all that arrive within the next 0.6 to 0.9 s (0.1 to 0.2 s if the circuit breaker let no fetch through or
//! a workload's exchange failed; 1 s after a refusal; 10 s after a 404, which means an unknown account). Then the next
//! request starts another flight. So the server gets at most about one request per second and key, recovery is noticed
//! within a second, and traffic affects neither. While it has a valid token, the keeper backs off for up to 10 s.
//!
//! # Limits
//!
//! Entries take at most [`DEFAULT_LIMIT_BYTES`], unless the store is created with another limit (the proxy's is a part
//! of its memory limit: [`crate::memory::Budget`]). They are shared between clients (`store.rs` decides which ones to
//! evict). There are at most [`MAX_FETCHES`] concurrent fetches of the node's tokens. Of workloads' tokens, there are
//! at most 256 concurrent fetches that requests wait for, and 8 refreshes. Fetches are also shared between clients
//! ([`crate::flights`]). A flight is not begun if no request waits for it any more or its entry was evicted.
//!
//! # Time
//!
//! Expiry is measured by [`base::clock`], which includes the time that the machine is suspended. A token is wiped from
//! memory when it expires, whether or not it is requested, and when its entry is evicted.
//!
//! # Why there is no model checking
//!
//! A key's state has one writer, its keeper. The only exception is an eviction, which adds a failure. Readers get the
//! state through tokio's `watch`, which tokio tests under loom. Two operations remain that can race: creating an
//! entry, which is done under the store's lock, and requesting a flight, which `Notify` stores as a permit until the
//! keeper waits for it. The order that matters (subscribe, then request) is in one place, `Entry::join`.

pub mod audit;
mod cached_token;
mod entry;
mod flight;
mod freshness;
mod handed;
mod known;
pub mod metrics;
mod service;
mod store;
#[cfg(test)]
mod tests;

pub use audit::Audit;
pub use entry::TokenRow;
pub use handed::{Exported, NotTaken, TokenRecord};
pub use service::{TokenCache, Tokens};
pub use store::{DEFAULT_LIMIT_BYTES, IsDefault, MAX_FETCHES, Store};
