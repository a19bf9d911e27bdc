//! The hand-over: in a rolling update, the new process takes over tokens from the one before it.
//!
//! Without it, each update costs an exchange for each account of each node at once, of the 6,000 that Google allows a project in a
//! minute. In memory only: a Unix socket, with a name in the network namespace that both processes share (an abstract socket), made
//! of the address that both serve. Nothing is on disk, and no directory of the node is needed.
//!
//! ```text
//! successor                                      predecessor
//!   connects, attests ──── hello: version, nonce ────► attests
//!   checks each, keeps     ◄──── the same nonce, its time, its settings, records, their number
//!   believes all of it, serves
//! ```
//!
//! # Who gets tokens, and who is believed
//!
//! Any process in that network namespace can connect, and can take the name first. So each end attests the other
//! ([`Kin`](identity::kin::Kin)), before it sends or reads a byte. A process that takes the name prevents hand-overs, but gets
//! nothing and is not believed. The predecessor serves one connection at a time, each within 2 s.
//!
//! # What is believed
//!
//! All or nothing: a hand-over counts once its last record has come, with the right number. Each record is then checked as an answer
//! is. A wrong nonce, another clock, other settings or another version mean a cold start, with a line in the log.

mod format;
mod give;
mod take;

use std::time::Duration;

use crate::config::Config;
use identity::workloads::Federation;
use proxy::upstream::Upstream;

pub use give::give;
pub use take::take;

/// Maximum time of a hand-over: both processes are on one machine.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The name of the socket for the processes that serve this address. It begins with a zero: it is not a file.
fn name(config: &Config) -> String {
    let addr = config.addrs.first().map(ToString::to_string).unwrap_or_default();
    format!("\0gce-metadata-proxy/handover/{addr}")
}

/// What must be the same for tokens to mean the same.
fn settings(config: &Config) -> String {
    let upstream = match &config.upstream {
        Upstream::Server(target) => target.to_string(),
        Upstream::None(_) => "none".to_owned(),
    };
    let federation = config.identity.as_ref().and_then(|identity| identity.federation.as_ref());
    let federation = federation.map_or_else(String::new, |federation: &Federation| {
        format!("{} {} {} {}", federation.sts_audience(), federation.token_audience(), federation.sts, federation.iam)
    });
    format!("{upstream} {federation}")
}

#[cfg(test)]
mod tests;
