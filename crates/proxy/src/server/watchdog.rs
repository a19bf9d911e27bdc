//! [`Watchdog`]: determines the deadline of a connection, and reports when it has passed.
//!
//! [`deadline`] is the table: one timeout for each state of a connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::activity::{Activity, Doing};
use super::drain::LastCall;

// Timeouts of a connection that makes no progress. Not configurable yet.

/// From the first to the last byte of a request head, and of the body after it if the body is read. Enough for slow networks, and
/// limits slow attackers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Without a request. Exceeds the minute for which client libraries keep connections, so that they do not send a request on a closing
/// one.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// Without the client reading any byte of an available response.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Waiting for memory to serve a request.
const ROOM_TIMEOUT: Duration = Duration::from_millis(2500);

/// Without a request, once the process is draining. An active connection serves one more request, for the same reason as above.
const LAST_CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// The action that a connection must take now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Park: the connection has been idle for long enough.
    Park,
    /// Close: the deadline has passed.
    Close,
}

/// The time at which a connection is closed unless its state changes, or `None` if there is no deadline.
fn deadline(doing: Doing) -> Option<Instant> {
    match doing {
        Doing::NotReading(since) => Some(since + WRITE_TIMEOUT),
        // Bounded by the upstream's deadlines, and ends if the client disconnects: see `Inbox::poll_end`.
        Doing::Answering => None,
        Doing::WaitingForRoom(since) => Some(since + ROOM_TIMEOUT),
        Doing::Sending(since) => Some(since + HEADER_TIMEOUT),
        Doing::Leaving(since) => Some(since + LAST_CALL_TIMEOUT),
        Doing::Idle(since) => Some(since + IDLE_TIMEOUT),
    }
}

pin_project! {
    /// Watches a connection: its single timer, and the signal that the process is draining.
    pub(super) struct Watchdog {
        activity: Arc<Activity>,
        #[pin]
        timer: Sleep,
        last_call: LastCall,
        #[pin]
        comes: WaitForCancellationFutureOwned,
        // The waker of the connection's task, which the timer and the signal wake.
        wakes: Option<Waker>,
    }
}

impl Watchdog {
    pub(super) fn new(last_call: &LastCall, activity: &Arc<Activity>) -> Self {
        let timer = sleep_until(Instant::now() + HEADER_TIMEOUT);
        let (last_call, comes) = (last_call.clone(), last_call.comes());
        Self { activity: Arc::clone(activity), timer, last_call, comes, wakes: None }
    }

    /// Ready when the connection's timeout has expired, or when it has been idle for `idle_for`.
    ///
    /// There is a single timer. It is reset only when it fires or when an earlier deadline appears, because
    /// deadlines mostly move later, and a spurious wakeup costs less than resetting the timer on every
    /// request. Timer and signal are not polled again while they hold the right waker, because that takes
    /// locks.
    pub(super) fn poll(self: Pin<&mut Self>, idle_for: Option<Duration>, cx: &mut Context<'_>) -> Poll<Due> {
        let mut this = self.project();
        let mut is_set = this.wakes.as_ref().is_some_and(|wakes| wakes.will_wake(cx.waker()));
        if !is_set {
            *this.wakes = Some(cx.waker().clone());
            // The deadline is checked next.
            let _ = this.comes.poll(cx);
        }
        if this.last_call.has_come() {
            this.activity.call_last();
        }
        let now = Instant::now;
        loop {
            let park = idle_for.and_then(|idle_for| Some(this.activity.idle_since()? + idle_for));
            if park.is_some() && idle_for == Some(Duration::ZERO) {
                return Poll::Ready(Due::Park);
            }
            let deadline = deadline(this.activity.doing());
            let next = [park, deadline].into_iter().flatten().min().unwrap_or_else(|| now() + HEADER_TIMEOUT);
            if next < this.timer.deadline() {
                this.timer.as_mut().reset(next);
            }
            if is_set && !this.timer.is_elapsed() {
                return Poll::Pending;
            }
            ready!(this.timer.as_mut().poll(cx));
            is_set = false;
            let now = now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Poll::Ready(Due::Close);
            }
            if park.is_some_and(|park| park <= now) {
                return Poll::Ready(Due::Park);
            }
            this.timer.as_mut().reset(next.max(now + Duration::from_millis(1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::super::activity::Answering;
    use super::*;

    /// Each row: what a connection does in its fifth second, and the number of further seconds until it is closed.
    #[tokio::test(start_paused = true)]
    async fn each_state_has_its_timeout() {
        type Does = fn(&Arc<Activity>) -> Option<Answering>;
        let rows: [(&str, Does, Option<u64>); 9] = [
            ("nothing at all", |_| None, Some(85)),
            (
                "an empty line",
                |does| {
                    does.received(0, false, false);
                    None
                },
                Some(90),
            ),
            (
                "part of a head",
                |does| {
                    does.received(0, true, false);
                    None
                },
                Some(10),
            ),
            (
                "a head that is being answered",
                |does| {
                    does.received(1, false, false);
                    Some(does.answering())
                },
                None,
            ),
            (
                "a head and part of its body",
                |does| {
                    does.received(1, true, false);
                    Some(does.answering())
                },
                Some(10),
            ),
            (
                "a response that is not read",
                |does| {
                    does.blocked();
                    Some(does.answering())
                },
                Some(30),
            ),
            (
                "a response that ended and is not read",
                |does| {
                    drop(does.answering());
                    does.blocked();
                    None
                },
                Some(30),
            ),
            (
                "a head without memory to serve it",
                |does| {
                    does.wait_for_room(true);
                    None
                },
                Some(2),
            ),
            (
                "nothing, and the process ends",
                |does| {
                    does.received(0, false, false);
                    does.call_last();
                    None
                },
                Some(1),
            ),
        ];
        for (what, does, left) in rows {
            let activity = Arc::new(Activity::new());
            advance(Duration::from_secs(5)).await;
            activity.tick();
            let _answering = does(&activity);
            let deadline = deadline(activity.doing());
            assert_eq!(deadline.map(|deadline| (deadline - Instant::now()).as_secs()), left, "{what}");
        }
    }
}
