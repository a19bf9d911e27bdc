//! [`Bodies`]: the bodies of POSTs that are kept until they are complete.
//!
//! Only tokens that are bound to a certificate need them. A body is kept only while it is received, and a client has few places
//! for that: one that sends its bodies slowly waits for itself, within the time in which a request must be complete.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};

use http_body::Body;
use hyper::body::Incoming;

use super::activity::Activity;
use super::stack::Payload;
use crate::flights::{Flights, Waited};

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
        let _place = self.0.begin(Some(client), Arc::new(Receiving)).await;
        let mut kept = Vec::new();
        poll_fn(|cx| {
            // One that is not skipped after all (`framing.rs`) is left, because the connection closes after the response.
            while !activity.body_announced() {
                match ready!(Pin::new(&mut body).poll_frame(cx)) {
                    None => return Poll::Ready(Payload::Posted(std::mem::take(&mut kept).into())),
                    // It breaks off.
                    Some(Err(_)) => return Poll::Ready(Payload::Some),
                    Some(Ok(frame)) => {
                        let data = frame.into_data().unwrap_or_default();
                        kept.extend_from_slice(&data[..data.len().min(MAX_KEPT_BYTES - kept.len())]);
                    }
                }
            }
            Poll::Ready(Payload::Posted(Box::default()))
        })
        .await
    }
}
