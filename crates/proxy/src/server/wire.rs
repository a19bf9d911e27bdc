//! [`Watched`]: a client's socket as hyper sees it, with both directions observed.
//!
//! Incoming bytes pass the [`HeadScanner`]. Outgoing bytes are hyper's, with one exception: hyper answers an
//! invalid head with a bare status. Every response of the proxy carries the metadata flavor and a sentence
//! that explains the error, so the bare response is replaced.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use smallvec::SmallVec;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::activity::Activity;
use super::framing::{HeadScanner, MAX_HEAD_BYTES};
use super::inbox::Inbox;
use super::large::{LargeWrite, LargeWrites};
use super::socket::{Cuttable, Socket};
use crate::shares::Client;

/// Maximum size of a single write, in bytes. Head and body of a small response fit and are written in one
/// piece, which is faster than two writes even with the copy. It also bounds what the kernel queues for a
/// client beyond its send buffer.
const MAX_WRITE_BYTES: usize = 4096;

/// The same for a [`LargeWrite`].
const MAX_LARGE_WRITE_BYTES: usize = 28 * 1024;

#[derive(Debug)]
pub(super) struct Watched<I: Socket> {
    io: Cuttable<I>,
    /// Bytes that the client has sent and hyper has not read.
    inbox: Inbox,
    scanner: HeadScanner,
    activity: Arc<Activity>,
    /// Unwritten rest of the response that replaces hyper's own.
    replacement: Bytes,
    large_writes: (Arc<LargeWrites>, Client),
    /// Ends after the socket, because fields are dropped in this order: the kernel has the piece for as long.
    large: Option<LargeWrite>,
}

impl<I: Socket> Watched<I> {
    pub(super) fn new(
        io: Cuttable<I>,
        inbox: Inbox,
        activity: Arc<Activity>,
        large_writes: (Arc<LargeWrites>, Client),
    ) -> Self {
        let (scanner, replacement) = (HeadScanner::default(), Bytes::new());
        Self { io, inbox, scanner, activity, replacement, large_writes, large: None }
    }

    pub(super) fn into_parts(self) -> (Option<LargeWrite>, Cuttable<I>, Inbox) {
        (self.large, self.io, self.inbox)
    }
}

impl<I: Socket> AsyncRead for Watched<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        // After the last head there is nothing to read until its response has ended, and then only what the client sends in vain.
        let waits = this.activity.is_answering() || !this.scanner.is_over();
        if waits && !this.activity.may_have_next_head() && !this.scanner.is_in_body() {
            // hyper would treat an empty read as the end of the stream and cancel the request.
            let ended = this.inbox.poll_end(&*this.io, cx);
            this.activity.note_more(this.inbox.may_have_more());
            return ended.map(Ok);
        }
        let before = buf.filled().len();
        if this.inbox.is_empty() {
            let received = this.inbox.poll_receive(&mut *this.io, buf, cx);
            if received.is_pending() {
                this.activity.note_more(false);
            }
            ready!(received)?;
        } else {
            this.inbox.hand_to(buf);
        }
        let received = &mut buf.filled_mut()[before..];
        if !received.is_empty() {
            let heads = this.scanner.heads();
            let found = this.scanner.scan(received);
            if let Some(at) = found.lone_lf {
                received[at] = 0;
            }
            if found.taken < received.len() {
                this.inbox.put_back(&received[found.taken..]);
                buf.set_filled(before + found.taken);
            }
            let scanner = &this.scanner;
            let mid_request = scanner.mid_head() || scanner.is_in_body();
            this.activity.received(scanner.heads() - heads, mid_request, scanner.body_announced());
        }
        this.activity.note_more(this.inbox.may_have_more());
        Poll::Ready(Ok(()))
    }
}

impl<I: Socket> Watched<I> {
    /// Discards hyper's own response and stores its replacement.
    fn replaces(&mut self, written: &[u8]) -> bool {
        if !self.activity.has_unread_head() {
            return false;
        }
        let Some(replacement) = instead_of(written) else { return false };
        self.replacement = replacement;
        true
    }

