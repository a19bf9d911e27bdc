//! [`Forwarder`]: stands between the proxy and the API server, and can be told to stall.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::Place;

/// What is done with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Passing,
    /// They wait, in both directions, and neither side is told. New connections are accepted.
    Holding,
    /// New connections are closed at once.
    Refusing,
}

struct State {
    mode: Mode,
    open: Vec<TcpStream>,
}

struct Shared {
    state: Mutex<State>,
    /// Bytes in both directions.
    passed: AtomicU64,
    changed: Condvar,
}

/// A TCP forwarder on loopback. Its threads end with the test's process; its connections end with this value.
pub struct Forwarder {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

impl Forwarder {
    /// Starts one in front of this address, in the namespace of that address.
    pub fn start(place: Place, target: SocketAddr) -> Self {
        let state = Mutex::new(State { mode: Mode::Passing, open: Vec::new() });
        let shared = Arc::new(Shared { state, passed: AtomicU64::new(0), changed: Condvar::new() });
        let (send, addr) = channel();
        let work = {
            let shared = Arc::clone(&shared);
            move || {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
                send.send(listener.local_addr().expect("bound")).expect("it is waited for");
                listener.incoming().flatten().for_each(|client| shared.forward(client, target));
            }
        };
        match place {
            Some(namespace) => namespace.spawn(work),
            None => thread::spawn(work),
        };
        Self { addr: addr.recv().expect("it listens"), shared }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Bytes so far, in both directions.
    pub fn passed(&self) -> u64 {
        self.shared.passed.load(Relaxed)
    }

    /// Holds all bytes until [`pass`](Self::pass).
    pub fn hold(&self) {
        self.shared.become_(Mode::Holding);
    }

    /// Passes what was held and what comes.
    pub fn pass(&self) {
        self.shared.become_(Mode::Passing);
    }

    /// Ends all connections. New ones are forwarded.
    pub fn cut(&self) {
        self.shared.cut();
    }

    /// Ends all connections and refuses new ones until [`pass`](Self::pass).
    pub fn refuse(&self) {
        self.shared.become_(Mode::Refusing);
        self.shared.cut();
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.refuse();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn become_(&self, mode: Mode) {
        self.state().mode = mode;
        self.changed.notify_all();
    }

    fn cut(&self) {
        for stream in self.state().open.drain(..) {
            // The other side may have ended it.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn forward(self: &Arc<Self>, client: TcpStream, target: SocketAddr) {
        if self.state().mode == Mode::Refusing {
            return;
        }
        // Where the server is away, the client's connection ends as it would there.
        let Ok(server) = TcpStream::connect(target) else { return };
        let ends = [&client, &server, &server, &client].map(TcpStream::try_clone);
        let [Ok(a), Ok(b), Ok(c), Ok(d)] = ends else { return };
        self.state().open.extend([client, server]);
        for (from, to) in [(a, b), (c, d)] {
            let shared = Arc::clone(self);
            thread::spawn(move || shared.copy(from, to));
        }
    }

    fn copy(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = [0; 16384];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            let held = self.changed.wait_while(self.state(), |state| state.mode == Mode::Holding);
            drop(held);
            self.passed.fetch_add(length as u64, Relaxed);
            if to.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        // The end is held like bytes.
        drop(self.changed.wait_while(self.state(), |state| state.mode == Mode::Holding));
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}
