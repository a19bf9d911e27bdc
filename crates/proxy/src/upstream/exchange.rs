//! [`exchange`]: sends a request on a connection. [`Incoming`]: the body of the response.
//!
//! The task that waits for a response reads it itself. A client that gives each connection a task of its own (hyper's) needs
//! two buffers and two channels for each, and wakes two tasks for each response.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::Response;

use super::framing::Framing;
use super::head::Head;
use super::pool::Lease;
use crate::failure::Failure;

/// Sends the head of a request without a body, and returns the response as soon as its head has arrived. `is_head`: the method
/// is HEAD.
pub(super) async fn exchange(mut lease: Lease, request: &[u8], is_head: bool) -> Result<Response<Incoming>, Failure> {
    lease.connection().write(request).await.map_err(|_| Failure::Closed)?;
    let mut read = more(&mut lease).await?;
    let head = loop {
        match Head::split_off(&mut read, is_head)? {
            Some(head) if head.is_interim() => {}
            Some(head) => break head,
            None => {
                let mut joined = BytesMut::from(read);
                joined.extend_from_slice(&more(&mut lease).await?);
                read = joined.freeze();
            }
        }
    };
    let mut response =
        Response::new(Incoming { lease: Some(lease), framing: head.framing, is_kept: head.is_kept, read });
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    Ok(response)
}

/// What arrives next of a head.
async fn more(lease: &mut Lease) -> Result<Bytes, Failure> {
    match poll_fn(|cx| lease.connection().poll_read(cx)).await {
        Ok(read) if !read.is_empty() => Ok(read),
        Ok(_) | Err(_) => Err(Failure::Closed),
    }
}

/// The body of a response. Dropping it before its end closes the connection, which cancels the request at the upstream.
#[derive(Debug)]
pub(super) struct Incoming {
    /// `None` once the body has ended, which returns the connection to the pool or closes it.
    lease: Option<Lease>,
    framing: Framing,
    is_kept: bool,
    /// Bytes that were read and are not decoded.
    read: Bytes,
}

impl Incoming {
    /// Number of bytes left, if the upstream has announced it.
    pub(super) fn announced(&self) -> Option<u64> {
        match &self.framing {
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
            let data = self.framing.decode(&mut self.read)?;
            if self.framing.is_complete() {
                self.end();
            }
            if !data.is_empty() {
                return Poll::Ready(Ok(Some(data)));
            }
            let Some(lease) = &mut self.lease else { return Poll::Ready(Ok(None)) };
            self.read = match ready!(lease.connection().poll_read(cx)) {
                Ok(read) if !read.is_empty() => read,
                Ok(_) if matches!(self.framing, Framing::ToEnd) => {
                    self.lease = None;
                    return Poll::Ready(Ok(None));
                }
                Ok(_) | Err(_) => return Poll::Ready(Err(Failure::CutShort)),
            };
        }
    }

    /// The body is complete. Bytes behind it are nobody's response, so their connection is closed.
    fn end(&mut self) {
        if let Some(lease) = self.lease.take()
            && self.is_kept
            && self.read.is_empty()
        {
            lease.finish();
        }
    }
}

#[cfg(test)]
mod tests;
