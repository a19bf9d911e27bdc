//! [`Socket`]: what a connection needs of its socket besides bytes: a look at what has come, and a reset.
//!
//! A head is left with the kernel until it is whole. So a client that sends its head a byte at a time, or none, costs a
//! socket and a task and no buffer of ours, and hyper reads a head in one go.

use std::cell::RefCell;
use std::io;
use std::time::Duration;

use rustix::net::RecvFlags;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::TcpStream;

use super::framing::HeadScanner;
use super::io::MAX_HEAD;

/// A client's end of a connection.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// Whether [`look`](Socket::look) really waits, so that a silent connection can be kept by it alone.
    const CAN_WAIT: bool;

    /// Waits until there is something new to see, and leaves it unread.
    fn look(&self) -> impl Future<Output = io::Result<Seen>> + Send;

    /// Makes the next close a reset, or a proper end again.
    fn close_by_reset(&self, reset: bool);
}

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

    async fn look(&self) -> io::Result<Seen> {
        let ready = self.ready(Interest::READABLE).await?;
        let mut seen = Seen::End;
        let looked = self.try_io(Interest::READABLE, || {
            seen = peek(self)?;
            // As if there were nothing: the next look waits until there is more.
            if let Seen::Part(_) = seen { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match looked {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            Err(_) if ready.is_read_closed() => Ok(Seen::End),
            // Nothing at all, where every new socket is taken for readable until it was read from.
            Err(_) if seen == Seen::End => Ok(Seen::Part(0)),
            _ => Ok(seen),
        }
    }

    fn close_by_reset(&self, reset: bool) {
        // With a linger time of zero the kernel throws away what is unsent, and says RST instead of FIN. It refuses only
        // where there is no connection any more.
        let _ = SockRef::from(self).set_linger(reset.then_some(Duration::ZERO));
    }
}

thread_local! {
    /// Where heads are looked at; they stay with the kernel until they are whole.
    static HEAD: RefCell<Box<[u8; MAX_HEAD]>> = RefCell::new(Box::new([0; MAX_HEAD]));
}

fn peek(stream: &TcpStream) -> io::Result<Seen> {
    HEAD.with_borrow_mut(|head| {
        let (peeked, _) = rustix::net::recv(stream, &mut head[..], RecvFlags::PEEK)?;
        let mut scanner = HeadScanner::default();
        scanner.scan(&mut head[..peeked]);
        Ok(match peeked {
            0 => Seen::End,
            MAX_HEAD => Seen::Head,
            _ if scanner.heads() > 0 || scanner.is_spoilt() => Seen::Head,
            part => Seen::Part(part),
        })
    })
}

#[cfg(test)]
impl Socket for tokio::io::DuplexStream {
    const CAN_WAIT: bool = false;

    async fn look(&self) -> io::Result<Seen> {
        Ok(Seen::Head)
    }

    fn close_by_reset(&self, _: bool) {}
}
