//! [`Door`]: a listening socket with its kernel queue.
//!
//! The kernel queues new connections until they are accepted. A single queue is served in order, so a pod that opens
//! connections faster than the proxy accepts them makes all others wait. Under a CPU limit, a few hundred connections
//! per second are enough for that. So the addresses share [`QUEUES`] listening sockets, and the kernel chooses among those
//! of an address by the client's address. A pod fills only its own queue; then the kernel drops its packets, at no cost to
//! the proxy.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nix::libc::{self, sock_filter, sock_fprog};
use nix::sys::socket::{setsockopt, sockopt::AttachReusePortCbpf};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, recv};
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Queues of all addresses. Kubernetes gives a node 256 pod addresses by default. Each gets its own queue if the proxy
/// listens on one address for pods; two share a queue if it also listens on one for IPv6. A queue costs 4 KiB of kernel
/// memory.
const QUEUES: usize = 256;

/// Length of a queue: the kernel's maximum. It is capped by `net.core.somaxconn`, which is 4096 since Linux 5.4 and 128
/// before. If the queue is full, the client's kernel retries after a second.
const BACKLOG: i32 = 4096;

/// Kernel send buffer per connection, in bytes; the kernel doubles it. Under cgroup v2 socket buffers count
/// against the container's memory limit, and exceeding it kills the process. The rest of an unread response
/// stays with the upstream.
const SEND_BUFFER_BYTES: usize = 4 * 1024;

/// Kernel receive buffer per connection, in bytes; the kernel doubles it. Larger heads are read in pieces.
const RECEIVE_BUFFER_BYTES: usize = 2 * 1024;

/// Maximum segment size, in bytes, to and from clients: fits into a packet of a pod's network, also over IPv6. The
/// loopback network has segments of 64 KiB. There a client's kernel holds megabytes of unread requests, and when the
/// proxy resets such a connection, the kernel frees them at the expense of the proxy's processor time.
const SEGMENT_BYTES: u32 = 1440;

/// TCP keepalive: detects a vanished pod after about two minutes, even while its request is in flight.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(20)).with_retries(3);

/// One newcomer of a door in this many is checked for having disconnected. A check is a system call.
const CHECKED: usize = 8;

/// A listening socket.
#[derive(Debug)]
pub struct Door(TcpListener);

/// Detects clients of a door that disconnected before they were accepted. One newcomer in [`CHECKED`] is checked. After
/// one that has disconnected, every newcomer is checked until one is still connected.
#[derive(Debug, Default)]
pub(super) struct Departures {
    accepted: usize,
    had_left: bool,
}

/// How to listen on an address.
#[derive(Debug, Clone, Copy)]
pub struct Listen {
    /// Whether another process may listen on it, too.
    pub share: bool,
    /// Whether the machine may get the address later.
    pub early: bool,
    /// The number of queues: a power of two.
    pub queues: usize,
}

impl Listen {
    /// The same for each of these addresses, which share the queues. An address of loopback beside others has a single one: no
    /// pod sends to it. So has one that is not `used` now.
    pub fn on(
        addrs: &[SocketAddr],
        share: bool,
        early: impl Fn(SocketAddr) -> bool,
        used: impl Fn(SocketAddr) -> bool,
    ) -> Vec<(SocketAddr, Self)> {
        let is_for_pods = |addr: &&SocketAddr| !addr.ip().is_loopback() && used(**addr);
        let sharing = match addrs.iter().filter(is_for_pods).count() {
            0 => addrs.len(),
            some => some,
        };
        let each = 1 << (QUEUES / sharing.max(1)).max(1).ilog2();
        let has_each = |addr: &SocketAddr| sharing == addrs.len() || is_for_pods(&addr);
        let listen =
            |addr: &SocketAddr| Self { share, early: early(*addr), queues: if has_each(addr) { each } else { 1 } };
        addrs.iter().map(|addr| (*addr, listen(addr))).collect()
    }
}

/// Opens a single door to an address. Connections to it may still be in `TIME_WAIT`. With `share`, another process may
/// listen on it too.
///
/// # Panics
///
/// Outside a runtime, like all of these functions.
pub fn bind(addr: SocketAddr, share: bool) -> io::Result<Door> {
    Door::new(listen(addr, share, false)?)
}

