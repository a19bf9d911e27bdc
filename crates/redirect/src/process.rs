//! Runs `nft` and `iptables` and returns their output.
//!
//! Rules are passed on standard input, and never through a shell.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

use super::Error;

/// Timeout of a tool. Tools wait for each other's locks and for the kernel's, which took 5 s on a machine that was busy with
/// the removal of namespaces.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Whether a tool is on `PATH`.
pub(super) fn exists(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(tool)).any(|file: PathBuf| file.is_file())
}

/// Runs a tool with `input` on its standard input, and returns its standard output.
pub(super) async fn run(tool: &'static str, args: &[&str], input: &str) -> Result<String, Error> {
    let failed = |error: io::Error| Error::Tool { tool, said: error.to_string() };
    let mut child = Command::new(tool)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let mut stdin = child.stdin.take().expect("piped");
    let talk = async {
        // A tool that fails immediately does not read its input. Its own error says more than this one.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        child.wait_with_output().await
    };
    let output = timeout(TIMEOUT, talk)
        .await
        .map_err(|_| Error::Tool { tool, said: format!("no response within {} s", TIMEOUT.as_secs()) })?
        .map_err(failed)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    Err(Error::Tool { tool, said: if said.is_empty() { output.status.to_string() } else { said } })
}
