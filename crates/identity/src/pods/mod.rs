//! Identification of pods: reports of the kernel and the API server about this node's pods, and the decision between them.
//!
//! The kernel knows which pod a network belongs to from its first packet on. The API server knows what that pod is: its
//! namespace, name and service account. Neither is enough: the API server learns a pod's address late, and the kernel
//! knows UIDs only.

mod cgroup;
mod fib_trie;
mod host_proc;
mod if_inet6;
mod known;
mod leads;
mod object;
pub mod owners;
mod pod;
mod sandbox;
mod sandboxes;
mod scanner;
mod scans;
mod stat;
mod store;
mod uid;
mod watch;

pub(crate) use host_proc::HostProc;
pub use host_proc::ProcError;
pub use known::{Pods, Reported};
pub use leads::Leads;
pub use object::read;
pub use pod::{AccountKey, Pod};
pub use sandbox::Sandbox;
pub use sandboxes::{Anchor, Sandboxes, Scanned};
pub use scans::{Scan, Scans};
pub use store::{Store, keep};
pub use uid::PodUid;
pub use watch::{WatchEvent, follow};

/// The parsers of `/proc`, for `fuzz/`.
#[cfg(fuzzing)]
pub mod fuzzing {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::{PodUid, cgroup, fib_trie, if_inet6, stat};

    /// The pod that a `cgroup` file names.
    pub fn pod_of(text: &[u8]) -> Option<PodUid> {
        cgroup::Root::default().pod_of(text)
    }

    /// The addresses in a `fib_trie` file.
    pub fn addresses_v4(text: &[u8]) -> Vec<Ipv4Addr> {
        let mut parser = fib_trie::Parser::default();
        text.split_inclusive(|byte| *byte == b'\n').filter_map(|line| parser.line(line)).collect()
    }

    /// The addresses in an `if_inet6` file.
    pub fn addresses_v6(text: &[u8]) -> Vec<Ipv6Addr> {
        text.split_inclusive(|byte| *byte == b'\n').filter_map(if_inet6::address).collect()
    }

    /// Parses a `stat` file: whether the process is running, and its start in clock ticks.
    pub fn stat(text: &[u8]) -> Option<(bool, u64)> {
        stat::Stat::parse(text).map(|stat| (stat.is_running, stat.start))
    }
}

#[cfg(any(test, feature = "test-util"))]
pub use sandboxes::fake_proc::FakeProc;
