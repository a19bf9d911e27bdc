//! [`Wire`]: a connection's socket with its buffers.

use std::future::Future;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::head::{MAX_HEAD_BYTES, Request};
use super::journal::Journal;
use super::refusal::Refusal;

/// Bytes to read at a time. Most heads fit.
const READ_BYTES: usize = 1024;

/// Larger buffers are freed after the response, to keep thousands of idle connections small.
const MAX_IDLE_BUFFER_BYTES: usize = 16 * 1024;

/// Maximum time to wait for the client to close. Closing earlier, with unread bytes, would be a reset.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// One connection.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    read: BytesMut,
    /// The response being built.
    pub(super) out: Vec<u8>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, read: BytesMut::new(), out: Vec::new() }
    }

    /// Reads the next request's head and records it in the journal. `None` if the client has disconnected.
    pub(super) async fn request(&mut self, journal: &Journal) -> io::Result<Option<Result<Request, Refusal>>> {
        loop {
            match Request::parse(&self.read) {
                Ok(Some((request, length))) => {
                    journal.request(&self.read[..length], request.path());
                    self.read.advance(length);
                    return Ok(Some(Ok(request)));
                }
                Ok(None) => {}
                Err(refusal) => {
                    journal.requests.fetch_add(1, Relaxed);
                    return Ok(Some(Err(refusal)));
                }
            }
            if self.fill().await? == 0 {
                return Ok(None);
            }
        }
    }

    /// Reads a body of this many bytes.
    pub(super) async fn body(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.read.len() < length {
            if self.fill().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.read.split_to(length).to_vec())
    }

    /// Runs `work`, and returns `None` if the client disconnects first. Bytes that arrive meanwhile are kept.
    pub(super) async fn unless_gone<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            outcome = work => Some(outcome),
            () = self.gone() => None,
        }
    }

    /// Sends the contents of `out` and empties it.
    pub(super) async fn send(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.out).await?;
        self.out.clear();
        self.out.shrink_to(MAX_IDLE_BUFFER_BYTES);
        Ok(())
    }

    /// Resets the connection, discarding unsent and unread bytes.
    pub(super) fn reset(self) -> io::Result<()> {
        self.stream.set_zero_linger()
    }

    /// Sends FIN, and closes the socket when the client has closed its side, or after a timeout.
    pub(super) async fn finish(mut self) -> io::Result<()> {
        self.stream.shutdown().await?;
        let drain = async {
            loop {
                self.read.clear();
                if !matches!(self.fill().await, Ok(1..)) {
                    break;
                }
            }
        };
        // The response was sent, so errors do not matter.
        let _ = timeout(LINGER_TIMEOUT, drain).await;
        Ok(())
    }

    async fn gone(&mut self) {
        while self.read.len() < MAX_HEAD_BYTES {
            if !matches!(self.fill().await, Ok(1..)) {
                return;
            }
        }
        std::future::pending::<()>().await;
    }

    async fn fill(&mut self) -> io::Result<usize> {
        self.read.reserve(READ_BYTES);
        self.stream.read_buf(&mut self.read).await
    }
}
