//! [`Room`]: memory for answers that are being redacted.
//!
//! Cutting needs the whole of an answer and makes another of at most its size, so both together may take twice
//! [`LARGEST`]; a process that must stay within 25 MiB can afford one such answer at a time, or many small ones. An answer
//! keeps its room until its client has it: a client that reads nothing is cut off by the time-out for writes.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::redact::LARGEST;
use crate::error::{Error, Overload};
use crate::reply::Body;
use crate::upstream::DEADLINE;

/// Up to so many bytes an answer needs no room: listings, and the trees of accounts that Python's library asks for. With
/// 200 requests in flight this is 1.6 MiB at most.
const SMALL: usize = 8 * 1024;

const UNIT: usize = 1024;

/// Bytes for redaction, in KiB.
#[derive(Debug, Clone)]
pub(super) struct Room(Arc<Semaphore>);

/// An answer before it was cut, and its room.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) bytes: Bytes,
    room: Option<OwnedSemaphorePermit>,
}

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LARGEST / UNIT)))
    }
}

impl Room {
    /// Reads an answer; nothing if it is larger than [`LARGEST`].
    pub(super) async fn read(&self, mut body: Body) -> Result<Option<Tree>, Error> {
        let announced = body.size_hint().exact().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let bound = announced.unwrap_or(LARGEST);
        if bound > LARGEST {
            return Ok(None);
        }
        let room = if bound <= SMALL { None } else { Some(self.take(bound).await?) };
        let mut bytes = BytesMut::with_capacity(announced.unwrap_or(0));
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(|failure| Error::Upstream(Arc::new(failure)))?.into_data() {
                if bytes.len() + data.len() > bound {
                    return Ok(None);
                }
                bytes.extend_from_slice(&data);
            }
        }
        Ok(Some(Tree { bytes: bytes.freeze(), room }))
    }

    /// Waits for room, no longer than the upstream may take for an answer.
    async fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Error> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        match tokio::time::timeout(DEADLINE, Arc::clone(&self.0).acquire_many_owned(units)).await {
            Ok(Ok(room)) => Ok(room),
            _ => Err(Overload::Redaction.into()),
        }
    }
}

impl Tree {
    /// What is left of it; its room is given back with the last of these bytes.
    pub(super) fn left(self, bytes: Vec<u8>) -> Bytes {
        struct Left {
            bytes: Vec<u8>,
            _room: OwnedSemaphorePermit,
        }

        impl AsRef<[u8]> for Left {
            fn as_ref(&self) -> &[u8] {
                &self.bytes
            }
        }

        match self.room {
            Some(room) => Bytes::from_owner(Left { bytes, _room: room }),
            None => bytes.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(bytes: usize) -> Body {
        Body::Whole(vec![b'x'; bytes].into())
    }

    #[tokio::test]
    async fn too_large_an_answer_is_not_read() {
        assert!(Room::default().read(body(LARGEST + 1)).await.expect("no failure").is_none());
        assert!(Room::default().read(body(LARGEST)).await.expect("no failure").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn room_is_given_back_with_the_last_byte_and_small_answers_need_none() {
        let room = Room::default();
        let large = room.read(body(LARGEST)).await.expect("room").expect("not too large").left(vec![b'y'; 3]);
        let second_handle = large.slice(1..);
        drop(large);
        assert!(matches!(room.read(body(SMALL + 1)).await, Err(Error::Overloaded(Overload::Redaction))));
        assert!(room.read(body(SMALL)).await.is_ok());
        drop(second_handle);
        assert!(room.read(body(SMALL + 1)).await.is_ok());
    }
}
