//! Number of worker threads: the whole cores of the cgroup's CPU quota, or one without a quota.
//!
//! One thread answers tens of thousands of requests per second, far more than a node's pods send. A second
//! one costs memory and makes every request slightly slower. So only an explicit quota of two or more cores
//! gives more than one.

use std::path::PathBuf;

use proxy::cgroup::{self, Version};

/// More threads would only contend for the shared token cache and limits.
const MAX_THREADS: u8 = 4;

/// Number of worker threads for this process.
pub fn count() -> usize {
    quota(&cgroup::folders("cpu")).map_or(1, whole)
}

/// The CPU quota in cores, if any, from version 2 or version 1 of the kernel's interface.
fn quota(folders: &[(Version, PathBuf)]) -> Option<f64> {
    let file = |version, file| cgroup::first(folders, version, file);
    if let Some(quota) = file(Version::One, "cpu.cfs_quota_us") {
        return ratio(&quota, &file(Version::One, "cpu.cfs_period_us")?);
    }
    let text = file(Version::Two, "cpu.max")?;
    let (quota, period) = text.trim().split_once(' ')?;
    ratio(quota, period)
}

/// `max` and `-1` mean that there is no quota.
fn ratio(quota: &str, period: &str) -> Option<f64> {
    let quota: f64 = quota.trim().parse().ok()?;
    let period: f64 = period.trim().parse().ok()?;
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// From 1 to [`MAX_THREADS`].
fn whole(cores: f64) -> usize {
    (1..=MAX_THREADS).rev().find(|threads| f64::from(*threads) <= cores).unwrap_or(1).into()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn quota(groups: &str, root: &Path) -> Option<f64> {
        super::quota(&cgroup::folders_in(groups, root, "cpu"))
    }

    /// Creates the files of a tree of control groups.
    fn tree(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("metadata-proxy-{}-{name}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a temporary folder");
            fs::write(path, text).expect("a temporary file");
        }
        root
    }

    #[test]
    fn the_quota_is_read_from_either_version() {
        let v2 = tree("v2", &[("pod/cpu.max", "50000 100000\n")]);
        assert_eq!(quota("0::/pod\n", &v2), Some(0.5));
        let inside = tree("inside", &[("cpu.max", "300000 100000\n")]);
        assert_eq!(quota("0::/kubepods/pod1\n", &inside), Some(3.0), "a container sees its own group as the root");
        let v1 = tree("v1", &[("cpu/pod/cpu.cfs_quota_us", "3000\n"), ("cpu/pod/cpu.cfs_period_us", "100000\n")]);
        assert_eq!(quota("5:memory:/pod\n4:cpu,cpuacct:/pod\n", &v1), Some(0.03));
        for root in [v2, inside, v1] {
            fs::remove_dir_all(root).expect("the temporary folder");
        }
    }

    #[test]
    fn without_a_quota_there_is_none() {
        let unlimited = tree(
            "none",
            &[("cpu.max", "max 100000\n"), ("cpu/cpu.cfs_quota_us", "-1\n"), ("cpu/cpu.cfs_period_us", "100000\n")],
        );
        for groups in ["", "0::/\n", "4:cpu:/\n", "4:memory:/\n", "nonsense"] {
            assert_eq!(quota(groups, &unlimited), None, "{groups:?}");
        }
        fs::remove_dir_all(unlimited).expect("the temporary folder");
    }

    #[test]
    fn only_whole_cores_count() {
        for (cores, threads) in [(0.03, 1), (1.0, 1), (1.9, 1), (2.0, 2), (3.5, 3), (64.0, MAX_THREADS)] {
            assert_eq!(whole(cores), usize::from(threads), "{cores}");
        }
    }
}
