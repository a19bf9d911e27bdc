//! [`Bodies`]: the bodies of POSTs that are kept until they are complete.
//!
//! Only tokens that are bound to a certificate need them. A body is kept only while it is received, and a client has few places
//! for that: one that sends its bodies slowly waits for itself, within the time in which a request must be complete. Where clients
//! hold all places, the one that holds most loses a slow body to one that holds clearly less: the body is then read without being
//! kept, and its request answered as if it had none.

use std::future::{pending, poll_fn};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::select;

use super::activity::Activity;
use super::stack::Payload;
use crate::flights::{Flight, Flights, Waited};

/// Maximum bodies that are received at once. With [`MAX_KEPT_BYTES`], they have half a MiB.
const MAX_BODIES: usize = 32;

/// Maximum of them from one client. A body that arrives with its head is received at once.
const MAX_BODIES_OF_CLIENT: usize = 4;

/// Maximum part of a body that is kept, in bytes. One byte more than a chain of certificates may have, so that a longer one shows.
const MAX_KEPT_BYTES: usize = protocol::metadata::certificate::MAX_BODY_BYTES + 1;

/// Places for bodies that are being received.
#[derive(Debug)]
pub struct Bodies(Flights);

impl Default for Bodies {
    fn default() -> Self {
        Self(Flights::with_client_limit(MAX_BODIES, MAX_BODIES_OF_CLIENT))
    }
}

/// A body that is being received. Nobody but its sender waits for it.
#[derive(Debug)]
struct Receiving;

impl Waited for Receiving {
    fn no_other_client_waits(&self, _: Option<IpAddr>) -> bool {
        true
    }
}

impl Bodies {
    /// Receives a body to its end. The watchdog bounds the time.
    pub(super) async fn receive(
        self: Arc<Self>,
        client: IpAddr,
        mut body: Incoming,
        activity: Arc<Activity>,
    ) -> Payload {
        if body.is_end_stream() || activity.body_announced() {
            return Payload::Posted(Box::default());
        }
        let mut place = Some(self.0.begin(Some(client), Arc::new(Receiving)).await);
        let mut kept = Vec::with_capacity(MAX_KEPT_BYTES);
        // One that is not skipped after all (`framing.rs`) is left, because the connection closes after the response.
        while !activity.body_announced() {
            let frame = select! {
                biased;
                frame = next_frame(&mut body, &activity) => frame,
                () = given_up(place.as_ref()) => {
                    // The rest is read and discarded.
                    (place, kept) = (None, Vec::new());
                    continue;
                }
            };
            match frame {
                Some(Ok(frame)) if place.is_some() => {
                    let data = frame.into_data().unwrap_or_default();
                    kept.extend_from_slice(&data[..data.len().min(MAX_KEPT_BYTES - kept.len())]);
                }
                Some(Ok(_)) => {}
                // It breaks off.
                Some(Err(_)) => return Payload::Some,
                None if activity.body_announced() => break,
                None => return Payload::Posted(kept.into()),
            }
        }
        Payload::Posted(Box::default())
    }
}

/// Reads a body to its end and discards it, so that the connection can continue. A body that breaks off also counts as
/// ended: its request is answered. A body that turns out not to be skipped (`framing.rs`) is left unread, because the
/// connection closes after the response.
pub(super) async fn discard(mut body: Incoming, activity: Arc<Activity>) -> Payload {
    let mut payload = Payload::Empty;
    while let Some(frame) = next_frame(&mut body, &activity).await {
        payload = Payload::Some;
        if frame.is_err() {
            break;
        }
    }
    if activity.body_announced() { Payload::Some } else { payload }
}

/// The next part of a body. `None` at its end, and when it turns out that the body is not read to its end.
async fn next_frame(body: &mut Incoming, activity: &Activity) -> Option<Result<Frame<Bytes>, hyper::Error>> {
    poll_fn(|cx| if activity.body_announced() { Poll::Ready(None) } else { Pin::new(&mut *body).poll_frame(cx) }).await
}

/// Resolves when another client gets the place.
async fn given_up(place: Option<&Flight<'_>>) {
    match place {
        Some(place) => place.given_up().await,
        None => pending().await,
    }
}
