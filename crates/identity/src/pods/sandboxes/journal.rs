//! [`Journal`]: a file that says which network a process read when it ended, for the next process.
//!
//! The kernel formats what it shows of a network in memory that is charged to the reader, so a pod that may configure its network
//! can end a proxy that reads it: see [`HostProc::has_few_routes`](crate::pods::host_proc::HostProc::has_few_routes). The next
//! proxy would read it again, and end again. So the pod is written down before its network is read, and the mark is removed afterwards. A
//! mark that is left names the pod. The second one closes its network, unless a process has read all networks in between: then the first
//! was chance, such as a restart.
//!
//! The file has lines of one length: the mark, and below it the pod of each mark that an earlier process left, the latest last.
//! It is not synced: a write outlives the process, and need not outlive the node.
//!
//! Somebody who can write the file can make any pod unknown. It cannot make a pod pass for another one. A file that others than
//! the proxy's user may write is not read.

use std::fs::File;
use std::io;
use std::iter;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::pods::PodUid;
use crate::pods::store::{Unusable, read_own, replace};

const NAME: &str = "network-reads";

/// The mark while no network is read. As long as a UID.
const NO_MARK: &str = "------------------------------------";

/// Number of marks that close a network. A single one may be chance: a proxy may be killed while it reads any network.
const CLOSED_AFTER: usize = 2;

/// Maximum number of marks that are kept: those of more pods than nodes have. The oldest are dropped.
const MAX_ENDS: usize = 1024;

/// The marks that earlier processes left, and the file for those of this one.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    /// Open for writing. `None` if it cannot be written.
    file: Option<File>,
    /// The pod of each mark that earlier processes left, the latest last.
    left: Vec<PodUid>,
    has_scanned: AtomicBool,
    has_failed: AtomicBool,
}

/// A network is read until this is dropped.
#[derive(Debug)]
pub(super) struct Reading<'a>(&'a Journal);

impl Journal {
    /// Reads the file in this directory, and makes it that of this process. The log says what is wrong with it.
    pub(super) fn open(dir: &Path) -> Self {
        let path = dir.join(NAME);
        let (mark, mut left) = read(&path).unwrap_or_else(|why| {
            tracing::warn!(file = %path.display(), "which networks earlier proxies could not read is not known now: {why}");
            Default::default()
        });
        left.extend(mark);
        left.drain(..left.len().saturating_sub(MAX_ENDS));
        let (has_scanned, has_failed) = (AtomicBool::new(false), AtomicBool::new(false));
        let mut journal = Self { path, file: None, left, has_scanned, has_failed };
        if let Some(uid) = mark.filter(|uid| journal.ends(*uid) < CLOSED_AFTER) {
            tracing::warn!(
                %uid,
                "the last proxy ended while it read the network of this pod; if the next one does, too, the pod gets 503. Check whether \
                 the proxy ran out of memory (OOMKilled), and who may add routing tables there (NET_ADMIN)"
            );
        }
        match replace(&journal.path, text(&journal.left).as_bytes()) {
            Ok(file) => journal.file = Some(file),
            Err(error) => journal.failed(&error),
        }
        journal
    }

    /// Number of processes that ended while they read the network of this pod.
    fn ends(&self, uid: PodUid) -> usize {
        self.left.iter().filter(|left| **left == uid).count()
    }

    /// Records that all networks were read but for the closed ones: single marks were chance.
    pub(super) fn scanned(&self) {
        let Some(file) = self.file.as_ref().filter(|_| !self.has_scanned.swap(true, Relaxed)) else { return };
        let closed: Vec<PodUid> = self.left.iter().copied().filter(|uid| self.ends(*uid) >= CLOSED_AFTER).collect();
        let text = text(&closed);
        let written = file.write_all_at(text.as_bytes(), 0).and_then(|()| file.set_len(text.len() as u64));
        if let Err(error) = written {
            self.failed(&error);
        }
    }

    /// Why the network of this pod is not to be read, for operators. `None` if it may be read.
    pub(super) fn why_closed(&self, uid: PodUid) -> Option<String> {
        let ends = Some(self.ends(uid)).filter(|ends| *ends >= CLOSED_AFTER)?;
        Some(format!(
            "the proxy has ended {ends} times while it read the network of this pod, probably by OOM because of its routing tables, \
             so its network is not read and it gets 503 until it is deleted and created again; check who may add routes there \
             (NET_ADMIN). If the proxy ended for another reason, delete the proxy's pod, or {} where the state directory is one of the node, and \
             restart the proxy",
            self.path.display()
        ))
    }

    /// Marks a pod whose network is read now.
    pub(super) fn reading(&self, uid: PodUid) -> Reading<'_> {
        self.mark(&uid.to_string());
        Reading(self)
    }

    fn mark(&self, mark: &str) {
        let Some(file) = &self.file else { return };
        if let Err(error) = file.write_all_at(mark.as_bytes(), 0) {
            self.failed(&error);
        }
    }

    /// Logs the first failure.
    fn failed(&self, error: &io::Error) {
        if !self.has_failed.swap(true, Relaxed) {
            let file = self.path.display();
            tracing::warn!(
                %file,
                "--state-dir: cannot keep which network is read: {error}; a pod whose routing tables end the proxy would end the next \
                 one, too"
            );
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.mark(NO_MARK);
    }
}

/// The file's text while no network is read.
fn text(left: &[PodUid]) -> String {
    iter::once(NO_MARK.to_owned()).chain(left.iter().map(PodUid::to_string)).collect::<Vec<_>>().join("\n")
}

/// The mark, and those left before.
fn read(path: &Path) -> Result<(Option<PodUid>, Vec<PodUid>), Unusable> {
    let Some(text) = read_own(path)? else { return Ok(Default::default()) };
    let mut lines = str::from_utf8(&text).map_err(|_| Unusable::Value("its text"))?.lines();
    let uid = |line| PodUid::parse(line).ok_or(Unusable::Value("a line"));
    let mark = lines.next().filter(|line| *line != NO_MARK).map(uid).transpose()?;
    Ok((mark, lines.map(uid).collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests;
