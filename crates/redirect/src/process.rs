//! Runs `nft` and `iptables` and returns their output.
//!
//! Rules are passed on standard input, and never through a shell.

use std::cell::RefCell;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use rustix::io::Errno;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

use super::Error;

/// Timeout of a tool. Tools wait for each other's locks and for the kernel's, which took 5 s on a machine that was busy with
/// the removal of namespaces.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// Words of tools about what passes: other programs change rules, or something is used up. Tools have glibc's words for that.
const PASSING: [&str; 6] = [
    "xtables lock",
    "Cannot allocate memory",
    "Interrupted system call",
    "No buffer space available",
    "Resource temporarily unavailable",
    "Too many open files",
];

tokio::task_local! {
    /// The tools that did not respond in this attempt.
    static SILENT: RefCell<Vec<&'static str>>;
}

/// Makes an attempt in which a tool that does not respond is not asked again: each question takes as long, and pods may be open.
pub(super) fn attempt<F: Future>(attempt: F) -> impl Future<Output = F::Output> {
    // Large, and rare.
    SILENT.scope(RefCell::default(), Box::pin(attempt))
}

/// Runs a tool with `input` on its standard input, and returns its standard output.
pub(super) async fn run(tool: &'static str, args: &[&str], input: &str) -> Result<String, Error> {
    if SILENT.try_with(|silent| silent.borrow().contains(&tool)).unwrap_or(false) {
        return Err(Error::Silent { tool });
    }
    let outcome = ask(tool, args, input).await;
    if matches!(outcome, Err(Error::Silent { .. })) {
        // Outside of an attempt, nobody asks.
        let _ = SILENT.try_with(|silent| silent.borrow_mut().push(tool));
    }
    outcome
}

async fn ask(tool: &'static str, args: &[&str], input: &str) -> Result<String, Error> {
    #[cfg(test)]
    if let Some(answer) = super::fake::answer(tool, args, input) {
        return answer;
    }
    let failed = |error: io::Error| {
        let said = error.to_string();
        if is_passing(&error) { Error::Busy { tool, said } } else { Error::Tool { tool, said } }
    };
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
    let output = timeout(TIMEOUT, talk).await.map_err(|_| Error::Silent { tool })?.map_err(failed)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = if said.is_empty() { output.status.to_string() } else { said };
    // Without a code, a signal ended it, as where memory is short.
    Err(if output.status.code().is_none() { Error::Busy { tool, said } } else { failure(tool, said) })
}

/// Whether the system may have room for the tool, or for a request to the kernel, the next time.
pub(super) fn is_passing(error: &io::Error) -> bool {
    const PASSING: [Errno; 6] = [Errno::NOMEM, Errno::AGAIN, Errno::MFILE, Errno::NFILE, Errno::INTR, Errno::NOBUFS];
    Errno::from_io_error(error).is_some_and(|error| PASSING.contains(&error))
}

fn failure(tool: &'static str, said: String) -> Error {
    let passes = PASSING.iter().any(|words| said.contains(words));
    if passes { Error::Busy { tool, said } } else { Error::Tool { tool, said } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_passes_is_told_from_what_stays() {
        for (script, expected) in [
            ("echo 'cache initialization failed: No buffer space available' >&2; exit 1", true),
            ("echo 'Another app is currently holding the xtables lock.' >&2; exit 4", true),
            ("kill -9 $$", true),
            ("echo 'cache initialization failed: Protocol not supported' >&2; exit 1", false),
            ("exit 3", false),
        ] {
            let error = run("sh", &["-c", script], "").await.expect_err("it fails");
            assert_eq!(matches!(error, Error::Busy { .. }), expected, "{script}: {error}");
        }
        // In no words, which are another C library's.
        for (error, expected) in [
            (Errno::NOMEM, true),
            (Errno::MFILE, true),
            (Errno::NOBUFS, true),
            (Errno::NOENT, false),
            (Errno::ACCESS, false),
        ] {
            assert_eq!(is_passing(&error.into()), expected, "{error}");
        }
        let missing = run("no-such-tool", &[], "").await;
        assert!(matches!(missing, Err(Error::Tool { .. })), "{missing:?}");
    }
}
