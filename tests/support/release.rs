//! The binary as shipped.

use std::ffi::OsStr;
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
    // Cargo sets these for a test, and build scripts that name them (ring's) would build nearly all again, now and afterwards.
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_cargo(name)) {
        cargo.env_remove(name);
    }
    let status = cargo.arg("--target-dir").arg(target).current_dir(env!("CARGO_MANIFEST_DIR")).status();
    match status {
        Ok(status) if status.success() => Ok(target.join("release/gce-metadata-proxy")),
        Ok(status) => Err(format!("cargo build --release: {status}")),
        Err(error) => Err(format!("cargo cannot be run: {error}")),
    }
}

/// Whether cargo sets this variable for what it builds and runs.
fn is_of_cargo(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| name.starts_with(prefix)) || name == "OUT_DIR"
}

/// The release binary, built once per process.
pub fn release() -> &'static Path {
    static RELEASE: LazyLock<PathBuf> = LazyLock::new(|| release_build().expect("it can be built"));
    &RELEASE
}
