//! The virtual machine for tests that need another kernel (`tests/vm`).

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{env, fs};

use libtest_mimic::{Completion, Failed};

use crate::process::BINARY;
use crate::support::{needs, switch, vm};

/// Maximum duration of a test, in seconds.
const LIMIT: &str = "3600";

/// What the tests run, other than what `tests/kube/build` builds.
const PROGRAMS: [&str; 15] = [
    "bash",
    "curl",
    "ip",
    "ip6tables",
    "ip6tables-restore",
    "ip6tables-save",
    "ipset",
    "iptables",
    "iptables-restore",
    "iptables-save",
    "nft",
    "nsenter",
    "openssl",
    "setpriv",
    "unshare",
];

/// What these read: protocols by their names, and defaults for certificates.
const DATA: [&str; 2] = ["/etc/protocols", "/etc/ssl/openssl.cnf"];

/// Whether it may take long: an emulated processor needs 10 minutes on an idle computer, and several times that on a busy one.
pub fn is_wanted() -> bool {
    switch::is_full_size()
}

/// Set in the machine.
const EMULATED: &str = "METADATA_PROXY_EMULATED";

/// Factor for all time limits: everything takes longer in an emulated machine.
pub fn patience() -> u32 {
    if switch::is_on(EMULATED) { 10 } else { 1 }
}

/// Runs a test of this binary in the machine.
pub fn run(name: &str) -> Result<Completion, Failed> {
    let mut machine = vm::run();
    machine.args(["-n", "-t", LIMIT]);
    let tests = env::current_exe()?;
    for file in files(&tests)? {
        machine.arg("-f").arg(file);
    }
    let status = machine.arg(command(&tests, name)).status()?;
    if vm::is_unavailable(status) {
        return needs::cannot_run("needs a virtual machine (standard error says why there is none)".to_owned());
    }
    if !status.success() {
        return Err(format!("{status} in the virtual machine; its output is above").into());
    }
    Ok(Completion::Completed)
}

/// The command of the machine. Its programs are links to the files that are carried in.
fn command(tests: &Path, name: &str) -> String {
    let links = PROGRAMS.iter().filter_map(|program| Some((found(program)?, format!("/bin/{program}"))));
    // Some extensions are several names of one file.
    let links = links.chain(
        extensions()
            .unwrap_or_default()
            .into_iter()
            .filter_map(|link| Some((fs::canonicalize(&link).ok()?, link.to_str()?.to_owned()))),
    );
    let links = links.filter(|(file, link)| file != Path::new(link));
    let links = links.map(|(file, link)| format!("ln -sf {} {link}; ", file.display())).collect::<Vec<_>>().concat();
    let variables = ["HOME", "XDG_CACHE_HOME"].map(|name| (name, env::var(name)));
    let variables: String =
        variables.into_iter().filter_map(|(name, value)| Some(format!("{name}={} ", value.ok()?))).collect();
    format!(
        "{links}mkdir -p /usr/bin /run/netns /var; ln -sf /bin/busybox /usr/bin/env; ln -sfn /run /var/run; hostname node; \
         echo 'root:x:0:0::/root:/bin/sh' > /etc/passwd; mkdir -p {tmp}; cd {manifest}; \
         export {variables} PATH=/usr/sbin:/usr/bin:/bin OPENSSL_CONF=/etc/ssl/openssl.cnf METADATA_PROXY_TESTS=all {EMULATED}=1; \
         {} --exact {name} --nocapture",
        tests.display(),
        tmp = env!("CARGO_TARGET_TMPDIR"),
        manifest = env!("CARGO_MANIFEST_DIR"),
    )
}

/// Everything that the test reads or runs there.
fn files(tests: &Path) -> Result<Vec<PathBuf>, Failed> {
    let kube = crate::kube::programs();
    let mut files =
        vec![tests.to_owned(), BINARY.into(), concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kube/build").into()];
    files.extend(["etcd", "kube-apiserver", "kube-proxy"].map(|program| kube.join(program)));
    files.extend(PROGRAMS.iter().filter_map(|program| found(program)));
    files.extend(DATA.map(PathBuf::from).into_iter().filter(|file| file.exists()));
    files.extend(extensions()?);
    Ok(files)
}

/// The parts of `iptables` for each kind of condition and target.
fn extensions() -> Result<Vec<PathBuf>, Failed> {
    let places = [format!("/usr/lib/{}-linux-gnu/xtables", env::consts::ARCH), "/usr/lib/xtables".to_owned()];
    let place = places.iter().find(|place| Path::new(place).is_dir()).ok_or("iptables has no directory xtables")?;
    let files = fs::read_dir(place)?.map(|file| Ok(file?.path())).collect::<Result<Vec<_>, Failed>>()?;
    Ok(files.into_iter().filter(|file| file.extension() == Some(OsStr::new("so"))).collect())
}

/// The file of a program, without symbolic links, as `tests/vm/run` carries it.
fn found(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).find_map(|place| fs::canonicalize(place.join(program)).ok())
}
