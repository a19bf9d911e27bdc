//! Installation of the versions in the lock files.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::OnceCell;
use tokio::time::sleep;

use super::program::{Program, gentle, output, source};

/// Pauses between the attempts of an installation.
const PAUSES: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];

impl Program {
    /// Installs the program once, however many clients and tests need it.
    pub(super) async fn install(self) -> Result<(), String> {
        type Once = Arc<OnceCell<Result<(), String>>>;
        static DONE: LazyLock<Mutex<HashMap<PathBuf, Once>>> = LazyLock::new(Mutex::default);
        let folder = self.folder();
        let once = Once::clone(DONE.lock().unwrap_or_else(PoisonError::into_inner).entry(folder.clone()).or_default());
        once.get_or_init(|| self.install_with_patience(&folder)).await.clone()
    }

    /// Tries again, from the start, because a mirror may refuse or break off a download.
    async fn install_with_patience(self, folder: &Path) -> Result<(), String> {
        for pause in PAUSES {
            let Err(error) = self.install_in(folder).await else { return Ok(()) };
            println!("installing into {} again after {pause:?}, because: {error}", folder.display());
            sleep(pause).await;
        }
        self.install_in(folder).await
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
                // Go itself checks whether anything has to be built.
                let mut build = gentle("go");
                build.args(["build", "-mod=readonly", "-buildvcs=false", "-o"]).arg(folder.join("client")).arg(".");
                output(build.current_dir(source(&format!("go/{module}")))).await.map(drop)
            }
            Self::Node { lock, .. } => {
                let (package, lock) =
                    (source(&format!("node/{lock}/package.json")), source(&format!("node/{lock}/package-lock.json")));
                once_for(&[&package, &lock], folder, node(&package, &lock, folder)).await
            }
            Self::Java { lock, .. } => {
                let sources = java_sources(lock).iter().map(|name| source(&format!("java/{name}"))).collect::<Vec<_>>();
                let (pom, jars) =
                    (source(&format!("java/{lock}/pom.xml")), source(&format!("java/{lock}/jars.sha256")));
                let made_from: Vec<&Path> = [&pom, &jars].into_iter().chain(&sources).map(PathBuf::as_path).collect();
                once_for(&made_from, folder, java(&pom, &jars, &sources, folder)).await
            }
            Self::Rust { .. } => {
                // Cargo itself checks whether anything has to be built.
                let mut build = gentle("cargo");
                build.args(["build", "--quiet", "--locked", "--target-dir"]).arg(folder).current_dir(source("rust"));
                output(&mut build).await.map(drop)
            }
            Self::Shell { .. } | Self::Replay { .. } => Ok(()),
        }
    }
}

/// Installs, unless the folder was made from exactly these lock files.
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
    // No optional package is used here.
    npm.args(["ci", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund", "--loglevel=error"]);
    output(npm.current_dir(folder)).await.map(drop)
}

/// The sources whose classes are all in a set of libraries.
fn java_sources(lock: &str) -> Vec<&'static str> {
    let of_all = ["Application.java", "Asking.java", "Library.java", "WithGoogleAuth.java"];
    let of_today = ["WithHttpClient.java", "WithHttpComponents.java", "WithOpenTelemetry.java", "WithRestClient.java"];
    if lock == "current" { [&of_all[..], &of_today].concat() } else { of_all.to_vec() }
}

/// Maven resolves and downloads. The files must match the committed checksums, because Maven has no lock file.
async fn java(pom: &Path, jars: &Path, sources: &[PathBuf], folder: &Path) -> Result<(), String> {
    let lib = folder.join("lib");
    let mut maven = gentle("mvn");
    maven.args(["--quiet", "--batch-mode", "--file"]).arg(pom).arg("dependency:copy-dependencies");
    maven.arg(format!("-DoutputDirectory={}", lib.display()));
    output(&mut maven).await?;
    output(gentle("sha256sum").args(["--check", "--quiet", "--strict"]).arg(jars).current_dir(&lib)).await?;
    let mut javac = gentle("javac");
    javac.arg("-d").arg(folder.join("classes")).arg("-cp").arg(lib.join("*")).args(sources);
    output(&mut javac).await.map(drop)
}

/// Unpacks a Debian package without installing it: an installed one would take part in the machine's next boot.
async fn debian(package: &str, folder: &Path) -> Result<(), String> {
    output(Command::new("apt-get").args(["download", "--quiet", package]).current_dir(folder)).await?;
    let files = fs::read_dir(folder).map_err(|error| error.to_string())?.filter_map(|entry| Some(entry.ok()?.path()));
    let file = files.into_iter().find(|file| file.extension().is_some_and(|extension| extension == "deb"));
    let file = file.ok_or_else(|| format!("apt-get download {package} left no package"))?;
    output(Command::new("dpkg-deb").arg("--extract").arg(file).arg(folder.join(package))).await.map(drop)
}
