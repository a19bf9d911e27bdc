//! [`Reporter`]: informs the API server about pods, later.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::time::Instant;

use crate::kube::Client;
use crate::pod::Pod;

/// A later event of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// Its addresses are reported to the API server.
    Addresses,
    /// It is reported to have succeeded or failed. Its object stays.
    Ended,
    /// Its object is deleted for good.
    Gone,
    /// Its processes are killed.
    Killed,
}

/// A thread with a queue.
pub struct Reporter {
    events: Option<Sender<(Instant, Event, Arc<Pod>)>>,
    thread: Option<JoinHandle<()>>,
}

impl Reporter {
    /// Starts a reporter for this server.
    pub fn start(mut api: Client) -> Self {
        let (send, events) = channel();
        let thread = thread::spawn(move || work(&mut api, &events));
        Self { events: Some(send), thread: Some(thread) }
    }

    /// Lets an event happen after this time.
    pub fn after(&self, time: Duration, event: Event, pod: &Arc<Pod>) {
        let sent = self.events.as_ref().map(|events| events.send((Instant::now() + time, event, Arc::clone(pod))));
        assert!(matches!(sent, Some(Ok(()))), "the reporter has ended");
    }
}

/// Pending events are dropped.
impl Drop for Reporter {
    fn drop(&mut self) {
        drop(self.events.take());
        // A panic was printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn work(api: &mut Client, events: &Receiver<(Instant, Event, Arc<Pod>)>) {
    // The number makes each entry different, so pods need no order.
    let (mut queue, mut pods) = (BinaryHeap::new(), Vec::new());
    loop {
        let due = queue.peek().map(|Reverse((due, _, _)): &Reverse<(Instant, usize, Event)>| *due);
        let wait = due.map_or(Duration::from_secs(60), |due| due.saturating_duration_since(Instant::now()));
        match events.recv_timeout(wait) {
            Ok((due, event, pod)) => {
                queue.push(Reverse((due, pods.len(), event)));
                pods.push(Some(pod));
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some(Reverse((_, number, event))) = queue.pop() {
                    pods[number].take().iter().for_each(|pod| happen(api, event, pod));
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn happen(api: &mut Client, event: Event, pod: &Pod) {
    match event {
        Event::Addresses => api.set_addresses(&pod.object, &pod.address.both()),
        Event::Ended => api.set_phase(&pod.object, if fastrand::bool() { "Succeeded" } else { "Failed" }),
        Event::Gone => api.delete_pod(&pod.object, 0),
        Event::Killed => pod.kill(),
    }
}
