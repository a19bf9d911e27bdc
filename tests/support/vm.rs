//! The virtual machine of `tests/vm`.

use std::process::{Command, ExitStatus};

/// What this computer needs for it (`tests/needs.tsv`).
pub const NEEDS: [&str; 5] = ["qemu", "busybox", "cpio", "apt-get", "setpriv"];

/// Exit code of `tests/vm/run` if the machine is not available.
const CANNOT: i32 = 77;

/// `tests/vm/run`, without its arguments.
pub fn run() -> Command {
    let mut run = Command::new("setpriv");
    // The machine must not outlive this process.
    run.args(["--pdeathsig", "TERM", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vm/run")]);
    run
}

/// Whether it ended because the machine is not available.
pub fn is_unavailable(status: ExitStatus) -> bool {
    status.code() == Some(CANNOT)
}
