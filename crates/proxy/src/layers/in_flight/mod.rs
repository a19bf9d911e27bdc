//! `in_flight`: limits concurrent requests to the metadata server, and refuses excess requests immediately and cheaply.
//!
//! # Why it exists
//!
//! Without a limit, a proxy runs out of memory when its upstream stalls: every waiting pod holds a connection, a buffer
//! and a task. k8s-metadata-proxy had a limit by accident (a listener that accepts 100 connections, and the kernel's
//! backlog behind it), which also locked out clients that only kept an idle connection. Here the limit counts requests
//! exactly, and excess requests are refused immediately.
//!
//! # Seats
//!
//! A seat is taken once a request has been parsed. It is released when the response has been written or dropped, or
//! the client has disconnected: the response body holds it ([`SeatedBody`]). An idle connection has no seat. Seats
//! are counted under one lock for the whole process, so no race can exceed the limit or leave a seat unused while a
//! request waits.
//!
//! # Requests that need no seat
//!
//! When all seats are taken, a request that sends no upstream request of its own passes without one: a ping, and a
//! request for a token or a [cached value](super::leaves). It is answered immediately, or waits at most 2.5 s for a
//! flight. A thousand pods that request the same token cause one upstream request. Most requests of well-behaved pods
//! are of this kind, and many clients do not retry a refused token request.
//!
//! Flights have limits of their own: each cached value has at most one, and the [token cache](super::token_cache)
//! limits concurrent fetches and the keys that requests may wait for, and shares both between clients. So a pod that
//! invents keys delays and evicts its own. Requests that wait for a flight are bounded by the limit on connections,
//! like all others. Any other request that needs the upstream waits for a seat or is refused. Hanging GETs wait by
//! design and would fill the seats; they have a limit of their own ([`hanging`](super::hanging)).
//!
//! # Clients that do not read
//!
//! A client that requests a large response and does not read it would keep its seat until a timeout, and two hundred
//! of them would lock out all others. So when no seat is free, the connection whose client has read nothing for
//! longest (at least 5 ms) is cut, and its seat goes to the next waiting request. A request that waits for the
//! upstream, or whose response is being read, is never cut.
//!
//! # Who may wait
//!
//! A pod that sends requests faster than they are answered would take every seat as soon as it is released. So seats
//! are shared equally between the clients (IP addresses) that have requests in flight or waiting. When no seat is free,
//! a client that has its share is refused immediately. A client with less waits for the next seat, for about the
//! maximum response time of the upstream (2.5 s), and no newcomer overtakes it. Nothing is reserved: a single client
//! may have all seats.
//!
//! So a pod within its share is served as long as seats are released, whatever other pods do. It is refused after the
//! wait if the upstream hangs and no seat is released. Pods on the host network share the node's addresses. A
//! process there may also send from any address of 127.0.0.0/8, each of which is a client with a share.
//!
//! # How requests are refused
//!
//! [`rescue`](super::rescue) decides. By default it resets the connection: Go's, Python's, Node's and Java's current
//! libraries retry after a reset, which costs nothing and queues nothing. With `--overload unavailable` it answers 503
//! instead, for clients such as `curl --retry` (`docs/clients.md`).
//!
//! # Memory of a seat
//!
//! At most 8 KiB of a buffered response, or 44 KiB of a streamed one between two buffers, and about 24 KiB for both
//! connections: at most 13 MiB for 200 seats, if none of their clients reads, and 5 MiB with typical responses (a token has
//! 1 KiB). Larger buffered responses are charged to the [`room`](crate::room).

mod body;
mod seats;
mod service;

pub use body::SeatedBody;
pub use seats::{Admission, Seat, Seats};
pub use service::{InFlight, Limit, MakeRoom, layer};
