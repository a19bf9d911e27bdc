//! Process metrics (CPU, memory, files), under the names that Prometheus' client libraries use.
//!
//! Read from `/proc`. The prometheus crate's own collector is not used, because it counts CPU time in whole seconds, and
//! this proxy uses few.

use std::{fs, io};

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use super::export::{Exported, Family, Value};
use super::table;

/// The process's resource usage.
#[derive(Debug, PartialEq)]
struct ResourceUsage {
    cpu_seconds: f64,
    resident_bytes: f64,
    start_seconds: f64,
    open_files: f64,
    max_files: f64,
}

/// The metrics, for a registry. Left out if `/proc` cannot be read.
pub(super) fn exported() -> Exported {
    let rows = [&table::CPU_SECONDS, &table::RESIDENT_MEMORY, &table::START_TIME, &table::OPEN_FDS, &table::MAX_FDS];
    Exported::new(&rows, || ResourceUsage::now().map(|usage| usage.families()).unwrap_or_default())
}

impl ResourceUsage {
    fn families(&self) -> Vec<Family> {
        let one = |row, value| (row, vec![(Vec::new(), value)]);
        vec![
            one(&table::CPU_SECONDS, Value::Counter(self.cpu_seconds)),
            one(&table::RESIDENT_MEMORY, Value::Gauge(self.resident_bytes)),
            one(&table::START_TIME, Value::Gauge(self.start_seconds)),
            one(&table::OPEN_FDS, Value::Gauge(self.open_files)),
            one(&table::MAX_FDS, Value::Gauge(self.max_files)),
        ]
    }
}

#[expect(clippy::cast_precision_loss, reason = "no file count, page count or clock comes near 2^53")]
impl ResourceUsage {
    fn now() -> io::Result<Self> {
        let stat = fs::read_to_string("/proc/self/stat")?;
        let booted = fs::read_to_string("/proc/stat")?;
        let max_files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let open_files = open_files()?;
        let ticks = clock_ticks_per_second() as f64;
        Self::parse(&stat, &booted, ticks, page_size() as f64, (open_files as f64, max_files as f64))
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// Parses `/proc/self/stat` and `/proc/stat`, see proc(5). The fields follow the process's name, which is in
    /// parentheses and may itself contain parentheses.
    fn parse(stat: &str, booted: &str, ticks: f64, page: f64, files: (f64, f64)) -> Option<Self> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        // The first field after the name is number 3.
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let booted: f64 = booted.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / ticks,
            resident_bytes: field(24)? * page,
            start_seconds: booted + field(22)? / ticks,
            open_files: files.0,
            max_files: files.1,
        })
    }
}

/// The number of open files: the size of their directory since Linux 6.2. Before, it is 0, and each must be listed, which takes
/// as long for a thousand connections as the rest of the page.
fn open_files() -> io::Result<u64> {
    let directory = "/proc/self/fd";
    match fs::metadata(directory)?.len() {
        // Reading the directory opens one more file.
        0 => Ok(fs::read_dir(directory)?.count().saturating_sub(1) as u64),
        files => Ok(files),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_open_files_is_that_of_those_listed() {
        let _files: Vec<_> = (0..100).map(|_| fs::File::open("/proc/self/stat").expect("it is mounted")).collect();
        let listed = fs::read_dir("/proc/self/fd").expect("it is mounted").count();
        let counted = open_files().expect("it is mounted");
        // Tests on other threads open files, too.
        assert!(counted.abs_diff(listed as u64) < 50, "{counted}, not {listed}");
    }

    #[test]
    fn a_process_name_may_contain_parentheses() {
        let stat =
            "7 (a) b (c) R 1 7 7 0 -1 4194304 95 0 0 0 150 50 0 0 20 0 1 0 4200 2781184 256 18446744073709551615 1";
        let usage = ResourceUsage::parse(stat, "cpu 1 2\nbtime 1700000000\n", 100.0, 4096.0, (9.0, 1024.0));
        assert_eq!(
            usage,
            Some(ResourceUsage {
                cpu_seconds: 2.0,
                resident_bytes: 1_048_576.0,
                start_seconds: 1_700_000_042.0,
                open_files: 9.0,
                max_files: 1024.0,
            })
        );
    }

    #[test]
    fn this_process_can_be_read() {
        let usage = ResourceUsage::now().expect("/proc is mounted");
        assert!(
            usage.resident_bytes > 1e6 && usage.open_files >= 3.0 && usage.open_files < usage.max_files,
            "{usage:?}"
        );
        assert!(usage.start_seconds > 1.6e9, "{usage:?}");
    }
}
