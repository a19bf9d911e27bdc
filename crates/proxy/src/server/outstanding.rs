//! [`Outstanding`]: what the kernel still has of the bytes that were written to a connection.
//!
//! The kernel keeps them after the close, and tries to deliver them: to a client that does not read, for more than three
//! minutes. Then they belong to no connection, so no client is charged for them, but they are charged to the control group.

use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use nix::sys::socket::getsockopt;

/// What is left of the bytes that were written, including the FIN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outstanding {
    /// The client's side has all of them, or there is no connection any more.
    Nothing,
    /// All are sent. Some are not acknowledged yet, as is usual right after a write.
    Unacknowledged,
    /// This many are not sent, because the client does not read.
    Unsent(u32),
}

/// Of the states of a connection, the one that it has after a reset.
const CLOSED: u8 = 7;

/// What is outstanding on a connection. If the kernel does not say, something may be.
pub(super) fn outstanding(connection: &impl AsFd) -> Outstanding {
    // nix panics if a kernel returns less, as an emulated one does. So one connection tries it.
    static IS_WHOLE: OnceLock<bool> = OnceLock::new();
    let asked = || getsockopt(connection, option::ConnectionInfo);
    if !IS_WHOLE.get_or_init(|| catch_unwind(AssertUnwindSafe(asked)).is_ok()) {
        return Outstanding::Unacknowledged;
    }
    match asked() {
        Ok(info) if info.state == CLOSED => Outstanding::Nothing,
        Ok(info) if info.unsent_bytes > 0 => Outstanding::Unsent(info.unsent_bytes),
        Ok(info) if info.unacknowledged_segments > 0 => Outstanding::Unacknowledged,
        _ => Outstanding::Nothing,
    }
}

/// `TCP_INFO` of tcp(7).
#[allow(unreachable_pub, reason = "the macro makes a public type")]
mod option {
    use nix::{getsockopt_impl, libc, sockopt_impl};

    /// The first part of the kernel's `tcp_info`, as of Linux 4.6. Later versions only append to it.
    #[derive(Debug, Clone, Copy)]
    #[repr(C)]
    pub struct Info {
        pub state: u8,
        flags: [u8; 7],
        sizes: [u32; 4],
        pub unacknowledged_segments: u32,
        counts: [u32; 19],
        rates: [u64; 4],
        segments: [u32; 2],
        pub unsent_bytes: u32,
        shortest_round_trip: u32,
    }

    sockopt_impl!(ConnectionInfo, GetOnly, libc::IPPROTO_TCP, libc::TCP_INFO, Info);
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    /// Waits until this is outstanding: what is sent on loopback arrives at once, but its acknowledgement may be late.
    fn becomes(connection: &TcpStream, wanted: Outstanding) {
        let began = Instant::now();
        while outstanding(connection) != wanted {
            assert!(began.elapsed() < Duration::from_secs(10), "{:?}", outstanding(connection));
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_a_client_does_not_read_is_unsent_until_it_reads_or_is_gone() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).expect("loopback");
            let mut client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
            let mut server = listener.accept().expect("a client").0;
            assert_eq!(outstanding(&server), Outstanding::Nothing);
            server.write_all(b"small").expect("the client is there");
            becomes(&server, Outstanding::Nothing);
            server.set_nonblocking(true).expect("it is open");
            let mut written = b"small".len();
            let full = loop {
                match server.write(&[0; 4096]) {
                    Ok(more) => written += more,
                    Err(error) => break error.kind(),
                }
            };
            let is_unsent = matches!(outstanding(&server), Outstanding::Unsent(_));
            assert_eq!((full, is_unsent), (ErrorKind::WouldBlock, true), "{address}");
            let mut read = vec![0; written];
            client.read_exact(&mut read).expect("the server is there");
            becomes(&server, Outstanding::Nothing);
            server.set_nonblocking(false).expect("it is open");
            while !matches!(outstanding(&server), Outstanding::Unsent(_)) {
                server.set_nonblocking(true).expect("it is open");
                let _ = server.write(&[0; 4096]);
            }
            // It has not read all: this is a reset.
            drop(client);
            becomes(&server, Outstanding::Nothing);
        }
    }
}
