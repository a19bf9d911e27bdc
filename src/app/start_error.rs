//! [`StartError`]: why the proxy could not start, or could not go on.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::task::JoinError;

use http_client::secure::CaError;
use identity::pods::ProcError;
use operator::pages::ListenError;
use proxy::policy::LoadError;

/// Why the proxy could not start, or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// There is no address for pods.
    #[error(
        "none of --addr can be served here: {}. Give an IPv4 address, or turn on IPv6 in the node's kernel",
        if .0.is_empty() { "there is none".to_owned() } else { format!("without IPv6, there is no {}", listed(.0)) }
    )]
    Nowhere(Vec<SocketAddr>),
    /// The policy is invalid.
    #[error(transparent)]
    Policy(#[from] LoadError),
    /// Another process serves pods here, and this process could not take over.
    #[error(
        "{} within {} s. Another process serves pods on this address and goes on; this one ends, to be started again",
        .0,
        SUCCESSION.as_secs()
    )]
    NotAble(Lacking),
    /// The node's processes cannot be read.
    #[error("--host-proc: {0}")]
    Proc(#[from] ProcError),
    /// The thread that scans the processes cannot be started.
    #[error("cannot start the thread that looks at the node's processes: {0}; allow the container more processes")]
    Thread(io::Error),
    /// A task that serves pods or operators, or keeps up to date what they get, has panicked.
    #[error(
        "a task that this process cannot do without ended: {0}. It is a bug. The process exits so that it is restarted"
    )]
    Panicked(JoinError),
    /// The certificate authorities for Google's servers cannot be read.
    #[error("--google-ca: {0}")]
    GoogleCa(#[from] CaError),
}

/// What a process lacks to serve pods in place of another one.
#[derive(Debug, thiserror::Error)]
pub enum Lacking {
    #[error("the API server did not list this node's pods")]
    Pods,
    /// The node's, which the other process may have.
    #[error("the metadata server issued no token of the node's account ({0})")]
    Token(String),
    /// Where no pod acts as the node.
    #[error("the metadata server gave no value ({0})")]
    Values(String),
}

/// Maximum time for a process to become able to serve while another process serves pods.
///
/// With host networking both use the same port for operators, and the kernel lets either process answer a probe. So if this
/// process stayed, its pod could seem ready because of the other process's answers, and the other process would then be
/// stopped. And the other pod would seem unready after three 503 answers of this process in a row. Three probes take 10 s:
/// this process ends before that.
pub(super) const SUCCESSION: Duration = Duration::from_secs(8);

fn listed(addrs: &[SocketAddr]) -> String {
    addrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
