//! latency: measures the time spent in each filter.
//!
//! # Why not only the time in queues
//!
//! The time that a request waits in a queue is easy to see, and it hides what the queue itself costs: Kubernetes' API
//! server found milliseconds in its fairness filter only once somebody measured the filter and not its queue. Its own
//! tracker measures when the next filter begins, so it never sees a filter that answers or refuses, which is the very
//! case under overload.
//!
//! # What is measured
//!
//! - **A**: the filter gets a request.
//! - **B**: the next filter gets it: `outcome="passed"`. For a filter that answers (`answered`) or returns an error
//!   (`refused`), B is when it does.
//!
//! B of one filter is A of the next, so one clock read serves both.
//!
//! The cost of a filter is `B - A`, less the time for which the request was *suspended* in between: it waited for a token
//! fetch, for the metadata server, for a seat, or for its turn on the processor. That time has a histogram of its own.
//! The time after B, on the way back, belongs to no filter. A request whose client disconnects while it is suspended is
//! not an observation of the filter; it is one of the whole request, as `cut`.
//!
//! # How
//!
//! The stack of a connection shares a [`Timeline`], which knows the filter that has the request. [`Enter`] stands before
//! each filter and moves the request to it; [`Leave`] reports the response. [`Total`] stands outside everything, refusals included: it starts the
//! timeline, suspends and resumes it, and measures from the request head to the first and to the last byte of the
//! response. `classify` and `rescue` tell the timeline the endpoint class and the outcome.
//!
//! `cargo bench --bench latency` prints the cost of measuring one filter.

mod body;
mod enter;
mod timeline;
mod total;
mod underway;

pub use body::TimedBody;
pub use enter::{Enter, Leave, enter, leave, track};
pub use timeline::{Instruments, Timeline};
pub use total::{Total, total};
