//! A parked connection: one without a request being served.
//!
//! It consists of its socket and the bytes of an incomplete head, without hyper's state and buffers.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::activity::Activity;
use super::connections::{Place, Reclaim, Serving};
use super::inbox::{Gathered, Inbox};
use super::outstanding::Outstanding;
use super::socket::Socket;
use super::watchdog::Watchdog;

/// Interval between attempts to get memory to serve a request.
const ROOM_INTERVAL: Duration = Duration::from_millis(20);

/// Next step of a parked connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Read a request with hyper.
    Serve,
    /// Close: the client disconnected, or made no progress for too long.
    Leave,
    /// Reset: there is no memory for the client's bytes.
    Refuse,
}

/// Reads until a request head is complete.
pub(super) fn gather<I: Socket>(
    io: &mut I,
    inbox: &mut Inbox,
    activity: &Activity,
    place: &Place,
    mut watchdog: Pin<&mut Watchdog>,
) -> impl Future<Output = Next> {
    poll_fn(move |cx| {
        if !I::CAN_WAIT {
            return Poll::Ready(Next::Serve);
        }
        activity.tick();
        loop {
            match inbox.poll_gather(io, cx) {
                Poll::Ready(Ok(Gathered::Head)) => return Poll::Ready(Next::Serve),
                Poll::Ready(Ok(Gathered::Part)) => {
                    activity.received(0, inbox.mid_head(), false);
                    if !place.hold_head(inbox.capacity()) {
                        return Poll::Ready(Next::Refuse);
                    }
                }
                Poll::Ready(Ok(Gathered::End) | Err(_)) => {
                    // Nothing is owed to it. A FIN would be kept until the client acknowledges it, and a hostile one never does.
                    io.close_by_reset(io.outstanding() == Outstanding::Nothing);
                    return Poll::Ready(Next::Leave);
                }
                Poll::Pending => return watchdog.as_mut().poll(None, cx).map(|_| Next::Leave),
            }
        }
    })
}

/// Waits until there is memory to serve a request. The error is the next step if the connection must end instead.
pub(super) async fn wait_for_room<I: Socket>(
    io: &mut I,
    inbox: &mut Inbox,
    activity: &Activity,
    place: &Place,
    mut watchdog: Pin<&mut Watchdog>,
) -> Result<Serving, Next> {
    let mut retry = pin!(sleep(ROOM_INTERVAL));
    activity.wait_for_room(true);
    let waited = poll_fn(|cx| {
        activity.tick();
        if inbox.poll_end(io, cx).is_ready() {
            return Poll::Ready(Err(Next::Leave));
        }
        while retry.as_mut().poll(cx).is_ready() {
            if let Some(serving) = place.serve(Reclaim::No) {
                return Poll::Ready(Ok(serving));
            }
            retry.as_mut().reset(Instant::now() + ROOM_INTERVAL);
        }
        watchdog.as_mut().poll(None, cx).map(|_| Err(Next::Refuse))
    })
    .await;
    activity.wait_for_room(false);
    waited
}
