//! [`Connection`]: a connection to the upstream. It has no buffers.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::io::poll_read_buf;

/// Maximum number of bytes that are read at once. The rest of a response stays with the kernel and the upstream.
pub(super) const READ_BYTES: usize = 4 * 1024;

/// A connection to the upstream.
#[derive(Debug)]
pub(super) struct Connection(TcpStream);

impl Connection {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self(stream)
    }

    /// Whether a request may be sent: the upstream has not closed the connection, and has sent nothing since its last
    /// response. What it has sent would be taken for the next one. Knows only what the runtime has seen.
    pub(super) fn is_quiet(&self) -> bool {
        self.0.try_read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).await
    }

    /// Reads what has arrived. Empty once the upstream has closed the connection.
    ///
    /// The bytes are read onto the stack, and then copied into memory of their exact size: a request may wait for hours, and
    /// needs no memory for its response until then. Most responses arrive in one piece of a few hundred bytes.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        let mut space = [const { MaybeUninit::uninit() }; READ_BYTES];
        let mut read = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut read))?;
        Poll::Ready(Ok(Bytes::copy_from_slice(read.filled())))
    }

    /// Reads what has arrived into this memory, as far as it has room. Returns the number of bytes, 0 once the upstream has closed
    /// the connection.
    pub(super) fn poll_read_into(&mut self, cx: &mut Context<'_>, space: &mut impl BufMut) -> Poll<io::Result<usize>> {
        poll_read_buf(Pin::new(&mut self.0), cx, space)
    }
}

#[cfg(test)]
impl Connection {
    /// A connection and its other end.
    pub(super) fn pair() -> (Self, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let near = std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        near.set_nonblocking(true).expect("an option");
        let (far, _) = listener.accept().expect("a connection");
        (Self(TcpStream::from_std(near).expect("a runtime")), far)
    }

    /// Waits until the runtime knows of what the other end did.
    pub(super) async fn stirred(&self) {
        self.0.readable().await.expect("a connection");
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[tokio::test]
    async fn a_connection_is_quiet_until_its_other_end_sends_or_closes() {
        let (idle, _far) = Connection::pair();
        assert!(idle.is_quiet());
        let (spoken_to, mut far) = Connection::pair();
        far.write_all(b"x").expect("it is open");
        spoken_to.stirred().await;
        assert!(!spoken_to.is_quiet());
        let (closed, far) = Connection::pair();
        drop(far);
        closed.stirred().await;
        assert!(!closed.is_quiet());
    }
}
