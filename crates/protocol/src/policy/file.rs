//! Reads policy files. Accepts regular files only, limits their size, and never blocks on a FIFO or device.

use std::fs::{self, File, FileType, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::{Mode, OFlags};

/// Maximum size of a policy file, in bytes. One that lists every key in Google's documentation takes 5 KB.
const MAX_BYTES: u64 = 256 * 1024;

/// Reason why a policy file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// An error of the operating system.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The path names a directory, FIFO, socket or device.
    #[error("it is {0}, not a regular file; give the path of a regular file, or of a symbolic link to one")]
    Irregular(&'static str),
    /// The file has more than `MAX_BYTES`.
    #[error("it has more than {MAX_BYTES} bytes, the maximum; is it the right file?")]
    TooLong,
    /// The file is not UTF-8.
    #[error("it is not UTF-8 text; write it again as UTF-8")]
    NotText,
}

/// Content of a policy file.
#[derive(Debug)]
pub struct Content {
    /// The whole file.
    pub text: String,
    /// Modification time, by the clock of the file system. `None` if the file system has none.
    pub modified: Option<SystemTime>,
}

/// Reads a file of at most 256 KiB. Follows symbolic links, which a mounted `ConfigMap` consists of.
pub(super) fn read(path: &Path) -> Result<Content, FileError> {
    // Opening a device can have effects, and a socket cannot be opened.
    only_regular(&fs::metadata(path)?)?;
    let mut bytes = Vec::new();
    let mut file = open(path)?;
    (&mut file).take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(FileError::TooLong);
    }
    let text = String::from_utf8(bytes).map_err(|_| FileError::NotText)?;
    // After the read, so that a write that began before the read ended is noticed.
    Ok(Content { text, modified: file.metadata()?.modified().ok() })
}

/// Opens a file without waiting for it. The path may name another file than a moment ago, so the open file is checked.
fn open(path: &Path) -> Result<File, FileError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)?);
    only_regular(&file.metadata()?)?;
    Ok(file)
}

fn only_regular(metadata: &Metadata) -> Result<(), FileError> {
    if metadata.is_file() { Ok(()) } else { Err(FileError::Irregular(kind(metadata.file_type()))) }
}

fn kind(irregular: FileType) -> &'static str {
    if irregular.is_dir() {
        "a directory"
    } else if irregular.is_fifo() {
        "a FIFO"
    } else if irregular.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    /// A directory that is removed at the end of the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("metadata-proxy-policy-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).expect("a directory");
            Self(path)
        }

        fn file(&self, bytes: &[u8]) -> PathBuf {
            let path = self.0.join("file");
            fs::write(&path, bytes).expect("written");
            path
        }

        fn fifo(&self) -> PathBuf {
            let path = self.0.join("fifo");
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_a_regular_file_is_read() {
        let folder = Folder::new("kinds");
        let file = folder.file(b"text");
        let socket = folder.0.join("socket");
        let _listener = UnixListener::bind(&socket).expect("a socket");
        let fifo = folder.fifo();
        let link = |name: &str, to: &Path| {
            let link = folder.0.join(name);
            symlink(to, &link).expect("a link");
            link
        };
        let (good, bad) = (link("good", &file), link("bad", &fifo));
        assert_eq!(read(&link("again", &good)).expect("a link to a link to a file").text, "text");
        for (path, kind) in [
            (&*fifo, "a FIFO"),
            (&bad, "a FIFO"),
            (&socket, "a socket"),
            (&folder.0, "a directory"),
            (Path::new("/dev/zero"), "a device"),
        ] {
            let error = read(path).expect_err("not a regular file");
            assert!(matches!(error, FileError::Irregular(found) if found == kind), "{}: {error:?}", path.display());
        }
        let error = read(&fifo).expect_err("a FIFO").to_string();
        let expected =
            "it is a FIFO, not a regular file; give the path of a regular file, or of a symbolic link to one";
        assert_eq!(error, expected);
    }

    /// As if the path had named a regular file at the first check. Without a writer, a blocking `open` would never
    /// return.
    #[test]
    fn a_fifo_does_not_block_even_if_it_is_opened() {
        let error = open(&Folder::new("race").fifo()).expect_err("a FIFO");
        assert!(matches!(error, FileError::Irregular("a FIFO")), "{error:?}");
    }

    #[test]
    fn the_size_is_limited() {
        let folder = Folder::new("size");
        let most = usize::try_from(MAX_BYTES).expect("small");
        assert_eq!(read(&folder.file(&vec![b'#'; most])).expect("a file").text.len(), most);
        // The limit cuts the last character in two.
        let longer = [&vec![b'#'; most], "é".as_bytes()].concat();
        assert!(matches!(read(&folder.file(&longer)), Err(FileError::TooLong)));
        assert!(matches!(read(&folder.file(b"name: \xff")), Err(FileError::NotText)));
    }
}
