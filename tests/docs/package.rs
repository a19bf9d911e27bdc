//! What a release on crates.io would contain.

use std::process::Command;

use crate::root;

/// Everything in the package is one of these, or below one that ends with a slash.
const CONTENT: [&str; 13] = [
    ".cargo_vcs_info.json",
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "Cargo.toml.orig",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "CONTRIBUTING.md",
    "benches/plots/",
    "docs/",
    "policies/",
    "src/",
];

/// Maximum number of files, so that nothing large creeps in below a directory that is allowed.
const MAX_FILES: usize = 450;

#[test]
fn the_package_has_sources_and_documentation_only() {
    let output = Command::new(env!("CARGO"))
        .args(["package", "--list", "--allow-dirty", "--offline", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .output()
        .expect("cargo runs this test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let list = String::from_utf8(output.stdout).expect("paths");
    let is_content =
        |path: &str| CONTENT.iter().any(|known| path == *known || known.ends_with('/') && path.starts_with(known));
    let others: Vec<_> = list.lines().filter(|path| !is_content(path)).collect();
    assert!(others.is_empty(), "files that do not belong in the package:\n{}", others.join("\n"));
    for needed in
        ["src/main.rs", "policies/compat.yaml", "policies/strict.yaml", "policies/schema.json", "README.md", "LICENSE"]
    {
        assert!(list.lines().any(|path| path == needed), "{needed} is missing from the package");
    }
    assert!(list.lines().count() <= MAX_FILES, "the package has {} files", list.lines().count());
}
