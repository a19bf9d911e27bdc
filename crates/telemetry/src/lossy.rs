//! [`Lossy`]: the log's file, which may be a pipe that nobody reads.
//!
//! A full pipe blocks its writer: a thread that serves, and every pod's request with it. It fills up where the container runtime has
//! stopped, or waits for a disk. So what cannot be written at once is dropped, and the next line says how many lines were.

use std::io::{self, Write};
use std::mem;
use std::os::fd::AsFd;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::time::Instant;

/// Size of a write for which a pipe has room whenever it is writable, in bytes (pipe(7)). A line break may precede it.
const AT_ONCE: usize = 4095;

/// Time that a line waits for room: the reader may only be late. At most once in [`PATIENT_EVERY`].
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
const PATIENT_EVERY: Duration = Duration::from_secs(1);

/// What the log lacks. The process has one log.
static LOSSES: Mutex<Losses> = Mutex::new(Losses { lines: 0, is_cut: false, waited: None });

#[derive(Debug)]
struct Losses {
    /// Lines that were dropped or cut off, and not reported yet.
    lines: u64,
    /// Whether the last line that was written has no end.
    is_cut: bool,
    /// Last time a line waited for room.
    waited: Option<Instant>,
}

/// A file of which each write is a line.
pub(super) struct Lossy<F> {
    pub(super) file: F,
    /// Makes the line that says how many lines were dropped.
    pub(super) report: fn(u64) -> String,
}

impl<F: Write + AsFd> Write for Lossy<F> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let losses = &mut *LOSSES.lock();
        if losses.lines > 0 && is_writable(&self.file, Timespec::default()) {
            let report = (self.report)(mem::take(&mut losses.lines));
            self.write_part(losses, report.as_bytes())?;
        }
        for (at, part) in line.chunks(AT_ONCE).enumerate() {
            if !losses.has_room(&self.file) {
                losses.lines += 1;
                losses.is_cut |= at > 0;
                break;
            }
            self.write_part(losses, part)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl<F: Write> Lossy<F> {
    fn write_part(&mut self, losses: &mut Losses, part: &[u8]) -> io::Result<()> {
        if mem::take(&mut losses.is_cut) {
            self.file.write_all(b"\n")?;
        }
        self.file.write_all(part)
    }
}

impl Losses {
    fn has_room(&mut self, file: &impl AsFd) -> bool {
        if is_writable(file, Timespec::default()) {
            return true;
        }
        let now = Instant::now();
        if self.waited.is_some_and(|waited| now.duration_since(waited) < PATIENT_EVERY) {
            return false;
        }
        self.waited = Some(now);
        is_writable(file, PATIENCE)
    }
}

/// Whether a write of [`AT_ONCE`] bytes does not block within this time, or fails.
fn is_writable(file: &impl AsFd, within: Timespec) -> bool {
    let mut files = [PollFd::new(file, PollFlags::OUT)];
    poll(&mut files, Some(&within)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_full_pipe_drops_lines_does_not_block_and_the_next_line_says_so() {
        let (mut reader, file) = io::pipe().expect("a pipe");
        let mut log = Lossy { file, report: |lines| format!("{lines} lost\n") };
        let mut line = vec![b'a'; 999];
        line.push(b'\n');
        // A pipe has room for 64 KiB.
        for _ in 0..200 {
            assert_eq!(log.write(&line).expect("it is written or dropped"), line.len());
        }
        let dropped = LOSSES.lock().lines;
        assert!((130..200).contains(&dropped), "{dropped}");
        let mut text = vec![0; 1 << 20];
        let read = reader.read(&mut text).expect("what was written");
        assert!(text[..read].chunks(1000).all(|read| read == line));

        // Longer than a pipe: what fits is written.
        let too_much = vec![b'c'; 200 << 10];
        assert_eq!(log.write(&too_much).expect("it is cut off"), too_much.len());
        let read = reader.read(&mut text).expect("what was written");
        let (report, cut) = text[..read].split_at(text.iter().position(|byte| *byte == b'\n').expect("a line") + 1);
        assert_eq!(str::from_utf8(report).expect("text"), format!("{dropped} lost\n"));
        assert!(cut.iter().all(|byte| *byte == b'c'));

        assert_eq!(log.write(b"b\n").expect("there is room again"), 2);
        let read = reader.read(&mut text).expect("what was written");
        let text = str::from_utf8(&text[..read]).expect("text");
        assert_eq!(text, "\n1 lost\nb\n");
    }
}
