//! The command `gce-metadata-proxy status`: the condition of the proxy on this machine, without a browser or curl.

use std::net::SocketAddr;

use crate::admin::statusz::Overview;
use operator::ask::{self, AskError};
use operator::finding;
use telemetry::logging::Format;

/// Exit code if the proxy does not answer, or not as expected.
pub const CANNOT_ASK: u8 = 2;

/// Queries the proxy at this address for operators. Returns the text to print, and the exit code: 0 if the condition is
/// ok, 1 if the proxy is degraded or failing.
pub async fn run(admin: SocketAddr, format: Format) -> Result<(String, u8), AskError> {
    let answer = ask::get(admin, "/statusz?format=json").await?;
    let overview: Overview = serde_json::from_str(&answer).map_err(|_| AskError::Unclear)?;
    Ok((finding::render(&overview, format), overview.exit_code()))
}
