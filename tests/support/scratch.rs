//! [`Scratch`]: a directory for the files of one test.

use std::fs;
use std::path::{Path, PathBuf};

/// Removed on drop.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates a directory. Tests of one process must not have the same name.
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("metadata-proxy-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// The path of a file, which need not exist.
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).into_os_string().into_string().expect("temporary paths are text")
    }

    /// Writes a file, and returns its path.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).expect("written");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
