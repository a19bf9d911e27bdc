//! The control groups of pods, as made by a kubelet with the driver `cgroupfs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::kube::pause;
use crate::support::cgroup::is_version_2;

const ROOT: &str = "/sys/fs/cgroup";

/// Hierarchies of version 1 that contain pods. The kubelet uses more; `cpuset` would have to be set up first.
const HIERARCHIES: [&str; 3] = ["memory", "pids", "systemd"];

/// The groups of all pods of a node, in a group of the test's own, as on a node in a container. They end with this value.
#[derive(Debug)]
pub struct Kubepods {
    dirs: Vec<PathBuf>,
}

impl Kubepods {
    pub fn new(name: &str) -> Self {
        let roots: Vec<PathBuf> = if is_version_2() {
            vec![ROOT.into()]
        } else {
            HIERARCHIES.iter().map(|hierarchy| Path::new(ROOT).join(hierarchy)).filter(|root| root.is_dir()).collect()
        };
        let dirs = roots.into_iter().map(|root| root.join(name).join("kubepods")).collect();
        let kubepods = Self { dirs };
        kubepods.dirs.iter().for_each(|dir| make(dir));
        kubepods
    }

    /// The groups of a pod and of its sandbox.
    pub fn pod(&self, uid: &str) -> PodGroup {
        // The ID of a container has 64 digits.
        let container = uid.replace('-', "").repeat(2);
        let dirs: Vec<PathBuf> = self.dirs.iter().map(|dir| dir.join(format!("pod{uid}")).join(&container)).collect();
        for dir in &dirs {
            make(dir);
        }
        PodGroup { dirs }
    }
}

impl Drop for Kubepods {
    fn drop(&mut self) {
        self.dirs.iter().for_each(|dir| remove_with_parent(dir));
    }
}

/// The groups of a pod. They end with this value, which must be after its processes.
#[derive(Debug)]
pub struct PodGroup {
    dirs: Vec<PathBuf>,
}

impl PodGroup {
    /// The files to which a process writes its ID in order to join.
    pub fn doors(&self) -> impl Iterator<Item = PathBuf> {
        self.dirs.iter().map(|dir| dir.join("cgroup.procs"))
    }

    /// Forgets the peak of its memory so far.
    pub fn reset_peak(&self) {
        for dir in &self.dirs {
            // Version 2 cannot do it before Linux 6.12, and the other hierarchies have no such file.
            let file = dir.join("memory.max_usage_in_bytes");
            if file.exists() {
                fs::write(file, "0").expect("it can be reset");
            }
        }
    }

    /// The peak of its memory in KiB, of the kernel's memory for it, too. `None` where the kernel does not say.
    pub fn peak_kib(&self) -> Option<u64> {
        let files = ["memory.max_usage_in_bytes", "memory.peak"];
        let mut files = self.dirs.iter().flat_map(|dir| files.map(|file| dir.join(file)));
        let text = files.find_map(|file| fs::read_to_string(file).ok())?;
        text.trim().parse::<u64>().ok().map(|bytes| bytes >> 10)
    }
}

impl Drop for PodGroup {
    fn drop(&mut self) {
        self.dirs.iter().for_each(|dir| remove_with_parent(dir));
    }
}

fn make(dir: &Path) {
    fs::create_dir_all(dir).unwrap_or_else(|error| panic!("{} cannot be made: {error}", dir.display()));
}

fn remove_with_parent(dir: &Path) {
    for dir in [Some(dir), dir.parent()].into_iter().flatten() {
        // A process that was just killed is in its group for a moment longer.
        let is_gone = (0..200).any(|_| {
            let is_gone = fs::remove_dir(dir).is_ok() || !dir.exists();
            if !is_gone {
                pause(Duration::from_millis(5));
            }
            is_gone
        });
        if !is_gone {
            eprintln!("the control group {} could not be removed", dir.display());
        }
    }
}
