//! [`Store`]: a file with the pods of this node, for a restart while the API server is unreachable.
//!
//! A UID is never used again, and a pod's namespace and account never change. The kernel says which UID has an address.
//! So a pod that was known before a restart is that pod after it, however old the file is. Reported addresses do
//! change: a pod has others after the node has restarted. They are trusted as long as those of a silent watch
//! (`owners::MAX_API_AGE`), and not at all after the node has restarted.
//!
//! The file contains no secrets. A process that may write it decides which account a pod of this node has, until the
//! API server lists its pods; so a file that others than the proxy's user may write is not read.

use std::cmp::Reverse;
use std::convert::Infallible;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::{Pod, PodUid, Pods};
use crate::cluster::NodeName;
use base::clock::BootTime;

/// The file.
const NAME: &str = "pods.json";

/// Extension of the temporary file that replaces a file.
const NEXT: &str = "next";

/// Version of the format. A file with another version is not read.
const VERSION: u32 = 1;

/// Maximum size of the file. A pod takes up to about 1,200 bytes, and a node has 110 by default.
const MAX_BYTES: u64 = 1 << 20;

/// Maximum number of pods in the file. The oldest are kept: a tenant that creates pods without end for this node does
/// not push out those that run.
const MAX_PODS: usize = 512;

/// Minimum and maximum time between two writes. Changes within the minimum are written together. The API server sends a
/// message at least once a minute even if nothing has changed, and then only the time is updated.
const INTERVALS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Differs each time the node starts.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A file in a directory that outlives the process.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
    node: NodeName,
    /// Boot ID of the node. Empty if it cannot be read: then each start of the process counts as a start of the node.
    boot: String,
}

/// Reason why a file is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error("{0}")]
    Unread(#[from] io::Error),
    #[error("it is not a file that only this user may write")]
    NotOwn,
    #[error("it has more than {MAX_BYTES} bytes")]
    TooLong,
    #[error("it is invalid: {0}")]
    Invalid(#[from] serde_json::Error),
    #[error("{0} is invalid")]
    Value(&'static str),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    version: u32,
    node: String,
    boot: String,
    /// Last time the API server was heard from, in nanoseconds since the node's start.
    heard: u64,
    pods: Vec<Row>,
}

/// A pod that may have an identity.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    uid: String,
    namespace: Arc<str>,
    name: Arc<str>,
    account: Arc<str>,
    terminating: bool,
    created: u64,
    addresses: Vec<std::net::IpAddr>,
}

impl From<&Pod> for Row {
    fn from(pod: &Pod) -> Self {
        Self {
            uid: pod.uid.to_string(),
            namespace: Arc::clone(&pod.namespace),
            name: Arc::clone(&pod.name),
            account: Arc::clone(&pod.account),
            terminating: pod.terminating,
            created: pod.created,
            addresses: pod.addresses.clone(),
        }
    }
}

impl Row {
    fn into_pod(self) -> Option<Pod> {
        let has_names = ![&self.namespace, &self.name, &self.account].iter().any(|name| name.is_empty());
        let uid = PodUid::parse(&self.uid).filter(|_| has_names)?;
        Some(Pod {
            uid,
            namespace: self.namespace,
            name: self.name,
            account: self.account,
            host_network: false,
            ended: false,
            terminating: self.terminating,
            created: self.created,
            addresses: self.addresses,
        })
    }
}

impl Store {
    /// A store in this directory, for this node.
    pub fn new(dir: &Path, node: &NodeName) -> Self {
        let boot = fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned();
        Self { dir: dir.to_owned(), node: node.clone(), boot }
    }

    /// Loads the pods of the file into `pods`, until the API server lists them. Without a valid file nothing is loaded,
    /// and the log says why.
    pub fn restore(&self, pods: &Pods) {
        let file = self.dir.join(NAME);
        match self.read(&file) {
            Ok(None) => tracing::info!(file = %file.display(), "no pods are known from before"),
            Ok(Some((known, heard))) => {
                let (count, age) = (known.len(), BootTime::now().seconds_since(heard));
                pods.restore(known, heard);
                tracing::info!(pods = count, age, "pods are known from before, until the API server lists them");
            }
            Err(why) => {
                tracing::warn!(file = %file.display(), "pods that were known before are not known now: {why}");
            }
        }
    }

    /// `None` if there is no file.
    fn read(&self, file: &Path) -> Result<Option<(Vec<Pod>, BootTime)>, Unusable> {
        let Some(text) = read_own(file)? else { return Ok(None) };
        let kept: Kept = serde_json::from_slice(&text)?;
        if kept.version != VERSION {
            return Err(Unusable::Value("version"));
        }
        if kept.node != self.node.as_str() {
            return Err(Unusable::Value("node"));
        }
        let known = kept.pods.into_iter().map(Row::into_pod).collect::<Option<Vec<Pod>>>();
        let mut known = known.ok_or(Unusable::Value("a pod"))?;
        if kept.boot.is_empty() || kept.boot != self.boot {
            // The API server was last heard from before the node started, so at least that long ago.
            for pod in &mut known {
                pod.addresses.clear();
            }
            return Ok(Some((known, BootTime::from_nanos(0))));
        }
        let heard = BootTime::from_nanos(kept.heard);
        if heard > BootTime::now() {
            return Err(Unusable::Value("heard"));
        }
        Ok(Some((known, heard)))
    }

    /// Writes `pods` to the file. A reader finds either this file or the one before it, complete.
    fn write(&self, pods: &Pods, heard: BootTime) -> io::Result<()> {
        let mut known = pods.all();
        known.retain(|pod| pod.has_identity());
        known.sort_by_key(|pod| (pod.created, Reverse(pod.uid)));
        let rows = known.iter().take(MAX_PODS).map(|pod| Row::from(&**pod)).collect();
        let (node, boot) = (self.node.to_string(), self.boot.clone());
        let text = serde_json::to_vec(&Kept { version: VERSION, node, boot, heard: heard.as_nanos(), pods: rows })?;
        // Not synced: after a crash of the node, the API server reports the pods again.
        replace(&self.dir.join(NAME), &text).map(drop)
    }
}

/// Puts a file with this content, which nobody else may read or write, in the place of another one. Returns it, open for writing.
/// Not synced.
pub(super) fn replace(path: &Path, content: &[u8]) -> io::Result<File> {
    let next = path.with_extension(NEXT);
    // Left behind by a process that ended while it wrote.
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&next)?;
    file.write_all(content)?;
    fs::rename(&next, path)?;
    Ok(file)
}

