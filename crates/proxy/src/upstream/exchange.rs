//! [`exchange`]: sends a request on a connection. [`Incoming`]: the body of the response.
//!
//! The task that waits for a response reads it itself. A client that gives each connection a task of its own (hyper's) needs
//! two buffers and two channels for each, and wakes two tasks for each response.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use http::Response;

use super::framing::{Framing, Rest};
use super::head::Head;
use super::outgoing::Outgoing;
use super::pool::Lease;
use super::timing::ExchangeTimer;
use crate::failure::Failure;

/// Sends a request, and returns the response as soon as its head has arrived.
#[expect(clippy::manual_async_fn, reason = "an `async fn` would keep its arguments twice, for each request that waits")]
pub(super) fn exchange(
    lease: Lease,
    request: &mut Outgoing,
    timer: &mut ExchangeTimer,
) -> impl Future<Output = Result<Response<Incoming>, Failure>> + Send {
    async move {
        let mut waiting = Waiting { lease: None, timer };
        let connection = &mut waiting.lease.insert(lease).connection;
        let head = async {
            connection.write(&request.bytes).await.map_err(|_| Failure::Closed)?;
            let mut read = Bytes::new();
            loop {
                let piece = poll_fn(|cx| connection.poll_read(cx)).await.map_err(|_| Failure::Closed)?;
                if let Some(head) = Head::read(&mut read, piece, request.is_head, &mut request.headers)? {
                    return Ok(head);
                }
            }
        }
        .await;
        // It has ended, and was not abandoned.
        let lease = waiting.lease.take();
        let head = head?;
        let mut response = Response::new(Incoming { lease, rest: head.rest });
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers;
        Ok(response)
    }
}

/// A request that waits for its response.
struct Waiting<'a> {
    /// `None` once the request has come to an end.
    lease: Option<Lease>,
    timer: &'a mut ExchangeTimer,
}

impl Drop for Waiting<'_> {
    /// The request is abandoned. If something has arrived, be it the end of the connection, the server was not late; the request has
    /// had no turn since, as under a flood.
    fn drop(&mut self) {
        if self.lease.as_ref().is_some_and(|lease| !lease.connection.is_quiet()) {
            self.timer.arrived();
        }
    }
}

/// The body of a response. Dropping it before its end closes the connection, which cancels the request at the upstream.
#[derive(Debug)]
pub(super) struct Incoming {
    /// `None` once the body has ended, which returns the connection to the pool or closes it.
    lease: Option<Lease>,
    rest: Rest,
}

impl Incoming {
    /// Number of bytes left, if the upstream has announced it.
    pub(super) fn announced(&self) -> Option<u64> {
        match &self.rest.framing {
            Framing::Length(left) => Some(*left),
            Framing::Chunked(_) | Framing::ToEnd => None,
        }
    }

    /// Whether the body has been read to its end.
    pub(super) fn is_complete(&self) -> bool {
        self.lease.is_none()
    }

    /// The whole body, if its length was announced and it has arrived with the head, as nearly all do.
    pub(super) fn at_hand(&mut self) -> Result<Option<Bytes>, Failure> {
        let is_here = self.announced().is_some_and(|bytes| bytes <= self.rest.read.len() as u64);
        if is_here { self.decode().map(Some) } else { Ok(None) }
    }

    /// The next data, which is not empty. `None` at the end of the body.
    pub(super) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Failure>> {
        loop {
            let data = self.decode()?;
            if !data.is_empty() {
                return Poll::Ready(Ok(Some(data)));
            }
            let Some(lease) = &mut self.lease else { return Poll::Ready(Ok(None)) };
            let piece = ready!(lease.connection.poll_read(cx)).map_err(|_| Failure::CutShort)?;
            self.rest.add(piece)?;
        }
    }

    /// Reads more of a body, whose length was announced, into memory that has room for it. Returns whether there was more.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>, space: &mut BytesMut) -> Poll<Result<bool, Failure>> {
        let data = self.decode()?;
        if !data.is_empty() {
            space.extend_from_slice(&data);
            return Poll::Ready(Ok(true));
        }
        let (Some(lease), Framing::Length(left)) = (&mut self.lease, &mut self.rest.framing) else {
            return Poll::Ready(Ok(false));
        };
        // What follows the body stays in the socket, so that the connection is not used again.
        let wanted = usize::try_from(*left).unwrap_or(usize::MAX);
        match ready!(lease.connection.poll_read_into(cx, &mut space.limit(wanted))).map_err(|_| Failure::CutShort)? {
            0 => Poll::Ready(Err(Failure::CutShort)),
            read => {
                *left -= read as u64;
                Poll::Ready(Ok(true))
            }
        }
    }

    /// The data in what was read, which may be empty. Lets go of the connection at the end of the body.
    fn decode(&mut self) -> Result<Bytes, Failure> {
        let (data, end) = self.rest.decode()?;
        if let Some(is_kept) = end
            && let Some(lease) = self.lease.take()
            && is_kept
        {
            lease.finish();
        }
        Ok(data)
    }
}

#[cfg(test)]
mod tests;
