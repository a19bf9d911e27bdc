//! [`Socket`]: what a connection needs of its socket besides bytes: a look at what has come, and a reset.
//!
//! What comes first is taken off the socket, for mostly it is a whole head; what is not whole by then is left with the kernel
//! until it is. So a client that sends its head a byte at a time, or none, costs a socket, a task and at most [`FIRST`] bytes
//! of ours, an ordinary one costs one read, and hyper sees heads whole.

use std::cell::RefCell;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use rustix::net::{RecvFlags, SendFlags};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::TcpStream;

use super::framing::HeadScanner;
use super::io::MAX_HEAD;

/// A client's end of a connection.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// Whether [`poll_look`](Socket::poll_look) really waits, so that a silent connection can be kept by it alone.
    const CAN_WAIT: bool;

    /// Ready when there is something new to see. `begun` is what was taken off the socket before; it is added to only while
    /// it is empty.
    fn poll_look(&self, begun: &mut Bytes, cx: &mut Context<'_>) -> Poll<io::Result<Seen>>;

    /// Writes what the connection's close follows at once, so that both leave in one segment: a segment of its own for the
    /// FIN, and all that the two ends do about it, is a good tenth of what a connection costs.
    fn poll_write_last(&mut self, buf: &[u8], cx: &mut Context<'_>) -> Poll<io::Result<usize>>;

    /// Makes the next close a reset, or a proper end again.
    fn close_by_reset(&self, reset: bool);
}

/// Most that is taken off a socket before the head is whole, in bytes. Client libraries' heads have 200 to 600.
const FIRST: usize = 1024;

/// What there is to read on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// The client has closed, and no request will come of it.
    End,
    /// So many bytes of a head.
    Part(usize),
    /// A whole head, or what can be refused without the rest of it.
    Head,
}

impl Socket for TcpStream {
    const CAN_WAIT: bool = true;

    fn poll_look(&self, begun: &mut Bytes, cx: &mut Context<'_>) -> Poll<io::Result<Seen>> {
        ready!(self.poll_read_ready(cx))?;
        // Nothing at all, where every new socket is taken for readable until it was read from.
        let mut seen = Seen::Part(0);
        let looked = self.try_io(Interest::READABLE, || {
            let nothing_to_read = || Err(io::ErrorKind::WouldBlock.into());
            if begun.is_empty() {
                seen = take(self, begun)?;
                if begun.len() < FIRST {
                    return nothing_to_read();
                }
            }
            if let Seen::Part(_) = seen {
                seen = peek(self, begun)?;
            }
            // Part of a head is as good as nothing: the next look waits until there is more.
            if let Seen::Part(_) = seen { nothing_to_read() } else { Ok(()) }
        });
        Poll::Ready(match (looked, seen) {
            (Err(error), _) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            (_, Seen::Part(_)) if has_ended(self, cx) => Ok(Seen::End),
            _ => Ok(seen),
        })
    }

    fn poll_write_last(&mut self, buf: &[u8], cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // The kernel keeps the last segment, for 200 ms at the most, until it hears whether there is more.
        let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
        let write = || Ok(rustix::net::send(&*self, buf, flags)?);
        loop {
            ready!(self.poll_write_ready(cx))?;
            match self.try_io(Interest::WRITABLE, write) {
                // It is not writable any more, as the next look says.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }

    fn close_by_reset(&self, reset: bool) {
        // With a linger time of zero the kernel throws away what is unsent, and says RST instead of FIN. It refuses only
        // where there is no connection any more.
        let _ = SockRef::from(self).set_linger(reset.then_some(Duration::ZERO));
    }
}

thread_local! {
    /// Where heads are looked at.
    static HEAD: RefCell<Box<[u8; MAX_HEAD]>> = RefCell::new(Box::new([0; MAX_HEAD]));
}

/// Takes the first bytes off a socket.
fn take(stream: &TcpStream, begun: &mut Bytes) -> io::Result<Seen> {
    HEAD.with_borrow_mut(|head| {
        let (taken, _) = rustix::net::recv(stream, &mut head[..FIRST], RecvFlags::empty())?;
        *begun = Bytes::copy_from_slice(&head[..taken]);
        Ok(if taken == 0 { Seen::End } else { seen(&mut head[..taken]) })
    })
}

/// Looks at the bytes that follow those that were taken.
fn peek(stream: &TcpStream, begun: &[u8]) -> io::Result<Seen> {
    HEAD.with_borrow_mut(|head| {
        head[..begun.len()].copy_from_slice(begun);
        let (peeked, _) = rustix::net::recv(stream, &mut head[begun.len()..], RecvFlags::PEEK)?;
        Ok(if peeked == 0 { Seen::End } else { seen(&mut head[..begun.len() + peeked]) })
    })
}

/// Whether the client sends nothing more, on a socket of which all was seen that there is to read.
fn has_ended(stream: &TcpStream, cx: &mut Context<'_>) -> bool {
    let ready = pin!(stream.ready(Interest::READABLE)).poll(cx);
    matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
}

fn seen(head: &mut [u8]) -> Seen {
    let mut scanner = HeadScanner::default();
    scanner.scan(head);
    let is_head = scanner.heads() > 0 || scanner.is_spoilt() || head.len() == MAX_HEAD;
    if is_head { Seen::Head } else { Seen::Part(head.len()) }
}

#[cfg(test)]
impl Socket for tokio::io::DuplexStream {
    const CAN_WAIT: bool = false;

    fn poll_look(&self, _: &mut Bytes, _: &mut Context<'_>) -> Poll<io::Result<Seen>> {
        Poll::Ready(Ok(Seen::Head))
    }

    fn poll_write_last(&mut self, buf: &[u8], cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let written = ready!(std::pin::Pin::new(self).poll_write(cx, buf))?;
        LAST.with_borrow_mut(|last| last.extend_from_slice(&buf[..written]));
        Poll::Ready(Ok(written))
    }

    fn close_by_reset(&self, _: bool) {}
}

#[cfg(test)]
thread_local! {
    /// What this thread's pipes were told to write as the last of a connection.
    pub(super) static LAST: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Read;

    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn what_is_written_last_leaves_with_the_end_and_not_before() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        // The kernel waits for the end for 200 ms; on a machine that stood still for so long, another connection has a try.
        for _ in 0..20 {
            let client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("it listens");
            let (mut server, _) = listener.accept().await.expect("a client");
            server.set_nodelay(true).expect("it is open");
            let written = poll_fn(|cx| server.poll_write_last(b"the last", cx)).await;
            assert_eq!(written.expect("there is room"), 8);
            // On a loopback address what leaves arrives at once, also where tokio has not heard of it.
            let mut client = client.into_std().expect("it is open");
            let early = client.read(&mut [0; 16]).map_err(|error| error.kind());
            drop(server);
            client.set_nonblocking(false).expect("it is open");
            let mut text = String::new();
            client.read_to_string(&mut text).expect("a proper end");
            if early == Err(io::ErrorKind::WouldBlock) {
                assert_eq!(text, "the last");
                return;
            }
        }
        panic!("it never left with the end");
    }
}
