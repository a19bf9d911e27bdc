//! Listening and accepting.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use super::Drain;
use super::activity::Activity;
use super::arrival::Arrival;
use super::bodies::Bodies;
use super::connection::Connection;
use super::connections::{Connections, NoRoom, Place, WaitFor};
use super::door::{Departures, Door};
use super::inbox::Inbox;
use super::patience::{Patience, Wait};
use super::socket::{Cuttable, Socket};
use super::stack::{NewStack, Stack};
use super::turns::Taker;
use telemetry::shedding::Shed;

/// Delay after an `accept` error that persists, such as running out of file descriptors.
const BACK_OFF: Duration = Duration::from_millis(50);

/// Number of times a waiting newcomer yields to other tasks before it polls for a place at intervals.
const MAX_YIELDS: u32 = 3;

/// First and longest interval between attempts to get a place. An attempt scans all connections.
const PLACE_POLL_INTERVAL: Duration = Duration::from_millis(1);
const MAX_PLACE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum time to accept connections that are already queued when the drain begins. Closing a listener resets the
/// connections in its queue.
const QUEUE_DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// Number of newcomers accepted before other tasks get their turn.
const ACCEPTED_AT_ONCE: usize = 8;

/// Everything a listener needs to serve connections.
#[derive(Debug)]
pub struct Server<N> {
    /// Creates the stack of each connection.
    pub stacks: Arc<N>,
    /// Limits on the number and memory of connections.
    pub connections: Arc<Connections>,
    /// Signals when to stop.
    pub drain: Drain,
    /// Whether the interface that each connection came in by is read, which takes two system calls, or three with IPv6.
    pub reads_interfaces: bool,
    /// Where the bodies of POSTs are received. `None` if no request has a use for them.
    pub bodies: Option<Arc<Bodies>>,
}

