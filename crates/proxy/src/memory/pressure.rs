//! [`Pressure`]: compares the memory usage of the control group with its limit.
//!
//! Only memory that the kernel cannot reclaim counts: heap, sockets, kernel objects. The pages of the program itself
//! are also charged to the group if it was the first to read them, as after a reboot. They are read from disk again
//! when they are needed, and are no reason to close connections. The same holds for the kernel's caches of files, such
//! as those of each process of the node whose `/proc` directory workload identity reads.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::cgroup::{self, Version};
use telemetry::labels;

labels! {
    /// Levels of memory pressure.
    Level {
        /// No pressure.
        Normal = "normal",
        /// From 60 % of the limit: idle connections release their buffers immediately.
        Thrifty = "thrifty",
        /// From 65 %: connections that make no progress are closed, those of the client that holds most
        /// first.
        Closing = "closing",
        /// From 80 %: the client that holds most gets no new connections, and its oldest connections are cut.
        Cutting = "cutting",
    }
}

/// Threshold of each level, in percent of the limit. A level ends [`HYSTERESIS_PERCENT`] below its threshold.
const THRESHOLD_PERCENT: [u64; Level::ALL.len()] = [0, 60, 65, 80];

/// Hysteresis, in percent of the limit, so that the level does not flap with every connection.
const HYSTERESIS_PERCENT: u64 = 3;

/// Bytes charged since the last measurement that trigger a new one.
const MEASURE_AFTER_BYTES: usize = 256 * 1024;

/// Minimum interval between reads of `memory.stat`, which cost twenty times as much as reads of the usage.
const STAT_INTERVAL: Duration = Duration::from_millis(100);

/// Memory usage of a control group, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Current usage without file pages. Includes sockets in version 2, and in version 1 if it counts them.
    pub current: u64,
    pub limit: u64,
}

/// Memory pressure of the control group. Without a limit there is never any pressure.
#[derive(Debug, Default)]
pub struct Pressure {
    group: Option<Group>,
    level: AtomicU8,
    /// Bytes charged since the last measurement.
    taken: AtomicUsize,
}

/// A control group with a limit, and the files that report its usage.
#[derive(Debug)]
struct Group {
    limit: u64,
    current: Vec<File>,
    /// `memory.stat`.
    stat: Option<File>,
    files: Mutex<Files>,
}

/// What was charged to the group and can be reclaimed, at the last reading.
#[derive(Debug, Default)]
struct Files {
    bytes: u64,
    read: Option<Instant>,
}

impl Pressure {
    /// Opens the control group of this process.
    pub fn of_this_process() -> Self {
        Self { group: Group::open(&cgroup::folders("memory")), ..Self::default() }
    }

    /// The limit in bytes, if there is one.
    pub fn limit(&self) -> Option<u64> {
        self.group.as_ref().map(|group| group.limit)
    }

    /// Current usage, or `None` without a limit.
    pub fn usage(&self) -> Option<Usage> {
        self.group.as_ref()?.usage()
    }

    /// The level of the last measurement.
    pub fn level(&self) -> Level {
        Level::ALL[usize::from(self.level.load(Relaxed))]
    }

    /// Records that this many bytes were charged, and measures again if many were charged since the last measurement: a
    /// burst grows faster than a timer fires.
    pub fn took(&self, bytes: usize) -> Level {
        if self.group.is_some() && self.taken.fetch_add(bytes, Relaxed) + bytes >= MEASURE_AFTER_BYTES {
            self.measure();
        }
        self.level()
    }

    /// Measures the control group's usage, which takes about two microseconds. Returns the number of bytes above the
    /// threshold of [`Level::Closing`].
    pub fn measure(&self) -> u64 {
        let Some(usage) = self.usage() else { return 0 };
        self.taken.store(0, Relaxed);
        let level = level_at(usage, self.level());
        self.level.store(level as u8, Relaxed);
        usage.current.saturating_sub(usage.limit / 100 * THRESHOLD_PERCENT[Level::Closing as usize])
    }
}

