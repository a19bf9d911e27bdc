//! Finds the files of this process's control group, in version 2 or version 1.

use std::fs;
use std::path::{Path, PathBuf};

/// Mount point of control groups.
const ROOT: &str = "/sys/fs/cgroup";

/// Interface version of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for each controller.
    One,
    /// One hierarchy.
    Two,
}

/// The folders that may contain a controller's files for this process, the most likely first. They are of version 2 if
/// the controller has no hierarchy of its own.
pub fn folders(controller: &str) -> Vec<(Version, PathBuf)> {
    folders_in(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default(), Path::new(ROOT), controller)
}

/// Like [`folders`], given the text of `/proc/self/cgroup`.
pub fn folders_in(groups: &str, root: &Path, controller: &str) -> Vec<(Version, PathBuf)> {
    let mut folders = Vec::new();
    for line in groups.lines() {
        let Some((controllers, path)) = line.split_once(':').and_then(|(_, rest)| rest.split_once(':')) else {
            continue;
        };
        let path = path.trim_start_matches('/');
        if controllers.is_empty() {
            // A container sees its own group as the root.
            folders.extend([(Version::Two, root.join(path)), (Version::Two, root.to_owned())]);
        } else if controllers.split(',').any(|found| found == controller) {
            // The group may be mounted under its path on the host, or as the root.
            let own = [root.join(controller).join(path), root.join(controllers).join(path), root.join(controller)];
            folders.splice(..0, own.map(|folder| (Version::One, folder)));
        }
    }
    folders
}

/// Reads the file of this name in the first folder that has it.
pub fn first(folders: &[(Version, PathBuf)], version: Version, file: &str) -> Option<String> {
    let mut of_version = folders.iter().filter(|(found, _)| *found == version);
    of_version.find_map(|(_, folder)| fs::read_to_string(folder.join(file)).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controllers_own_hierarchy_comes_before_the_unified_one() {
        let groups = "12:memory:/kubepods/pod1\n4:cpu,cpuacct:/pod\n0::/system.slice\n";
        let folders = folders_in(groups, Path::new("/c"), "memory");
        assert_eq!(folders[0], (Version::One, "/c/memory/kubepods/pod1".into()));
        assert_eq!(folders[3], (Version::Two, "/c/system.slice".into()));
        let folders = folders_in("0::/\n", Path::new("/c"), "memory");
        assert_eq!(folders[0], (Version::Two, "/c/".into()));
    }
}
