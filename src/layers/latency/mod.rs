//! latency: measures the time spent in each filter.
//!
//! # What goes wrong without it
//!
//! The time that a request waits in a queue is easy to see, and it hides what the queue itself costs: Kubernetes' API server
//! found milliseconds in its fairness filter only once somebody measured the filter and not its queue. Its own tracker
//! measures when the next filter begins, so that a filter which answers or refuses, the very case under overload, is never
//! seen.
//!
//! # What A and B are
//!
//! - **A**: the filter starts executing for a request.
//! - **B**: the filter has applied its logic, and the next one starts executing: `outcome="passed"`. For a filter that
//!   answers (`answered`) or ends the request by an error (`refused`), B is when that outcome is there.
//!
//! B of one filter is A of the next, so one look at the clock serves both.
//!
//! What a filter costs is `B - A` less the time for which it was *suspended* in between: waiting for a flight, for the
//! metadata server, for a seat, or for its turn on the processor once that has come. That time has a histogram of its own.
//! What happens after B, on the way back, is no filter's. A request whose client leaves while it is suspended is no
//! observation of the filter; it is one of the whole request, as `cut`.
//!
//! # The whole request
//!
//! [`Total`] stands outside everything, refusals included. It measures from when the head was read to the first and to the
//! last byte of the answer (as they are handed to the connection's buffer), by endpoint class and outcome, which `classify`
//! and `rescue` tell it.
//!
//! # Traces
//!
//! What the probes see of a request that is traced goes to [`telemetry::otlp`](crate::telemetry::otlp), too, which is empty in
//! a build without that feature.
//!
//! # What it costs
//!
//! About 18 ns a filter (`benches/latency.rs`), 9 of them for the clock: no lock, no memory, and handles that are found once.
//! Probes of one request find each other through a thread-local value and not through the request: a layer runs the next
//! one inside its own `call` or `poll`, on the same thread, whatever the request looks like at that point.

mod body;
mod probe;
mod total;
mod trace;
mod underway;

pub use body::TimedBody;
pub use probe::{Next, Probe, ProbeLayer, Tracked, track};
pub use total::{Total, TotalLayer};
pub(super) use trace::{asks_for, ends_as};
