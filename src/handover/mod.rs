//! The hand-over: in a rolling update, the new process takes over tokens from the one before it.
//!
//! Without it, an update causes an exchange for every account of every node at once, and Google allows a project 6,000 a minute.
//! Tokens stay in memory: they are sent through an abstract Unix socket in the network namespace that both processes share, whose
//! name is derived from the address that both serve. Nothing is written to disk, and no directory of the node is needed.
//!
//! ```text
//! successor                                      predecessor
//!   connects, attests ──── hello: version, nonce ────► attests
//!   checks, keeps          ◄──── the same nonce, its time, its settings, records, their number
//!   accepts all, serves
//! ```
//!
//! # Mutual attestation
//!
//! Any process in that network namespace can connect, and can bind the name first. So each end attests the other
//! ([`Kin`](identity::kin::Kin)) before it sends or reads a byte. A process that binds the name prevents hand-overs, but gets
//! nothing and is not trusted. The predecessor serves one connection at a time, each within 3 s.
//!
//! # All or nothing
//!
//! A hand-over takes effect once its last record has arrived, with the right count. Each record is then checked like a server's
//! response. A wrong nonce, another clock, other settings or another version mean a cold start, with a log line.

mod format;
mod give;
mod take;

use std::time::Duration;

use crate::config::Config;
use identity::workloads::Federation;

pub use give::give;
pub use take::take;

/// Maximum time of a hand-over: up to 1 s until the API server lists a new pod, up to 0.5 s for tokens that are being fetched, and
/// the transfer on one machine. The predecessor serves pods meanwhile.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Name of the socket of the processes that serve this address. The leading zero byte makes it abstract: it is not a file.
fn name(config: &Config) -> String {
    let addr = config.addrs.first().map(ToString::to_string).unwrap_or_default();
    format!("\0gce-metadata-proxy/handover/{addr}")
}

/// The settings that both processes must share, because tokens depend on them.
fn settings(config: &Config) -> String {
    let upstream = &config.upstream;
    let federation = config.identity.as_ref().and_then(|identity| identity.federation.as_ref());
    let federation = federation.map_or_else(String::new, |federation: &Federation| {
        format!("{} {} {} {}", federation.sts_audience(), federation.token_audience(), federation.sts, federation.iam)
    });
    format!("{upstream} {federation}")
}

#[cfg(test)]
mod tests;
