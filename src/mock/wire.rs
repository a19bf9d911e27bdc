//! [`Wire`]: a connection's socket with what was read from it and what is to be written.

use std::future::Future;
use std::io;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::head::{MAX_HEAD, Request};
use super::journal::Journal;
use super::refusal::Refusal;

/// How much is asked of the socket at once; a usual head fits.
const READ: usize = 1024;

/// A larger buffer is given back after the answer, so that thousands of idle connections stay small.
const KEEP: usize = 16 * 1024;

/// How long the client's own end is awaited after ours; to close earlier, with bytes unread, would be a reset.
const LINGER: Duration = Duration::from_secs(1);

/// One connection.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    read: BytesMut,
    /// The answer being put together.
    pub(super) out: Vec<u8>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, read: BytesMut::new(), out: Vec::new() }
    }

    /// The next request's head, noted in the journal; nothing when the client has left.
    pub(super) async fn request(&mut self, journal: &Journal) -> io::Result<Option<Result<Request, Refusal>>> {
        loop {
            match Request::parse(&self.read) {
                Ok(Some((request, length))) => {
                    journal.request(&self.read[..length], request.target());
                    self.read.advance(length);
                    return Ok(Some(Ok(request)));
                }
                Ok(None) => {}
                Err(refusal) => {
                    journal.unreadable();
                    return Ok(Some(Err(refusal)));
                }
            }
            if self.fill().await? == 0 {
                return Ok(None);
            }
        }
    }

    /// A body of that many bytes.
    pub(super) async fn body(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.read.len() < length {
            if self.fill().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.read.split_to(length).to_vec())
    }

    /// Does something unless the client leaves before it is done. What the client sends meanwhile is kept.
    pub(super) async fn unless_gone<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            outcome = work => Some(outcome),
            () = self.gone() => None,
        }
    }

    /// Sends what is in `out` and empties it.
    pub(super) async fn send(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.out).await?;
        self.out.clear();
        self.out.shrink_to(KEEP);
        Ok(())
    }

    /// Ends the connection with a reset, whatever is still to be sent or read.
    pub(super) fn reset(self) -> io::Result<()> {
        self.stream.set_zero_linger()
    }

    /// Ends the stream, and closes when the client has ended its own, or soon.
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
        // Either end is fine: the client has been told.
        let _ = timeout(LINGER, drain).await;
        Ok(())
    }

    async fn gone(&mut self) {
        while self.read.len() < MAX_HEAD {
            if !matches!(self.fill().await, Ok(1..)) {
                return;
            }
        }
        std::future::pending::<()>().await;
    }

    async fn fill(&mut self) -> io::Result<usize> {
        self.read.reserve(READ);
        self.stream.read_buf(&mut self.read).await
    }
}
