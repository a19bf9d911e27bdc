//! The clients, and how to install and run them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::support::needs;
use crate::told::{Step, Told};

/// One client library or tool.
#[derive(Debug)]
pub(crate) struct Client {
    /// Its name in tests and expectations.
    pub(crate) name: &'static str,
    /// Its name in the table.
    pub(crate) library: &'static str,
    /// What it is written for.
    pub(crate) language: &'static str,
    program: Program,
    /// What its application does in a session.
    pub(crate) steps: &'static [Step],
    /// The most connections that its session makes: fewer than its requests, if it keeps them. Go's libraries make one more
    /// where the next request comes before the last connection is back in the pool.
    pub(crate) connections: u64,
    /// How often each of its requests is refused before the crowd goes that has all the seats: never, if all that it asks for
    /// is known and needs no seat; else once, or as often as it asks without a pause.
    pub(crate) refusals: u64,
}

/// What runs, and the folder or file beside this one that says of which version.
#[derive(Debug, Clone, Copy)]
enum Program {
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
    Shell {
        tool: &'static str,
    },
    /// Its package is Debian's, and its Python packages are not.
    CloudInit {
        lock: &'static str,
    },
}

/// All of them.
pub(crate) const CLIENTS: &[Client] = {
    use Program::{CloudInit, Go, Node, Python, Shell};
    use Step::{Account, Crawl, Detect, Identity, Project, Refresh, Scoped, Token, Universe, Watch};
    &[
        Client {
            name: "google-auth",
            library: "google-auth",
            language: "Python",
            program: Python { lock: "google-auth", module: "with_google_auth" },
            steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity, Universe],
            connections: 4,
            refusals: 1,
        },
        Client {
            name: "google-auth-2020",
            library: "google-auth",
            language: "Python",
            program: Python { lock: "google-auth-2020", module: "with_google_auth" },
            steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity],
            connections: 5,
            refusals: 5,
        },
        Client {
            name: "oauth2client",
            library: "oauth2client",
            language: "Python",
            program: Python { lock: "oauth2client", module: "with_oauth2client" },
            steps: &[Detect, Project, Token, Account, Refresh],
            connections: 2,
            refusals: 0,
        },
        Client {
            name: "boto-plugin",
            library: "gcs-oauth2-boto-plugin",
            language: "Python",
            program: Python { lock: "boto-plugin", module: "with_boto_plugin" },
            steps: &[Detect, Token, Refresh],
            connections: 3,
            refusals: 0,
        },
        Client {
            name: "go-metadata",
            library: "cloud.google.com/go/compute/metadata",
            language: "Go",
            program: Go { module: "current", library: "metadata" },
            steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity, Universe, Watch],
            connections: 2,
            refusals: 1,
        },
        Client {
            name: "go-auth",
            library: "cloud.google.com/go/auth",
            language: "Go",
            program: Go { module: "current", library: "auth" },
            steps: &[Project, Scoped, Refresh, Identity, Universe],
            connections: 2,
            refusals: 1,
        },
        Client {
            name: "go-oauth2",
            library: "golang.org/x/oauth2/google",
            language: "Go",
            program: Go { module: "current", library: "oauth2" },
            steps: &[Project, Token, Scoped, Refresh, Universe],
            connections: 2,
            refusals: 1,
        },
        Client {
            name: "go-metadata-2020",
            library: "cloud.google.com/go/compute/metadata",
            language: "Go",
            program: Go { module: "2020", library: "metadata" },
            steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity],
            connections: 2,
            refusals: 1,
        },
        Client {
            name: "go-oauth2-2020",
            library: "golang.org/x/oauth2/google",
            language: "Go",
            program: Go { module: "2020", library: "oauth2" },
            steps: &[Project, Token, Scoped, Refresh],
            connections: 2,
            refusals: 1,
        },
        Client {
            name: "gcp-metadata",
            library: "gcp-metadata",
            language: "Node",
            program: Node { lock: "current", library: "gcp-metadata" },
            steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity, Universe],
            connections: 2,
            refusals: 1,
        },
        Client {
            name: "node-auth",
            library: "google-auth-library",
            language: "Node",
            program: Node { lock: "current", library: "google-auth-library" },
            steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity, Universe],
            // One for each request, whatever the proxy does.
            connections: 20,
            refusals: 1,
        },
        Client {
            name: "gcp-metadata-2020",
            library: "gcp-metadata",
            language: "Node",
            program: Node { lock: "2020", library: "gcp-metadata" },
            steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity],
            connections: 2,
            refusals: 1,
        },
        Client {
            name: "node-auth-2020",
            library: "google-auth-library",
            language: "Node",
            program: Node { lock: "2020", library: "google-auth-library" },
            steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity],
            // One for each request, whatever the proxy does.
            connections: 20,
            refusals: 1,
        },
        Client {
            name: "curl",
            library: "curl --retry 5",
            language: "shell",
            program: Shell { tool: "curl" },
            steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity, Universe, Watch],
            connections: 10,
            refusals: 1,
        },
        Client {
            name: "wget",
            library: "wget --tries 5",
            language: "shell",
            program: Shell { tool: "wget" },
            steps: &[Detect, Project, Token, Account, Scoped, Refresh, Identity, Universe, Watch],
            connections: 10,
            refusals: 1,
        },
        Client {
            name: "cloud-init",
            library: "cloud-init, data source GCE",
            language: "Python",
            program: CloudInit { lock: "cloud-init" },
            steps: &[Crawl],
            connections: 15,
            refusals: 0,
        },
    ]
};

