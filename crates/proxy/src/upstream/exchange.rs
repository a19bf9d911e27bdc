//! [`exchange`]: sends a request on a connection. [`Incoming`]: the body of the response.
//!
//! The task that waits for a response reads it itself. A client that gives each connection a task of its own (hyper's) needs
//! two buffers and two channels for each, and wakes two tasks for each response.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;

use super::framing::{Framing, Rest};
use super::head::Head;
use super::pool::Lease;
use crate::failure::Failure;

/// Sends the head of a request without a body, and returns the response as soon as its head has arrived. `is_head`: the method
/// is HEAD.
pub(super) async fn exchange(mut lease: Lease, request: &[u8], is_head: bool) -> Result<Response<Incoming>, Failure> {
    lease.connection().write(request).await.map_err(|_| Failure::Closed)?;
    let mut read = Bytes::new();
    let head = loop {
        let piece = poll_fn(|cx| lease.connection().poll_read(cx)).await.map_err(|_| Failure::Closed)?;
        if let Some(head) = Head::read(&mut read, piece, is_head)? {
            break head;
        }
    };
    let mut response = Response::new(Incoming { lease: Some(lease), rest: head.rest });
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    Ok(response)
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

    /// The next data, which is not empty. `None` at the end of the body.
    pub(super) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Failure>> {
        loop {
            let (data, end) = self.rest.decode()?;
            if let Some(is_kept) = end
                && let Some(lease) = self.lease.take()
                && is_kept
            {
                lease.finish();
            }
            if !data.is_empty() {
                return Poll::Ready(Ok(Some(data)));
            }
            let Some(lease) = &mut self.lease else { return Poll::Ready(Ok(None)) };
            let piece = ready!(lease.connection().poll_read(cx)).map_err(|_| Failure::CutShort)?;
            self.rest.add(piece)?;
        }
    }
}

#[cfg(test)]
mod tests;