impl<N, S> Server<N>
where
    N: NewStack<Stack = S> + Send + Sync + 'static,
    S: Stack<Body: http_body::Body<Data: Send> + Send>,
{
    /// Accepts and serves the connections of this door until the drain begins. `number` identifies the door. Returns
    /// once the door is closed; accepted connections continue.
    pub fn run(self: Arc<Self>, number: usize, door: Door) -> impl Future<Output = ()> + Send {
        let turns = Arc::clone(&self.connections.turns);
        turns.share(Taker::Door(number), None, self.accept(door))
    }

    // There are hundreds of doors. Rare waits are boxed to keep the task of an idle door small.
    async fn accept(self: Arc<Self>, door: Door) {
        let doors = self.drain.doors();
        let mut closing = pin!(doors.cancelled());
        let (mut patience, mut departures) = (Patience::new(), Departures::default());
        for accepted in 1.. {
            let newcomer = tokio::select! {
                biased;
                () = closing.as_mut() => break,
                newcomer = door.next() => newcomer,
            };
            match newcomer {
                Ok((stream, peer)) if departures.include(&stream) => {
                    self.connections.accepted();
                    self.connections.shedding.closed(Shed::Door, peer);
                    stream.close_by_reset(true);
                }
                Ok((stream, peer)) => self.take(stream, peer, &mut patience).await,
                // The client disconnected before the connection was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if self.connections.accept_errors.due(Instant::now()).is_some() {
                        tracing::warn!(%error, "cannot accept connections; retrying every {} ms", BACK_OFF.as_millis());
                    }
                    Box::pin(sleep(BACK_OFF)).await;
                }
            }
            if accepted % ACCEPTED_AT_ONCE == 0 {
                pause().await;
            }
        }
        let drained = async {
            for accepted in 1.. {
                let Some((stream, peer)) = door.next_in_queue().await else { break };
                self.take(stream, peer, &mut patience).await;
                // Otherwise a client that keeps the queue full would be served until it stops: the timeout below is looked at
                // only between polls.
                if accepted % ACCEPTED_AT_ONCE == 0 {
                    pause().await;
                }
            }
        };
        // What is left in the queue is reset by the close of the listener, and may ask the next process.
        let _ = Box::pin(timeout(QUEUE_DRAIN_TIMEOUT, drained)).await;
    }

    async fn take(&self, stream: TcpStream, peer: SocketAddr, patience: &mut Patience) {
        self.connections.accepted();
        let arrival = Arrival::now(peer);
        let activity = Arc::new(Activity::new());
        let Some(place) = self.admit(arrival, &activity, patience).await else {
            self.connections.shedding.reset();
            self.connections.shedding.closed(Shed::Connections, peer);
            stream.close_by_reset(true);
            return;
        };
        // After the admission: a newcomer that is reset costs little.
        let arrival = if self.reads_interfaces { arrival.with_interface(&stream) } else { arrival };
        let (number, turns) = (place.number, Arc::clone(&self.connections.turns));
        let taker = Taker::Client(arrival.addr());
        let connection = Connection {
            io: Cuttable::new(stream, Arc::clone(&activity)),
            inbox: Inbox::default(),
            arrival,
            stacks: Arc::clone(&self.stacks),
            memory: None,
            last_call: self.drain.last_call(),
            activity: Arc::clone(&activity),
            place,
            bodies: self.bodies.clone(),
        };
        let task = self.drain.spawn(turns.share(taker, Some(activity), connection.serve()));
        self.connections.started(number, task);
    }

    /// Gets a place for a newcomer, if there is one. If only very recent connections could give way, they get their
    /// turn first while patience lasts, because those with a request will then be in flight.
    async fn admit(&self, arrival: Arrival, activity: &Arc<Activity>, patience: &mut Patience) -> Option<Place> {
        patience.grow();
        let mut wait = Wait::default();
        let mut turn = 0;
        let place = loop {
            let began = Instant::now();
            let wait_for = match turn {
                _ if patience.lasts(&wait) => WaitFor::Silence,
                0 => WaitFor::Reading,
                _ => WaitFor::Nothing,
            };
            match self.connections.admit(arrival, activity, wait_for) {
                Ok(place) => break Some(place),
                Err(NoRoom::Refused) => break None,
                Err(NoRoom::Later) if turn < MAX_YIELDS => {
                    Box::pin(self.connections.meanwhile(yield_now())).await;
                    wait.yielded_for(began.elapsed());
                }
                Err(NoRoom::Later) => {
                    let interval = (PLACE_POLL_INTERVAL * (turn - MAX_YIELDS + 1)).min(MAX_PLACE_POLL_INTERVAL);
                    Box::pin(self.connections.meanwhile(sleep(interval))).await;
                    wait.slept_for(began.elapsed());
                }
            }
            turn += 1;
        };
        patience.spend(&wait);
        place
    }
}

/// Lets other tasks run, without waiting for the event loop.
async fn pause() {
    let mut has_paused = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_paused, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpStream};

    use bytes::Bytes;
    use http_body_util::Empty;

    use super::*;
    use crate::server::{Payload, bind};

    /// Serves a client that is in the queue when the end begins. `places`: the limit on connections.
    async fn end_with_a_client_in_the_queue(places: usize) -> TcpStream {
        let door = bind((Ipv4Addr::LOCALHOST, 0).into(), false).expect("a port");
        let mut newcomer = TcpStream::connect(door.local_addr().expect("bound")).expect("it listens");
        newcomer.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("it is open");
        let stacks = |_: Arrival| {
            tower::service_fn(|_: http::Request<Payload>| ready(Ok(http::Response::new(Empty::<Bytes>::new()))))
        };
        let server = Arc::new(Server {
            stacks: Arc::new(stacks),
            connections: Connections::of_operators(places),
            drain: Drain::default(),
            reads_interfaces: false,
            bodies: None,
        });
        let drain = server.drain.clone();
        drain.close_doors();
        server.run(0, door).await;
        drain.finish(Duration::from_secs(10)).await;
        newcomer
    }

    #[tokio::test]
    async fn who_is_in_the_queue_at_the_end_is_served() {
        let mut answer = String::new();
        end_with_a_client_in_the_queue(1).await.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    }

    /// A newcomer that finds no place is the slowest to take.
    #[tokio::test(start_paused = true)]
    async fn who_is_in_the_queue_does_not_delay_the_end() {
        let began = Instant::now();
        end_with_a_client_in_the_queue(0).await;
        assert_eq!(began.elapsed(), QUEUE_DRAIN_TIMEOUT, "not until its patience ends");
    }
}
