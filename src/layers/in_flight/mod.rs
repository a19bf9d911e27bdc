//! `in_flight`: limits concurrent requests to the metadata server, and refuses excess requests immediately
//! and cheaply.
//!
//! # What goes wrong without it
//!
//! A proxy without a limit dies by memory when its upstream stalls: every waiting pod holds a connection, a buffer and a
//! task here. k8s-metadata-proxy had a limit by accident (a listener that accepts 100 connections, and the kernel's
//! backlog behind it), which also locked out clients that wanted nothing but an idle connection. Here the limit counts
//! requests, exactly, and what is beyond it hears of it within a moment.
//!
//! # What a seat is
//!
//! A seat is taken once a request has been read and understood, and comes back when its answer has been written out, the
//! client has gone, or the answer was dropped: it rides in the body ([`SeatedBody`]). An idle connection has none. There
//! is one count for the whole process, a semaphore, so the limit holds under any race: never one more than the limit, never
//! one fewer while more want in.
//!
//! # Who needs none
//!
//! When all seats are taken, a request that asks nothing more of the upstream is let in without one: a ping, a known
//! value, a token that is known, which are answered at once; and a request for a token that is being fetched already, which
//! joins that flight and waits 2.5 s at the most. A thousand pods that want the same token are one upstream request, and
//! that is what the token cache is for; the limit on connections bounds them. Refusing these would cost as much as
//! answering them, and they are what the pods that the limit is to protect ask for. Whatever would be one more request to
//! the upstream is refused. Hanging GETs wait by design and would fill the seats; they have a limit of their own
//! ([`hanging`](super::hanging)).
//!
//! # Who has to give it back
//!
//! A client that asks for something large and does not read it would keep its seat until its time-out, and two hundred of
//! them would keep everybody out. So when no seat is free, the connection whose client has taken nothing for longest (5 ms
//! at least) is cut, and its seat goes to the next that waits. A request that waits for the upstream, or whose answer is
//! being read, is never cut.
//!
//! # Who may wait
//!
//! One pod that asks faster than it is answered takes every seat as it comes back, and everybody else is refused. So clients
//! are told apart by their address, and those that are in flight or wait have equal shares. When no seat is free, a client that
//! has its share is refused at once; one that has less waits for the next seat, up to a second, and no newcomer gets one before
//! it. Nothing is set aside: a client that is alone may have all the seats.
//!
//! So a pod within its share is served for as long as seats come back, whatever the others do. It is refused, a second later,
//! when the upstream hangs and none comes back. Pods on the host's network have the node's address, and one share.
//!
//! # How it is refused
//!
//! `rescue` decides that. By default the connection is reset: Go's, Python's and Node's libraries take a reset before an
//! answer for a reason to try again, it costs us nothing, and nothing waits in anybody's queue. `--overload unavailable`
//! says 503 instead, which Java's library prefers.
//!
//! # What a seat costs
//!
//! At most 8 KiB of answer that is held, or 24 KiB on the way between two buffers, and about 24 KiB for both connections: 200
//! seats are at most 9 MiB, and 5 MiB with the answers that there are (a token has 1 KiB). Larger answers that are held take
//! [`room`](crate::room).

mod body;
mod seats;
mod service;

pub use body::SeatedBody;
pub use seats::{Admission, Seat, Seats};
pub use service::{InFlight, Limit, MakeRoom, layer};