    fn noted(&self, written: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(_)) => {
                if self.activity.sent() {
                    self.io.close_by_reset(false);
                    // Resumes paused work: the next head, or more of this response.
                    cx.waker().wake_by_ref();
                }
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                if self.activity.blocked() {
                    // After a normal close the kernel would keep unread bytes for minutes.
                    self.io.close_by_reset(true);
                }
            }
        }
        written
    }

    /// Sends a piece of a response. `is_whole`: hyper has nothing more to write now.
    fn send(&mut self, cx: &mut Context<'_>, piece: &[u8], is_whole: bool) -> Poll<io::Result<usize>> {
        if is_whole && self.replaces(piece) {
            return Poll::Ready(Ok(piece.len()));
        }
        let is_last = is_whole && self.activity.writes_last();
        let written = self.io.poll_send(piece, is_last, cx);
        if self.large.is_some() && matches!(written, Poll::Ready(Ok(_))) {
            self.large = None;
        }
        self.noted(written, cx)
    }

    /// How many of these bytes to write as a large piece: none, unless they are enough for one before the small one that ends it, and the
    /// client may have it.
    fn large_piece(&mut self, bytes: &[u8]) -> Option<usize> {
        let most = bytes.len().checked_sub(MAX_WRITE_BYTES).filter(|most| *most > MAX_WRITE_BYTES)?;
        if self.large.is_none() {
            let (writes, client) = &self.large_writes;
            self.large = Some(writes.begin(*client)?);
        }
        Some(most.min(MAX_LARGE_WRITE_BYTES))
    }

    fn write_replacement(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.replacement.is_empty() {
            let written = Pin::new(&mut *self.io).poll_write(cx, &self.replacement);
            self.replacement.advance(ready!(self.noted(written, cx))?);
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: Socket> AsyncWrite for Watched<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if let Some(length) = self.large_piece(buf) {
            let written = self.io.poll_send(&buf[..length], false, cx);
            return self.noted(written, cx);
        }
        self.send(cx, &buf[..buf.len().min(MAX_WRITE_BYTES)], buf.len() <= MAX_WRITE_BYTES)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [only] = bufs {
            return self.poll_write(cx, only);
        }
        let length: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut piece = SmallVec::<[u8; MAX_WRITE_BYTES]>::new();
        for buf in bufs {
            piece.extend_from_slice(&buf[..buf.len().min(MAX_WRITE_BYTES - piece.len())]);
        }
        self.send(cx, &piece, length <= MAX_WRITE_BYTES)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_replacement(cx))?;
        Pin::new(&mut *self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.activity.wants_reset() {
            // A FIN would signal a normal close to the client.
            return Poll::Ready(Ok(()));
        }
        // The caller closes the socket, or shuts it down after lingering.
        self.write_replacement(cx)
    }
}

/// The replacement for a response that hyper made itself. The proxy's own responses all carry
/// `Metadata-Flavor`; hyper's have no body.
fn instead_of(written: &[u8]) -> Option<Bytes> {
    let head = std::str::from_utf8(written).ok()?;
    let is_bare = head.ends_with("\r\n\r\n") && !head.to_ascii_lowercase().contains("\r\nmetadata-flavor:");
    // hyper answers in the version of the request before.
    let (status, sentence) = match head.strip_prefix("HTTP/1.")?.get(1..5)? {
        " 400" => ("400 Bad Request", "Bad request: this is not well-formed HTTP/1.1.".to_owned()),
        " 414" => ("414 URI Too Long", "Refused: the request target is too long.".to_owned()),
        " 431" => (
            "431 Request Header Fields Too Large",
            format!("Refused: a request's head may have at most {MAX_HEAD_BYTES} bytes and 100 headers."),
        ),
        _ => return None,
    };
    is_bare.then(|| {
        Bytes::from(format!(
            "HTTP/1.1 {status}\r\nMetadata-Flavor: Google\r\nServer: gce-metadata-proxy\r\n\
             Content-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n{sentence}\n",
            sentence.len() + 1
        ))
    })
}

#[cfg(test)]
mod tests;