/// The next level, given the current one and the usage.
fn level_at(usage: Usage, before: Level) -> Level {
    let percent = usage.current.saturating_mul(100) / usage.limit.max(1);
    let holds = |level: Level| {
        let from = THRESHOLD_PERCENT[level as usize];
        percent >= if level as u8 <= before as u8 { from.saturating_sub(HYSTERESIS_PERCENT) } else { from }
    };
    Level::ALL.into_iter().rev().find(|level| holds(*level)).unwrap_or(Level::Normal)
}

impl Group {
    fn open(folders: &[(Version, std::path::PathBuf)]) -> Option<Self> {
        folders.iter().find_map(|(version, folder)| {
            let (limit, current): (_, &[&str]) = match version {
                Version::Two => ("memory.max", &["memory.current"]),
                Version::One => ("memory.limit_in_bytes", &["memory.usage_in_bytes", "memory.kmem.tcp.usage_in_bytes"]),
            };
            let limit = limit_in(&std::fs::read_to_string(folder.join(limit)).ok()?)?;
            let current: Vec<_> = current.iter().filter_map(|file| File::open(folder.join(file)).ok()).collect();
            let stat = File::open(folder.join("memory.stat")).ok();
            (!current.is_empty()).then(|| Self { limit, current, stat, files: Mutex::default() })
        })
    }

    fn usage(&self) -> Option<Usage> {
        let all = self.current.iter().map(read).sum::<Option<u64>>()?;
        Some(Usage { current: all.saturating_sub(self.files(all)), limit: self.limit })
    }

    /// What is charged to the group and can be reclaimed while its total memory is `all`. They are not read as long as no level
    /// could hold even with them.
    fn files(&self, all: u64) -> u64 {
        let mut files = self.files.lock();
        let is_old = files.read.is_none_or(|read| read.elapsed() >= STAT_INTERVAL);
        let is_tense = all >= self.limit / 100 * (THRESHOLD_PERCENT[Level::Thrifty as usize] - HYSTERESIS_PERCENT);
        if is_old && is_tense {
            *files = Files { bytes: self.stat.as_ref().and_then(read_files).unwrap_or(0), read: Some(Instant::now()) };
        }
        if is_tense { files.bytes } else { 0 }
    }
}

/// Parses a limit in bytes. Without a limit, version 2 reports `max`, and version 1 a number larger than any machine's
/// memory.
fn limit_in(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|limit| *limit < 1 << 60)
}

/// What `memory.stat` has of file pages and of the kernel's caches of files, in bytes. The caches are listed in version 2
/// only; the other names are the same in both versions.
fn read_files(stat: &File) -> Option<u64> {
    let mut text = [0; 8 * 1024];
    let size = stat.read_at(&mut text, 0).ok()?;
    let lines = std::str::from_utf8(&text[..size]).ok()?.lines();
    let fields = lines.filter_map(|line| line.split_once(' '));
    let wanted = fields.filter(|(name, _)| matches!(*name, "active_file" | "inactive_file" | "slab_reclaimable"));
    Some(wanted.filter_map(|(_, bytes)| bytes.parse::<u64>().ok()).sum())
}