/// Reads a file that nobody else may write. `None` if there is none.
pub(super) fn read_own(path: &Path) -> Result<Option<Vec<u8>>, Unusable> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(io::Error::from(error).into()),
    };
    let metadata = file.metadata()?;
    let is_own = metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0;
    if !metadata.is_file() || !is_own {
        return Err(Unusable::NotOwn);
    }
    let mut text = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_BYTES { Err(Unusable::TooLong) } else { Ok(Some(text)) }
}

/// Keeps the file up to date with `pods`, forever. A failure is logged once until a write succeeds. `on` is told how each write
/// went: `None` if it succeeded.
pub async fn keep(store: Store, pods: Arc<Pods>, on: impl Fn(Option<&io::Error>) + Send) -> Infallible {
    let mut changes = pods.subscribe();
    // The pods that are known now count as a change.
    changes.mark_changed();
    let mut kept = None;
    let mut has_failed = false;
    loop {
        // The sender is in `pods`.
        let _ = timeout(INTERVALS.1, changes.changed()).await;
        sleep(INTERVALS.0).await;
        changes.mark_unchanged();
        let Some(heard) = pods.last_heard().filter(|heard| Some(*heard) != kept) else { continue };
        let (to, of) = (store.clone(), Arc::clone(&pods));
        let outcome = spawn_blocking(move || to.write(&of, heard)).await.map_err(io::Error::from).flatten();
        on(outcome.as_ref().err());
        match outcome {
            Ok(()) => (kept, has_failed) = (Some(heard), false),
            Err(error) if !has_failed => {
                has_failed = true;
                let dir = store.dir.display();
                tracing::warn!(%dir, "--state-dir: cannot keep which pods are known: {error}; a restart while the API server is away would lose them");
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
