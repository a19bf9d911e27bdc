//! The binary as shipped.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// Builds the binary for release, without the mock.
pub fn release_build() -> Result<PathBuf, String> {
    let built_for_tests = Path::new(env!("CARGO_BIN_EXE_gce-metadata-proxy"));
    let target = built_for_tests.parent().and_then(Path::parent).ok_or("the binary has no target directory")?;
    // Not with println!, whose output the test harness captures: this takes minutes.
    let building = "building the release binary (cargo build --release --locked)";
    let _ = writeln!(std::io::stderr(), "{building}");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--release", "--locked", "--quiet", "--bin", "gce-metadata-proxy"]);
    let status = cargo.arg("--target-dir").arg(target).current_dir(env!("CARGO_MANIFEST_DIR")).status();
    match status {
        Ok(status) if status.success() => Ok(target.join("release/gce-metadata-proxy")),
        Ok(status) => Err(format!("cargo build --release: {status}")),
        Err(error) => Err(format!("cargo cannot be run: {error}")),
    }
}

/// The release binary, built once per process.
pub fn release() -> &'static Path {
    static RELEASE: LazyLock<PathBuf> = LazyLock::new(|| release_build().expect("it can be built"));
    &RELEASE
}