/// Opens the doors to an address: one per queue, or a single door if the kernel does not support the filters for that.
///
/// With `share`, another process may also have doors to the address. The kernel numbers the sockets of all processes in
/// the order in which they were opened, so those of the first process get all connections. When they close, other
/// sockets take over their numbers.
pub fn bind_queues(addr: SocketAddr, how: Listen) -> io::Result<Vec<Door>> {
    let Listen { share, early, queues } = how;
    if queues == 1 {
        return Ok(vec![Door::new(listen(addr, share, early)?)?]);
    }
    if !share {
        // Sockets that share an address with each other would also share it with another process.
        drop(listen(addr, false, early)?);
    }
    let first = listen(addr, true, early)?;
    let addr = first.local_addr()?;
    if let Err(error) = choose_by_client(&first, queues) {
        tracing::warn!(%addr, %error, "the kernel cannot give each client a queue of its own; a flood of connections may make others wait");
        return Ok(vec![Door::new(first)?]);
    }
    let mut doors = vec![Door::new(first)?];
    while doors.len() < queues {
        doors.push(Door::new(listen(addr, true, early)?)?);
    }
    Ok(doors)
}

/// Whether another process listens on this address, and this one may listen beside it.
pub fn is_shared(addr: SocketAddr) -> bool {
    // Without sharing, the kernel allows a single listener.
    let is_taken = || listen(addr, false, true).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse);
    addr.port() != 0 && is_taken() && bound(addr, true, true).is_ok()
}

fn listen(addr: SocketAddr, share: bool, early: bool) -> io::Result<std::net::TcpListener> {
    let socket = bound(addr, share, early)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn bound(addr: SocketAddr, share: bool, early: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if share {
        socket.set_reuse_port(true)?;
    }
    if early {
        match addr {
            SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
            SocketAddr::V6(_) => socket.set_freebind_v6(true)?,
        }
    }
    set_options(&SockRef::from(&socket))?;
    socket.bind(&addr.into())?;
    Ok(socket)
}

/// Accepted sockets inherit these options.
fn set_options(socket: &SockRef<'_>) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    socket.set_tcp_keepalive(&KEEPALIVE)?;
    socket.set_tcp_mss(SEGMENT_BYTES)?;
    // Responses are written in one piece; Nagle's algorithm would only delay them.
    socket.set_tcp_nodelay(true)
}

/// Makes the kernel choose the queue by the client's address, with a program that needs no privileges
/// (`SO_ATTACH_REUSEPORT_CBPF`, socket(7)).
fn choose_by_client(listener: &std::net::TcpListener, queues: usize) -> io::Result<()> {
    let mut program = program(queues);
    let length = u16::try_from(program.len()).expect("a few instructions");
    let program = sock_fprog { len: length, filter: program.as_mut_ptr() };
    Ok(setsockopt(listener, AttachReusePortCbpf, &program)?)
}

/// Returns the number of a client's queue: the last byte of its address, plus a hash of the three bytes before it. So
/// each address of a /24 has its own queue, and an address of another network is seldom assigned the same one.
fn program(queues: usize) -> [sock_filter; 12] {
    let step = |code: u32, k: u32, jump_true, jump_false| sock_filter {
        code: u16::try_from(code).expect("codes have 16 bits"),
        jt: jump_true,
        jf: jump_false,
        k,
    };
    let load = |offset| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0);
    let alu = |operation, operand| step(libc::BPF_ALU | operation | libc::BPF_K, operand, 0, 0);
    let ancillary = |offset: i32| (libc::SKF_AD_OFF + offset).cast_unsigned();
    let in_header = |offset: i32| (libc::SKF_NET_OFF + offset).cast_unsigned();
    let queues = u32::try_from(queues).expect("few");
    [
        load(ancillary(libc::SKF_AD_PROTOCOL)),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0x86dd, 2, 0),
        // IPv4: the source address.
        load(in_header(12)),
        step(libc::BPF_JMP | libc::BPF_JA, 1, 0, 0),
        // IPv6: the last four bytes of the source address.
        load(in_header(20)),
        step(libc::BPF_MISC | libc::BPF_TAX, 0, 0, 0),
        alu(libc::BPF_RSH, 8),
        // The golden ratio of 32 bits: the highest byte of the product depends on every bit (Fibonacci hashing).
        alu(libc::BPF_MUL, 0x9e37_79b1),
        alu(libc::BPF_RSH, 24),
        step(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X, 0, 0, 0),
        alu(libc::BPF_AND, queues - 1),
        step(libc::BPF_RET | libc::BPF_A, 0, 0, 0),
    ]
}

