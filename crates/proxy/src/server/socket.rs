//! [`Socket`]: socket operations beyond reading and writing: detecting the client's close, bounded writes and
//! resets.

use std::io;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::TcpStream;

use super::activity::Activity;
use super::outstanding::{Outstanding, outstanding};

/// A client's connection.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// Whether an idle connection can be parked, keeping only its socket. False for pipes in tests.
    const CAN_WAIT: bool;

    /// Ready once the client has closed its side, even if bytes it sent before are unread.
    ///
    /// Sets `skipped` if readable bytes may remain for which no readiness event will arrive;
    /// [`try_receive`](Socket::try_receive) reads them.
    fn poll_end(&self, skipped: &mut bool, cx: &mut Context<'_>) -> Poll<()>;

    /// Reads available bytes without waiting.
    fn try_receive(&self, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes bytes as a segment of their own: the kernel does not append a later write to it, so the limit of
    /// the send buffer applies to each write. Set `is_last` if the connection is shut down right after this write:
    /// data and FIN are then sent in one segment. A separate segment for the FIN costs over a tenth of a whole
    /// connection.
    fn poll_send(&mut self, buf: &[u8], is_last: bool, cx: &mut Context<'_>) -> Poll<io::Result<usize>>;

    /// Makes the next close a reset, or a normal close again.
    fn close_by_reset(&self, reset: bool);

    /// What the kernel still has of the bytes that were written.
    fn outstanding(&self) -> Outstanding;

    /// Bounds the time for which the kernel waits for an acknowledgement.
    fn give_up_after(&self, time: Duration);
}

impl Socket for TcpStream {
    const CAN_WAIT: bool = true;

    fn poll_end(&self, skipped: &mut bool, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if ready!(self.poll_read_ready(cx)).is_err() || has_ended(self, cx) {
                return Poll::Ready(());
            }
            // The bytes are not needed yet. Clears readiness, so that the next event is new bytes or the client's
            // close.
            *skipped = true;
            let _ = self.try_io(Interest::READABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
        }
    }

    fn try_receive(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::net::recv(self, buf, RecvFlags::empty())?.0)
    }

    fn poll_send(&mut self, buf: &[u8], is_last: bool, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // With `MORE` the kernel holds the segment back for up to 200 ms.
        let flags = SendFlags::NOSIGNAL | if is_last { SendFlags::MORE } else { SendFlags::EOR };
        let write = || Ok(rustix::net::send(&*self, buf, flags)?);
        loop {
            ready!(self.poll_write_ready(cx))?;
            match self.try_io(Interest::WRITABLE, write) {
                // No longer writable; the next poll registers for readiness.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }

    fn close_by_reset(&self, reset: bool) {
        // With a linger time of zero the kernel discards unsent bytes and sends RST instead of FIN. It fails
        // only if the connection is closed already.
        let _ = SockRef::from(self).set_linger(reset.then_some(Duration::ZERO));
    }

    fn outstanding(&self) -> Outstanding {
        outstanding(self)
    }

    fn give_up_after(&self, time: Duration) {
        // It fails only if the connection is closed already.
        let _ = SockRef::from(self).set_tcp_user_timeout(Some(time));
    }
}

/// Time for which the kernel waits until a client acknowledges what was sent before the close. Clients are on this node.
const ACKNOWLEDGED: Duration = Duration::from_secs(2);

/// A socket that is reset if its connection is closed while its client waits for a response, or has not read one.
#[derive(Debug)]
pub(super) struct Cuttable<I: Socket> {
    io: I,
    activity: Arc<Activity>,
}

impl<I: Socket> Cuttable<I> {
    pub(super) fn new(io: I, activity: Arc<Activity>) -> Self {
        Self { io, activity }
    }
}

impl<I: Socket> Drop for Cuttable<I> {
    fn drop(&mut self) {
        match self.io.outstanding() {
            _ if self.activity.was_cut_short() => self.io.close_by_reset(true),
            // The FIN is next.
            Outstanding::Nothing | Outstanding::Unacknowledged => self.io.give_up_after(ACKNOWLEDGED),
            // Otherwise the kernel would keep these bytes for minutes, and no client would be charged for them.
            Outstanding::Unsent(_) => self.io.close_by_reset(true),
        }
    }
}

impl<I: Socket> Deref for Cuttable<I> {
    type Target = I;

    fn deref(&self) -> &I {
        &self.io
    }
}

impl<I: Socket> DerefMut for Cuttable<I> {
    fn deref_mut(&mut self) -> &mut I {
        &mut self.io
    }
}

/// Whether the client has closed its side. Only called when the socket is readable.
fn has_ended(stream: &TcpStream, cx: &mut Context<'_>) -> bool {
    let ready = pin!(stream.ready(Interest::READABLE)).poll(cx);
    matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
}

#[cfg(test)]
pub(super) use pipe::LAST;

#[cfg(test)]
mod pipe {
    use std::cell::RefCell;
    use std::pin::Pin;

    use tokio::io::DuplexStream;

    use super::*;

    thread_local! {
        /// The bytes that pipes of this thread wrote with `is_last`.
        pub(in super::super) static LAST: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }

    impl Socket for DuplexStream {
        const CAN_WAIT: bool = false;

        fn poll_end(&self, _: &mut bool, _: &mut Context<'_>) -> Poll<()> {
            Poll::Pending
        }

        fn try_receive(&self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }

        fn poll_send(&mut self, buf: &[u8], is_last: bool, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
            let written = ready!(Pin::new(self).poll_write(cx, buf))?;
            if is_last {
                LAST.with_borrow_mut(|last| last.extend_from_slice(&buf[..written]));
            }
            Poll::Ready(Ok(written))
        }

        fn close_by_reset(&self, _: bool) {}

        fn outstanding(&self) -> Outstanding {
            Outstanding::Nothing
        }

        fn give_up_after(&self, _: Duration) {}
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::{Read, Write};

    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("it listens");
        let (server, _) = listener.accept().await.expect("a client");
        (client, server)
    }

    #[tokio::test]
    async fn the_last_write_is_sent_together_with_the_fin() {
        // The kernel holds the segment back for 200 ms. If the machine stalls for that long, try another
        // connection.
        for _ in 0..20 {
            let (client, mut server) = pair().await;
            server.set_nodelay(true).expect("it is open");
            let written = poll_fn(|cx| server.poll_send(b"the last", true, cx)).await;
            assert_eq!(written.expect("there is room"), 8);
            // On loopback, sent bytes arrive immediately, even if tokio has no readiness event yet.
            let mut client = client.into_std().expect("it is open");
            let early = client.read(&mut [0; 16]).map_err(|error| error.kind());
            drop(server);
            client.set_nonblocking(false).expect("it is open");
            let mut text = String::new();
            client.read_to_string(&mut text).expect("a normal close");
            if early == Err(io::ErrorKind::WouldBlock) {
                assert_eq!(text, "the last");
                return;
            }
        }
        panic!("never sent together with the FIN");
    }

    #[tokio::test]
    async fn a_close_after_unread_bytes_is_detected_without_losing_them() {
        let (client, server) = pair().await;
        let mut client = client.into_std().expect("it is open");
        let mut skipped = false;
        for piece in [&b"one"[..], b"two"] {
            client.write_all(piece).expect("the server is there");
            server.readable().await.expect("it is open");
            let look = poll_fn(|cx| Poll::Ready(server.poll_end(&mut skipped, cx))).await;
            assert!(look.is_pending() && skipped, "bytes are not a close");
        }
        drop(client);
        poll_fn(|cx| server.poll_end(&mut skipped, cx)).await;
        let mut bytes = [0; 16];
        let received = server.try_receive(&mut bytes).expect("they are still there");
        assert_eq!(&bytes[..received], b"onetwo");
    }
}
