//! Memory limits: the memory that clients can make the proxy use, and the shedding of load when it runs short.
//!
//! If the proxy exceeds its container's memory limit, the kernel kills it. Under cgroup v2, socket buffers also count
//! against the limit. Two mechanisms keep the proxy within it:
//!
//! - [`Budget`] divides the limit. Everything that a client can make the proxy store is charged to a part of
//!   the budget in advance, at its maximum size: connections with their buffers, tokens, large responses.
//!   These bounds hold at every moment.
//! - [`Pressure`] measures the actual usage of the control group, and defines the levels at which the proxy
//!   sheds load. It is the last line of defence, in case charges are too low.

mod budget;
mod pressure;

pub use budget::{Budget, Demand, MAX_LARGE_WRITES, MAX_PART_BYTES, OPEN_BYTES, SERVING_BYTES, UNREAD_BYTES};
#[cfg(test)]
pub(crate) use pressure::tests::group as fake_group;
pub use pressure::{Level, Pressure, Usage};