impl Door {
    fn new(listener: std::net::TcpListener) -> io::Result<Self> {
        Ok(Self(TcpListener::from_std(listener)?))
    }

    /// The address, with the assigned port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// The next connection.
    pub(super) async fn next(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.0.accept().await
    }

    /// The next connection in the kernel's queue, or `None` if the queue is empty.
    pub(super) async fn next_in_queue(&self) -> Option<(TcpStream, SocketAddr)> {
        // A non-empty queue returns the next connection immediately.
        timeout(Duration::from_millis(1), self.next()).await.ok()?.ok()
    }
}

impl Departures {
    /// Whether the newcomer is known to have disconnected.
    pub(super) fn include(&mut self, newcomer: &TcpStream) -> bool {
        self.accepted += 1;
        self.had_left = (self.had_left || self.accepted.is_multiple_of(CHECKED)) && has_left(newcomer);
        self.had_left
    }
}

/// Whether the client has reset the connection, or closed it without having sent anything. A client that has sent a
/// request and closed its side gets its response if that is in memory. If it must wait for the server, it has left: the end
/// of its side is how a client that gave up is told from one that waits.
fn has_left(stream: &TcpStream) -> bool {
    let mut look = [PollFd::new(stream, PollFlags::RDHUP)];
    if !poll(&mut look, Some(&Timespec::default())).is_ok_and(|found| found > 0) {
        return false;
    }
    let seen = look[0].revents();
    seen.intersects(PollFlags::HUP | PollFlags::ERR)
        || recv(stream, &mut [0; 1], RecvFlags::PEEK).is_ok_and(|(received, _)| received == 0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, Shutdown, TcpStream};

    use super::*;

    fn door() -> (Door, SocketAddr) {
        let door = bind((Ipv4Addr::LOCALHOST, 0).into(), false).expect("a port");
        let addr = door.local_addr().expect("bound");
        (door, addr)
    }

    #[tokio::test]
    async fn accepted_sockets_inherit_the_listeners_options() {
        let (door, addr) = door();
        let _client = TcpStream::connect(addr).expect("it listens");
        let (accepted, _) = door.next().await.expect("a client");
        assert!(accepted.nodelay().expect("it is open"));
        assert!(SockRef::from(&accepted).keepalive().expect("it is open"));
    }

    #[tokio::test]
    async fn a_client_that_has_left_is_noticed() {
        let (door, addr) = door();
        let reset = TcpStream::connect(addr).expect("it listens");
        (&reset).write_all(b"GET / HTTP/1.1").expect("it is open");
        SockRef::from(&reset).set_linger(Some(Duration::ZERO)).expect("it is open");
        drop((reset, TcpStream::connect(addr).expect("it listens")));
        for _ in 0..2 {
            let (left, _) = door.next().await.expect("a client");
            assert!(has_left(&left));
        }
        let asks = TcpStream::connect(addr).expect("it listens");
        (&asks).write_all(b"GET / HTTP/1.1").expect("it is open");
        asks.shutdown(Shutdown::Write).expect("it is open");
        let (waits, _) = door.next().await.expect("a client");
        assert!(!has_left(&waits), "it closed its side and waits for a response");
    }

    #[tokio::test]
    async fn a_flood_of_clients_that_leave_is_noticed() {
        let (door, addr) = door();
        let mut departures = Departures::default();
        let mut noticed = Vec::new();
        for stays in (0..2 * CHECKED).map(|_| false).chain([true, false]) {
            let client = TcpStream::connect(addr).expect("it listens");
            let _stays = stays.then_some(client);
            let (newcomer, _) = door.next().await.expect("a client");
            noticed.push(departures.include(&newcomer));
        }
        let expected = (1..=2 * CHECKED).map(|number| number >= CHECKED).chain([false, false]);
        assert_eq!(noticed, expected.collect::<Vec<_>>());
    }

    const ALL: Listen = Listen { share: false, early: false, queues: QUEUES };

    #[test]
    fn addresses_share_the_queues() {
        let queues = |addrs: &[&str]| -> Vec<usize> {
            let addrs: Vec<SocketAddr> = addrs.iter().map(|addr| addr.parse().expect("an address")).collect();
            Listen::on(&addrs, false, |_| false, |addr| addr.port() != 9).iter().map(|(_, how)| how.queues).collect()
        };
        assert_eq!(queues(&["127.0.0.1:988"]), [256]);
        assert_eq!(queues(&["169.254.169.252:988", "127.0.0.1:988"]), [256, 1]);
        assert_eq!(queues(&["169.254.169.252:988", "[fd20:ce::252]:988", "127.0.0.1:988"]), [128, 128, 1]);
        assert_eq!(queues(&["10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3"]), [64, 64, 64]);
        assert_eq!(queues(&["127.0.0.1:1", "[::1]:1"]), [128, 128]);
        assert_eq!(queues(&["169.254.169.252:988", "[fd20:ce::252]:9"]), [256, 1]);
        assert_eq!(queues(&[]), [0; 0]);
    }

    /// 192.0.2.0/24 is for documentation; no machine has it.
    #[tokio::test]
    async fn an_address_may_come_later_where_that_is_expected() {
        let later = ([192, 0, 2, 1], 0).into();
        let bind = |early| bind_queues(later, Listen { early, queues: 2, ..ALL }).map(|doors| doors.len());
        assert_eq!(bind(false).map_err(|error| error.kind()), Err(io::ErrorKind::AddrNotAvailable));
        assert_eq!(bind(true).expect("it is expected"), 2);
    }

    /// Number of these clients in each queue.
    async fn queued(clients: impl Iterator<Item = [u8; 4]>) -> Vec<usize> {
        let doors = bind_queues((Ipv4Addr::LOCALHOST, 0).into(), ALL).expect("a port");
        assert_eq!(doors.len(), QUEUES);
        let addr = doors[0].local_addr().expect("bound");
        let connect = |client| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
            socket.bind(&SocketAddr::from((client, 0)).into()).expect("a loopback address");
            socket.connect(&addr.into()).expect("it listens");
            socket
        };
        let _clients: Vec<Socket> = clients.map(connect).collect();
        let mut queued = Vec::new();
        for door in &doors {
            let mut here = 0;
            while door.next_in_queue().await.is_some() {
                here += 1;
            }
            queued.push(here);
        }
        queued
    }

    #[tokio::test]
    async fn each_client_of_a_network_has_a_queue() {
        let queued = queued((1..=254).map(|last| [127, 0, 9, last])).await;
        assert_eq!((queued.iter().max(), queued.iter().sum()), (Some(&1), 254));
    }

    #[tokio::test]
    async fn clients_of_other_networks_have_other_queues() {
        let queued = queued((1..=32).map(|network| [127, network, 0, 1])).await;
        assert!(queued.iter().max().is_some_and(|most| *most <= 4), "{queued:?}");
    }

    #[tokio::test]
    async fn an_address_is_shared_while_another_listens_there_who_shares_it() {
        for share in [true, false] {
            let doors =
                bind_queues((Ipv4Addr::LOCALHOST, 0).into(), Listen { share, queues: 1, ..ALL }).expect("a port");
            let addr = doors[0].local_addr().expect("bound");
            assert_eq!(is_shared(addr), share);
            drop(doors);
            assert!(!is_shared(addr));
        }
        assert!(!is_shared((Ipv4Addr::LOCALHOST, 0).into()), "any port is free");
    }

    #[tokio::test]
    async fn an_address_in_use_is_an_error() {
        let doors = bind_queues((Ipv4Addr::LOCALHOST, 0).into(), ALL).expect("a port");
        let addr = doors[0].local_addr().expect("bound");
        let again = bind_queues(addr, ALL).map(drop).map_err(|error| error.kind());
        assert_eq!(again, Err(io::ErrorKind::AddrInUse));
    }
}
