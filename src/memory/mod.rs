//! Memory: how much clients may make the proxy hold, and what happens when it runs short.
//!
//! The proxy must stay within its container's limit, or the kernel kills it and with it every connection. Since cgroup v2 the
//! kernel's socket buffers count against that limit. Two things keep the proxy within it:
//!
//! - [`Budget`] divides the limit. Whatever a client can make the proxy keep is weighed in bytes before it is kept, at its
//!   worst, and charged to a part of the budget: connections with their buffers, tokens, large answers. These bounds hold
//!   within a single turn of the event loop.
//! - [`Pressure`] measures what the control group really uses, and tells the steps in which the proxy sheds load as it nears
//!   the limit. It is the last line, for whatever was weighed too lightly.

mod budget;
mod pressure;

pub use budget::{Budget, Demand, OPEN_BYTES, SERVING_BYTES};
pub use pressure::{Level, Pressure, Usage};