/// What a client's program is to do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Task<'a> {
    /// These steps, once.
    Session(&'a [Step]),
    /// One token.
    Token,
    /// So many tokens at once.
    Many(usize),
    /// Token after token, until this file exists.
    Stay(&'a Path),
}

/// A program that hangs fails its test instead of stopping it. Longer than all that a client's own time-outs come to.
const PATIENCE: Duration = Duration::from_secs(90);

/// Below `target/`, so that `cargo clean` takes it away.
fn installed() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients")
}

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(path)
}

impl Client {
    /// What it cannot run without: names of rows in `tests/needs.tsv`.
    pub(crate) fn needs(&self) -> &'static [&'static str] {
        match self.program {
            Program::Python { .. } => &["python3"],
            Program::Go { .. } => &["go"],
            Program::Node { .. } => &["node"],
            Program::Shell { tool: "curl" } => &["curl"],
            Program::Shell { .. } => &["wget"],
            Program::CloudInit { .. } => &["python3", "apt-get"],
        }
    }

    /// What this machine does not have of that.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        needs::missing(self.needs())
    }

    /// Installs it, unless that has been done.
    pub(crate) async fn install(&self) -> Result<(), String> {
        self.program.install().await
    }

    /// Runs it against a proxy, and returns what it tells.
    pub(crate) async fn run(&self, proxy: SocketAddr, task: Task<'_>) -> Result<Told, String> {
        let mut command = self.program.command();
        match task {
            Task::Session(steps) => command.arg("session").args(steps.iter().map(|step| step.name())),
            Task::Token => command.arg("token"),
            Task::Many(count) => command.arg("many").arg(count.to_string()),
            Task::Stay(until) => command.arg("stay").arg(until),
        };
        let addr = proxy.to_string();
        // Not at home, where other credentials may be, and without a proxy for the proxy.
        command
            .env("HOME", "/nonexistent")
            .env_remove("GOOGLE_APPLICATION_CREDENTIALS")
            .env_remove("GOOGLE_CLOUD_PROJECT");
        for variable in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
            command.env_remove(variable);
        }
        for variable in ["GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT"] {
            command.env(variable, &addr);
        }
        let printed = timeout(PATIENCE, output(&mut command)).await;
        Told::read(&printed.map_err(|_| format!("{} is not done after {PATIENCE:?}", self.name))??)
    }
}

impl Program {
    /// Where it is installed. Clients with the same packages share them.
    fn folder(self) -> PathBuf {
        installed().join(match self {
            Self::Python { lock, .. } | Self::CloudInit { lock } => format!("python-{lock}"),
            Self::Go { module, .. } => format!("go-{module}"),
            Self::Node { lock, .. } => format!("node-{lock}"),
            Self::Shell { .. } => "shell".to_owned(),
        })
    }

