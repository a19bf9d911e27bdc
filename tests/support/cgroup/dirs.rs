//! [`Dirs`]: the directories of a control group. Also used by the load laboratory (`benches/load`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// One directory in version 2, one for each controller in version 1. Removed on drop, which must happen after the processes in
/// them have ended.
#[derive(Debug, Default)]
pub struct Dirs(Vec<PathBuf>);

impl Dirs {
    pub fn make(&mut self, dir: &Path) -> io::Result<PathBuf> {
        fs::create_dir(dir)?;
        self.0.push(dir.to_owned());
        Ok(dir.to_owned())
    }

    pub fn iter(&self) -> impl Iterator<Item = &PathBuf> {
        self.0.iter()
    }

    /// The files that a process writes its ID to in order to join the group.
    pub fn doors(&self) -> impl Iterator<Item = PathBuf> {
        self.0.iter().map(|dir| dir.join("cgroup.procs"))
    }
}

impl Drop for Dirs {
    fn drop(&mut self) {
        for dir in &self.0 {
            // A process that was just killed remains in its group for a moment.
            let is_gone = (0..200).any(|_| {
                let removed = fs::remove_dir(dir).is_ok();
                if !removed {
                    pause();
                }
                removed
            });
            if !is_gone {
                eprintln!("the control group {} could not be removed; `rmdir` it", dir.display());
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a drop cannot await, and there is nothing left to stop or to measure")]
fn pause() {
    sleep(Duration::from_millis(10));
}
