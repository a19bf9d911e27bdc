//! The command `gce-metadata-proxy status`: how the proxy on this machine is doing, without a browser and without curl.

use std::net::SocketAddr;

use crate::admin::statusz::Overview;
use crate::ask::{self, AskError};
use crate::finding::Format;

/// Exit code where the proxy does not answer, or not so.
pub const CANNOT_ASK: u8 = 2;

/// Asks the proxy that serves operators at this address. What to print, and the exit code: 0 if all is well, 1 if the proxy is
/// degraded or failing.
pub async fn run(admin: SocketAddr, format: Format) -> Result<(String, u8), AskError> {
    let answer = ask::get(admin, "/statusz?format=json").await?;
    let overview: Overview = serde_json::from_str(&answer).map_err(|_| AskError::Unclear)?;
    Ok((format.render(&overview), overview.exit_code()))
}