    fn command(self) -> Command {
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
            Self::Shell { tool } => {
                command = gentle("sh");
                command.arg(source("shell/application.sh")).arg(tool);
            }
            Self::CloudInit { .. } => {
                command = gentle(folder.join("bin/python"));
                command.env("PYTHONPATH", folder.join("cloud-init/usr/lib/python3/dist-packages"));
                command.arg(source("python/application.py")).arg("with_cloud_init");
            }
        }
        command
    }

    /// Installs it once, however many clients in however many tests want it.
    async fn install(self) -> Result<(), String> {
        type Once = Arc<OnceCell<Result<(), String>>>;
        static DONE: LazyLock<Mutex<HashMap<PathBuf, Once>>> = LazyLock::new(Mutex::default);
        let folder = self.folder();
        let once = Once::clone(DONE.lock().unwrap_or_else(PoisonError::into_inner).entry(folder.clone()).or_default());
        once.get_or_init(|| self.install_in(&folder)).await.clone()
    }

    async fn install_in(self, folder: &Path) -> Result<(), String> {
        match self {
            Self::Python { lock, .. } => {
                let lock = source(&format!("python/{lock}.txt"));
                once_for(&[&lock], folder, python(&lock, folder)).await
            }
            Self::CloudInit { lock } => {
                let lock = source(&format!("python/{lock}.txt"));
                once_for(&[&lock], folder, async {
                    python(&lock, folder).await?;
                    debian("cloud-init", folder).await
                })
                .await
            }
            Self::Go { module, .. } => {
                // Go knows best whether there is anything to do.
                let mut build = gentle("go");
                build.args(["build", "-mod=readonly", "-buildvcs=false", "-o"]).arg(folder.join("client")).arg(".");
                output(build.current_dir(source(&format!("go/{module}")))).await.map(drop)
            }
            Self::Node { lock, .. } => {
                let (package, lock) =
                    (source(&format!("node/{lock}/package.json")), source(&format!("node/{lock}/package-lock.json")));
                once_for(&[&package, &lock], folder, node(&package, &lock, folder)).await
            }
            Self::Shell { .. } => Ok(()),
        }
    }
}

/// Installs, unless the folder was made from just these lock files.
async fn once_for(
    locks: &[&Path],
    folder: &Path,
    install: impl Future<Output = Result<(), String>>,
) -> Result<(), String> {
    let wanted: String = locks.iter().map(|lock| fs::read_to_string(lock).expect("lock files are committed")).collect();
    let mark = folder.join("installed-from");
    if fs::read_to_string(&mark).ok().as_ref() == Some(&wanted) {
        return Ok(());
    }
    println!("installing {} into {}", locks[locks.len() - 1].display(), folder.display());
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| error.to_string())?;
    }
    fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    install.await?;
    fs::write(mark, wanted).map_err(|error| error.to_string())
}

async fn python(lock: &Path, folder: &Path) -> Result<(), String> {
    output(gentle("python3").args(["-m", "venv"]).arg(folder)).await?;
    let mut pip = gentle(folder.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--require-hashes", "--requirement"]).arg(lock);
    output(&mut pip).await.map(drop)
}

async fn node(package: &Path, lock: &Path, folder: &Path) -> Result<(), String> {
    for file in [package, lock] {
        let name = file.file_name().expect("a file");
        fs::copy(file, folder.join(name)).map_err(|error| error.to_string())?;
    }
    let mut npm = gentle("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
    output(npm.current_dir(folder)).await.map(drop)
}

/// Unpacks one of Debian's packages, without installing it: it would take part in the machine's next boot.
async fn debian(package: &str, folder: &Path) -> Result<(), String> {
    output(Command::new("apt-get").args(["download", "--quiet", package]).current_dir(folder)).await?;
    let files = fs::read_dir(folder).map_err(|error| error.to_string())?.filter_map(|entry| Some(entry.ok()?.path()));
    let file = files.into_iter().find(|file| file.extension().is_some_and(|extension| extension == "deb"));
    let file = file.ok_or_else(|| format!("apt-get download {package} left no package"))?;
    output(Command::new("dpkg-deb").arg("--extract").arg(file).arg(folder.join(package))).await.map(drop)
}

/// A program that leaves the processor to the proxy and the upstream when both want it. Their deadlines are real time, and a
/// dozen clients that start at once, or a compiler, would make them miss those.
fn gentle(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "10"]).arg(program);
    command
}

/// Runs a command, and returns what it printed; an error with all that it said if it fails.
async fn output(command: &mut Command) -> Result<String, String> {
    let running = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let shown = format!("{:?}", command.as_std());
    let output = running.await.map_err(|error| format!("{shown}: {error}"))?;
    let (printed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(printed.into_owned()) } else { Err(format!("{shown}: {printed}{said}")) }
}
