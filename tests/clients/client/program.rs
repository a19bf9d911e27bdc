//! The programs: their needs, and how to run them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use crate::support::stall;

/// The program, and the folder or file in this test's folder that specifies its version.
#[derive(Debug, Clone, Copy)]
pub(super) enum Program {
    Python {
        lock: &'static str,
        module: &'static str,
    },
    Go {
        module: &'static str,
        library: &'static str,
    },
    Node {
        lock: &'static str,
        library: &'static str,
    },
    Java {
        lock: &'static str,
        library: &'static str,
    },
    Rust {
        library: &'static str,
    },
    Shell {
        tool: &'static str,
    },
    /// A script that sends the requests of a program that is not installed.
    Replay {
        program: &'static str,
    },
    /// The program is in a Debian package, its Python packages are not.
    CloudInit {
        lock: &'static str,
    },
}

/// Below `target/`, so that `cargo clean` removes it.
fn installed() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients")
}

pub(super) fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(path)
}

/// For a program that runs for a second: a fast start and little memory.
const JVM: [&str; 4] = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx64m"];

/// The classes compiled by `javac`, and the libraries.
fn class_path(folder: &Path) -> String {
    format!("{0}/classes:{0}/lib/*", folder.display())
}

impl Program {
    pub(super) fn language(self) -> &'static str {
        match self {
            Self::Replay { program: "dotnet" } => ".NET",
            Self::Replay { program: "facter" } => "Ruby",
            Self::Python { .. } | Self::CloudInit { .. } => "Python",
            Self::Go { .. } | Self::Replay { .. } => "Go",
            Self::Node { .. } => "Node",
            Self::Java { .. } => "Java",
            Self::Rust { .. } => "Rust",
            Self::Shell { .. } => "shell",
        }
    }

    /// Needs of the program: names of rows in `tests/needs.tsv`.
    pub(super) fn needs(self) -> &'static [&'static str] {
        match self {
            Self::Python { .. } | Self::Replay { .. } => &["python3"],
            Self::Go { .. } => &["go"],
            Self::Node { .. } => &["node"],
            Self::Java { .. } => &["java", "maven"],
            // The toolchain that built this test is there.
            Self::Rust { .. } => &[],
            Self::Shell { tool: "curl" } => &["curl"],
            Self::Shell { .. } => &["wget"],
            Self::CloudInit { .. } => &["python3", "apt-get"],
        }
    }

    /// The folder that the program is installed in. Clients with the same packages share it.
    pub(super) fn folder(self) -> PathBuf {
        installed().join(match self {
            Self::Python { lock, .. } | Self::CloudInit { lock } => format!("python-{lock}"),
            Self::Go { module, .. } => format!("go-{module}"),
            Self::Node { lock, .. } => format!("node-{lock}"),
            Self::Java { lock, .. } => format!("java-{lock}"),
            Self::Rust { .. } => "rust".to_owned(),
            Self::Shell { .. } | Self::Replay { .. } => "shell".to_owned(),
        })
    }

    pub(super) fn command(self) -> Command {
        let folder = self.folder();
        let mut command;
        match self {
            Self::Python { module, .. } => {
                command = gentle(folder.join("bin/python"));
                command.arg(source("python/application.py")).arg(module);
            }
            Self::Go { library, .. } => {
                command = gentle(folder.join("client"));
                command.arg(library);
            }
            Self::Node { library, .. } => {
                command = gentle("node");
                command.env("NODE_PATH", folder.join("node_modules"));
                command.arg(source("node/application.js")).arg(library);
            }
            Self::Java { library, .. } => {
                command = gentle("java");
                command.args(JVM).arg("-cp").arg(class_path(&folder)).args(["Application", library]);
            }
            Self::Rust { library } => {
                command = gentle(folder.join("debug/client"));
                command.arg(library);
            }
            Self::Shell { tool } => {
                command = gentle("sh");
                command.arg(source("shell/application.sh")).arg(tool);
            }
            Self::Replay { program } => {
                command = gentle("python3");
                command.env("REPLAY", program).arg(source("python/application.py")).arg("with_replays");
            }
            Self::CloudInit { .. } => {
                command = gentle(folder.join("bin/python"));
                command.env("PYTHONPATH", folder.join("cloud-init/usr/lib/python3/dist-packages"));
                command.arg(source("python/application.py")).arg("with_cloud_init");
            }
        }
        command
    }
}

/// A program with low priority, so that the proxy and the upstream get the processor first. Their deadlines are in real
/// time, and a dozen clients that start at once, or a compiler, would make them miss these.
pub(super) fn gentle(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "10"]).arg(program);
    command
}

/// Runs a command, and returns its output; an error with all of its output if it fails.
pub(super) async fn output(command: &mut Command) -> Result<String, String> {
    let shown = format!("{:?}", command.as_std());
    let running = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn();
    let running = running.map_err(|error| format!("{shown}: {error}"))?;
    let watched = stall::watch_program(running.id());
    let output = tokio::select! {
        output = running.wait_with_output() => output,
        never = watched => match never {},
    };
    let output = output.map_err(|error| format!("{shown}: {error}"))?;
    let (printed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(printed.into_owned()) } else { Err(format!("{shown}: {printed}{said}")) }
}
