//! Which pod is asking: what the kernel and the API server say about this node's pods, and the decision between them.
//!
//! The kernel knows which pod a network belongs to from its first packet on. The API server knows what that pod is: its
//! namespace, name and service account. Neither is enough: the API server learns a pod's address late, and the kernel
//! knows UIDs only.

mod cgroup;
mod fib_trie;
mod host_proc;
mod if_inet6;
mod known;
#[cfg(feature = "workload-identity")]
mod object;
pub mod owners;
mod pod;
mod sandboxes;
mod scanner;
mod stat;
mod uid;
#[cfg(feature = "workload-identity")]
mod watch;

pub use host_proc::ProcError;
pub use known::Pods;
#[cfg(feature = "workload-identity")]
pub use object::read;
pub use pod::Pod;
pub use sandboxes::{Anchor, Sandbox, Sandboxes, Scanned};
pub use uid::PodUid;
#[cfg(feature = "workload-identity")]
pub use watch::{WatchEvent, follow};

#[cfg(test)]
pub(crate) use sandboxes::fake_proc::FakeProc;