fn read(file: &File) -> Option<u64> {
    let mut text = [0; 24];
    let size = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text[..size]).ok()?.trim().parse().ok()
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// Creates the files of a control group.
    pub(crate) fn group(name: &str, version: Version, files: &[(&str, &str)]) -> (PathBuf, Pressure) {
        let folder = std::env::temp_dir().join(format!("metadata-proxy-{}-memory-{name}", std::process::id()));
        fs::create_dir_all(&folder).expect("a temporary folder");
        for (file, text) in files {
            fs::write(folder.join(file), text).expect("a temporary file");
        }
        let group = Group::open(&[(version, folder.clone())]);
        (folder, Pressure { group, ..Pressure::default() })
    }

    #[test]
    fn levels_follow_the_usage_with_hysteresis() {
        let (folder, pressure) =
            group("levels", Version::Two, &[("memory.max", "100000000\n"), ("memory.current", "0\n")]);
        for (percent, level) in [
            (59, Level::Normal),
            (60, Level::Thrifty),
            (58, Level::Thrifty),
            (56, Level::Normal),
            (75, Level::Closing),
            (80, Level::Cutting),
            (78, Level::Cutting),
            (76, Level::Closing),
            (61, Level::Thrifty),
            (10, Level::Normal),
        ] {
            fs::write(folder.join("memory.current"), format!("{}\n", percent * 1_000_000)).expect("the file");
            let above = pressure.measure();
            assert_eq!(pressure.level(), level, "at {percent} %");
            assert_eq!(above, u64::saturating_sub(percent, 65) * 1_000_000);
        }
        fs::remove_dir_all(folder).expect("the temporary folder");
    }

    #[tokio::test(start_paused = true)]
    async fn pages_of_files_are_no_pressure() {
        for version in [Version::One, Version::Two] {
            let files = match version {
                Version::One => [("memory.limit_in_bytes", "1000\n"), ("memory.usage_in_bytes", "900\n")],
                Version::Two => [("memory.max", "1000\n"), ("memory.current", "900\n")],
            };
            let stat = |pages: u64| {
                format!("anon 1\ninactive_file {pages}\nactive_file 60\nunevictable 0\nslab_reclaimable 40\n")
            };
            let (folder, pressure) = group(&format!("files-{version:?}"), version, &files);
            fs::write(folder.join("memory.stat"), stat(400)).expect("the file");
            let pressure = Pressure { group: Group::open(&[(version, folder.clone())]), ..pressure };
            assert_eq!((pressure.measure(), pressure.level()), (0, Level::Normal), "400 cannot be given back");
            fs::write(folder.join("memory.stat"), stat(0)).expect("the file");
            tokio::time::advance(STAT_INTERVAL).await;
            pressure.measure();
            assert_eq!(pressure.level(), Level::Cutting, "800 cannot");
            fs::write(folder.join("memory.stat"), stat(100)).expect("the file");
            fs::write(folder.join(files[1].0), "580\n").expect("the file");
            tokio::time::advance(STAT_INTERVAL).await;
            pressure.measure();
            assert_eq!(pressure.level(), Level::Normal, "380 cannot, and 580 would hold a level");
            fs::remove_dir_all(folder).expect("the temporary folder");
        }
    }

    #[test]
    fn many_charged_bytes_trigger_a_measurement() {
        let (folder, pressure) = group("taken", Version::Two, &[("memory.max", "1000\n"), ("memory.current", "900\n")]);
        assert_eq!(pressure.took(MEASURE_AFTER_BYTES - 1), Level::Normal, "not measured yet");
        assert_eq!(pressure.took(1), Level::Cutting);
        fs::remove_dir_all(folder).expect("the temporary folder");
    }

    #[test]
    fn version_one_counts_sockets_separately() {
        let files = [
            ("memory.limit_in_bytes", "1000\n"),
            ("memory.usage_in_bytes", "300\n"),
            ("memory.kmem.tcp.usage_in_bytes", "200\n"),
        ];
        let (folder, pressure) = group("one", Version::One, &files);
        assert_eq!(pressure.usage(), Some(Usage { current: 500, limit: 1000 }));
        fs::remove_dir_all(folder).expect("the temporary folder");
    }

    #[test]
    fn without_a_limit_there_is_no_pressure() {
        for (name, version, limit) in [
            ("none", Version::Two, ("memory.max", "max\n")),
            ("none-one", Version::One, ("memory.limit_in_bytes", "9223372036854771712\n")),
        ] {
            let (folder, pressure) =
                group(name, version, &[limit, ("memory.current", "9\n"), ("memory.usage_in_bytes", "9\n")]);
            assert_eq!(
                (pressure.limit(), pressure.took(MEASURE_AFTER_BYTES), pressure.measure()),
                (None, Level::Normal, 0)
            );
            fs::remove_dir_all(folder).expect("the temporary folder");
        }
    }
}
