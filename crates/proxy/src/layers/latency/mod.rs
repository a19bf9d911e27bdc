//! latency: measures the time spent in each filter.
//!
//! # Why not only queueing time
//!
//! The time that a request waits in a queue is easy to see, but hides the cost of the queue itself: Kubernetes' API
//! server found milliseconds in its fairness filter only once the filter was measured, not just its queue. That
//! server's own tracker measures when the next filter begins, so it never sees a filter that answers or refuses, which
//! is the very case under overload.
//!
//! # What is measured
//!
//! - **A**: the filter gets a request.
//! - **B**: the next filter gets it: `outcome="passed"`. For a filter that answers (`answered`) or returns an error
//!   (`refused`), B is the time of that result.
//!
//! B of one filter is A of the next, so one clock read serves both.
//!
//! The cost of a filter is `B - A`, less the time for which the request was *suspended* in between: it waited for a
//! token fetch, for the metadata server, for a seat, or for its turn on the processor. That time has a histogram of its
//! own. The time after B, on the way back, is not measured as any filter's. If a client disconnects while its request
//! is suspended, the filter is not observed; the whole request is, as `cut`.
//!
//! # How
//!
//! The stack of a connection shares a [`Timeline`], which knows the filter that currently has the request. [`enter()`]
//! stands before each filter and moves the request to it; [`Leave`] reports the response. [`Total`] stands outside
//! everything, refusals included: it starts the timeline, suspends and resumes it, and measures from the request head
//! to the first and to the last byte of the response. `classify` and `rescue` report the endpoint class and the outcome
//! to the timeline.
//!
//! `cargo bench --bench latency` prints the cost of measuring one filter.

mod body;
mod enter;
mod timeline;
mod total;
mod underway;

pub use body::TimedBody;
pub use enter::{Leave, enter, leave, track};
pub use timeline::{Instruments, Timeline};
pub use total::{Total, total};
