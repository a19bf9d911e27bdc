//! [`Whole`]: a response that is buffered as a whole, with room for it.
//!
//! `http_body_util::Limited` is not used: it collects the chunks and then copies them, which takes twice the memory
//! that was charged.

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::time::timeout;

use super::{Account, Amount, Charge};
use crate::error::Error;
use crate::failure::{Failure, UPSTREAM_TIMEOUT};
use crate::reply::Body;

/// A fully buffered response.
#[derive(Debug)]
pub struct Whole {
    /// The complete body.
    pub bytes: Bytes,
    /// The room in use, or `None` if the response is small.
    pub charge: Option<Charge>,
}

impl Account {
    /// Buffers a response, with room for it and for the response made from it, whose size `made` computes. No room is
    /// needed if neither is larger than `small`. A response that is already in memory was charged before.
    pub async fn read(&self, body: Body, small: usize, made: impl Fn(usize) -> usize) -> Result<Whole, Error> {
        let is_here = matches!(body, Body::Whole(_));
        let needs = |bytes: usize| Amount { sent: if is_here { 0 } else { bytes }, made: made(bytes) };
        let bound = bound_of(&body, self.largest()).ok_or(Error::TooLarge(self.largest()))?;
        let needed = needs(bound);
        let mut charge = if needed.sent.max(needed.made) <= small { None } else { Some(self.take(needed).await?) };
        let bytes = match timeout(UPSTREAM_TIMEOUT, collect(body, bound)).await {
            Ok(read) => read?.ok_or(Error::TooLarge(self.largest()))?,
            Err(_) => return Err(Failure::Slow(UPSTREAM_TIMEOUT).into()),
        };
        if let Some(charge) = &mut charge {
            charge.reduce_to(needs(bytes.len()));
        }
        Ok(Whole { bytes, charge })
    }
}

/// Maximum size of a body in bytes, or `None` if the body is larger than `largest`.
fn bound_of(body: &Body, largest: usize) -> Option<usize> {
    let announced = body.size_hint().exact();
    let bound = announced.map_or(largest, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    (bound <= largest).then_some(bound)
}

/// Reads a whole body. Returns `None` if it exceeds the bound.
async fn collect(mut body: Body, bound: usize) -> Result<Option<Bytes>, Error> {
    if let Body::Whole(bytes) = body {
        return Ok(Some(bytes));
    }
    let mut bytes = BytesMut::with_capacity(bound);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if bytes.len() + data.len() > bound {
            return Ok(None);
        }
        bytes.extend_from_slice(&data);
    }
    Ok(Some(bytes.freeze()))
}
