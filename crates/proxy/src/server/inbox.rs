//! [`Inbox`]: bytes that a client has sent and hyper has not read.
//!
//! Buffers a request head until it is complete, so that a client that sends it one byte at a time costs only
//! those bytes and no HTTP state. While a request is being answered, later bytes stay here and in the kernel.
//! hyper gets one head at a time, so pipelining cannot make it buffer more.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::ReadBuf;

use super::framing::{HeadScanner, MAX_HEAD_BYTES};
use super::socket::Socket;

/// Bytes read from the socket at a time while a head is incomplete. The heads of client libraries have 200 to 600
/// bytes.
const CHUNK_BYTES: usize = 2048;

/// The buffer for a head grows in steps of this many bytes.
const STEP_BYTES: usize = 512;

#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    /// Number of bytes already passed to hyper.
    taken: usize,
    /// Scans the first head, from `taken` to `scanned`.
    scanner: HeadScanner,
    scanned: usize,
    /// The kernel may hold bytes for which no readiness event will arrive.
    has_skipped: bool,
}

/// State of the next request head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gathered {
    /// A complete head, or one that can be refused already.
    Head,
    /// An incomplete head, or no bytes.
    Part,
    /// The client disconnected before the head was complete.
    End,
}

impl Inbox {
    /// Reads from the socket until a head is complete. Ready whenever new bytes arrived.
    pub(super) fn poll_gather<I: Socket>(&mut self, io: &mut I, cx: &mut Context<'_>) -> Poll<io::Result<Gathered>> {
        if self.has_head() {
            return Poll::Ready(Ok(Gathered::Head));
        }
        let mut chunk = [MaybeUninit::uninit(); CHUNK_BYTES];
        let mut chunk = ReadBuf::uninit(&mut chunk);
        ready!(self.poll_receive(io, &mut chunk, cx))?;
        if chunk.filled().is_empty() {
            return Poll::Ready(Ok(Gathered::End));
        }
        self.append(chunk.filled());
        Poll::Ready(Ok(if self.has_head() { Gathered::Head } else { Gathered::Part }))
    }

    /// Reads from the socket directly, bypassing this inbox, which must be empty.
    pub(super) fn poll_receive<I: Socket>(
        &mut self,
        io: &mut I,
        buf: &mut ReadBuf<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.has_skipped {
            let room = buf.initialize_unfilled();
            let size = room.len();
            match io.try_receive(room) {
                Ok(received) => {
                    self.has_skipped = received == size;
                    buf.advance(received);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.has_skipped = false,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Pin::new(io).poll_read(cx, buf)
    }

    /// Ready once the client has closed its side, even if unread bytes remain here or in the kernel.
    pub(super) fn poll_end<I: Socket>(&mut self, io: &I, cx: &mut Context<'_>) -> Poll<()> {
        io.poll_end(&mut self.has_skipped, cx)
    }

    /// Stores bytes that followed a head.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        let free = self.bytes.capacity() - self.bytes.len();
        if free < bytes.len() {
            self.bytes.reserve_exact((bytes.len()).next_multiple_of(STEP_BYTES));
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Puts bytes that hyper did not use back at the front.
    pub(super) fn put_back(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.bytes.splice(..self.taken, bytes.iter().copied());
            (self.taken, self.scanned) = (0, 0);
            self.scanner = HeadScanner::default();
        }
    }

    /// Copies as many bytes as fit into the buffer.
    pub(super) fn hand_to(&mut self, buf: &mut ReadBuf<'_>) {
        let hand = buf.remaining().min(self.bytes.len() - self.taken);
        buf.put_slice(&self.bytes[self.taken..self.taken + hand]);
        self.taken += hand;
        if self.taken == self.bytes.len() {
            (self.bytes, self.taken) = (Vec::new(), 0);
        }
        self.scanned = self.taken;
        self.scanner = HeadScanner::default();
    }

    /// Whether the inbox is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether there are bytes, here or in the kernel, that were not passed on.
    pub(super) fn may_have_more(&self) -> bool {
        !self.is_empty() || self.has_skipped
    }

    /// Allocated memory, in bytes.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Whether it contains an incomplete head.
    pub(super) fn mid_head(&self) -> bool {
        self.scanner.mid_head()
    }

    /// Whether hyper can act on the bytes: parse a complete head, or refuse one that is invalid or too large.
    fn has_head(&mut self) -> bool {
        let had_head = |scanner: &HeadScanner| scanner.heads() > 0 || scanner.is_over();
        while self.scanned < self.bytes.len() && !had_head(&self.scanner) {
            self.scanned += self.scanner.scan(&self.bytes[self.scanned..]).taken;
        }
        had_head(&self.scanner) || self.bytes.len() - self.taken >= MAX_HEAD_BYTES
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEAD: &[u8] = b"GET / HTTP/1.1\r\nHost: metadata\r\n\r\n";

    fn hand(inbox: &mut Inbox, room: usize) -> Vec<u8> {
        let mut bytes = vec![0; room];
        let mut buf = ReadBuf::new(&mut bytes);
        inbox.hand_to(&mut buf);
        buf.filled().to_vec()
    }

    #[test]
    fn a_head_is_complete_with_its_last_byte() {
        let mut inbox = Inbox::default();
        for byte in &HEAD[..HEAD.len() - 1] {
            inbox.append(&[*byte]);
            assert!(!inbox.has_head());
        }
        assert!(inbox.mid_head());
        inbox.append(&HEAD[HEAD.len() - 1..]);
        assert!(inbox.has_head());
        assert!(inbox.capacity() <= STEP_BYTES, "the buffer grows in small steps");
    }

    #[test]
    fn a_head_that_is_too_large_or_invalid_is_passed_on() {
        let mut inbox = Inbox::default();
        inbox.append(&[b'x'; MAX_HEAD_BYTES]);
        assert!(inbox.has_head());
        let mut inbox = Inbox::default();
        inbox.append(b"GET / HTTP/1.1\n");
        assert!(inbox.has_head());
    }

    proptest! {
        /// No byte is lost or duplicated, for any sequence of appending, passing on and putting back.
        #[test]
        fn every_byte_is_passed_on_once(steps in prop::collection::vec((0usize..50, 1usize..40, 0usize..10), 0..30)) {
            let mut inbox = Inbox::default();
            let (mut sent, mut got) = (Vec::new(), Vec::new());
            for (append, room, put_back) in steps {
                let bytes: Vec<u8> = (0..append).map(|at| u8::try_from((sent.len() + at) % 251).expect("small")).collect();
                inbox.append(&bytes);
                sent.extend(bytes);
                inbox.has_head();
                got.extend(hand(&mut inbox, room));
                let keep = got.len() - put_back.min(got.len());
                inbox.put_back(&got[keep..]);
                got.truncate(keep);
            }
            got.extend(hand(&mut inbox, 10_000));
            prop_assert_eq!(got, sent);
            prop_assert!(inbox.is_empty());
        }
    }
}
