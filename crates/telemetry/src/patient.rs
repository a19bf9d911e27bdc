//! [`Patient`]: the log's file, which may be a pipe that nobody reads.
//!
//! A full pipe blocks its writer: the one thread that serves, and every pod's request with it. It fills up where the container
//! runtime has stopped, or waits for a disk. So what cannot be written at once is dropped and counted.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Size of a write for which a pipe has room whenever it is writable, in bytes (pipe(7)).
const AT_ONCE: usize = 4096;

/// Lines that were dropped, or cut off, and not reported yet.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// A file of which each write is a line.
pub(super) struct Patient<F>(pub(super) F);

impl<F: Write + AsFd> Write for Patient<F> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        for part in line.chunks(AT_ONCE) {
            if !is_writable(&self.0) {
                DROPPED.fetch_add(1, Relaxed);
                break;
            }
            self.0.write_all(part)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Whether a write would not block, or would fail at once.
fn is_writable(file: &impl AsFd) -> bool {
    let mut files = [PollFd::new(file, PollFlags::OUT)];
    poll(&mut files, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Reports the lines that were dropped since the last call. To be called now and then.
pub(super) fn report() {
    let lines = DROPPED.swap(0, Relaxed);
    if lines > 0 {
        // If this one is dropped as well, it counts for the next report.
        tracing::warn!(
            lines,
            "log lines were dropped, because standard error was a full pipe that nobody read; see why the container runtime \
             did not read it: it had stopped, or its disk was full or slow"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_full_pipe_drops_lines_and_does_not_block() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let mut log = Patient(writer);
        let line = [b'a'; 1000];
        // A pipe has room for 64 KiB.
        for _ in 0..200 {
            assert_eq!(log.write(&line).expect("it is written or dropped"), line.len());
        }
        let dropped = DROPPED.swap(0, Relaxed);
        assert!((130..200).contains(&dropped), "{dropped}");
        let mut text = vec![0; 64 << 10];
        let read = reader.read(&mut text).expect("what was written");
        assert!(read >= 1000 && text[..read].iter().all(|byte| *byte == b'a'));
        assert_eq!(log.write(b"b").expect("there is room again"), 1);
        assert_eq!(DROPPED.swap(0, Relaxed), 0);
        // Longer than a pipe: what fits is written.
        assert_eq!(log.write(&vec![b'c'; 200 << 10]).expect("it is cut off"), 200 << 10);
        assert_eq!(DROPPED.swap(0, Relaxed), 1);
    }
}
