//! [`SeatedBody`]: a response body that holds its request's seat.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::seats::Seat;
use crate::reply::AtHand;

/// Minimum size of a chunk that holds the seat itself, in bytes. hyper drops the chunk, and with it the seat, once the
/// socket has accepted it. A smaller chunk needs no seat while its reader is slow: it takes little memory and no
/// upstream capacity.
const MIN_SEATED_BYTES: usize = 1024;

pin_project! {
    /// A body that releases its request's seat once it has been written or dropped.
    #[derive(Debug)]
    pub struct SeatedBody<B> {
        #[pin]
        inner: B,
        seat: Option<Arc<Seat>>,
    }
}

impl<B: AtHand> SeatedBody<B> {
    pub(super) fn new(inner: B, seat: Option<Seat>) -> Self {
        let is_small = inner.at_hand().is_some_and(|bytes| bytes < MIN_SEATED_BYTES);
        Self { inner, seat: seat.filter(|_| !is_small).map(Arc::new) }
    }
}

impl<B: AtHand<Data = Bytes>> AtHand for SeatedBody<B> {
    fn at_hand(&self) -> Option<usize> {
        self.inner.at_hand()
    }
}

/// The body of a response to a request without a seat: it was refused, or needed none.
impl<B> From<B> for SeatedBody<B> {
    fn from(inner: B) -> Self {
        Self { inner, seat: None }
    }
}

impl<B: Body<Data = Bytes>> Body for SeatedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let frame = ready!(this.inner.poll_frame(cx));
        let Some(seat) = this.seat.as_ref() else { return Poll::Ready(frame) };
        Poll::Ready(match frame {
            None => {
                *this.seat = None;
                None
            }
            Some(Ok(frame)) => Some(Ok(frame.map_data(|data| with_seat(data, seat)))),
            failed => failed,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

fn with_seat(data: Bytes, seat: &Arc<Seat>) -> Bytes {
    if data.len() < MIN_SEATED_BYTES { data } else { Bytes::from_owner(SeatedChunk { data, _seat: Arc::clone(seat) }) }
}

/// A chunk of a body that holds the seat.
struct SeatedChunk {
    data: Bytes,
    _seat: Arc<Seat>,
}

impl AsRef<[u8]> for SeatedChunk {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::{BodyExt, Full};

    use super::super::seats::{Admission, Seats};
    use super::*;

    /// A body of one chunk, which is in memory (`at_hand`) or not.
    struct OneChunk {
        bytes: Full<Bytes>,
        is_at_hand: bool,
    }

    impl Body for OneChunk {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Pin::new(&mut self.bytes).poll_frame(cx)
        }
    }

    impl AtHand for OneChunk {
        fn at_hand(&self) -> Option<usize> {
            self.is_at_hand.then(|| usize::try_from(self.bytes.size_hint().lower()).expect("few"))
        }
    }

    fn seated(bytes: usize, is_at_hand: bool) -> (Arc<Seats>, SeatedBody<OneChunk>) {
        let seats = Seats::new(1);
        let Admission::Seat(seat) = seats.admit(None) else { panic!("a free seat") };
        let bytes = Full::new(Bytes::from(vec![b'x'; bytes]));
        (seats, SeatedBody::new(OneChunk { bytes, is_at_hand }, Some(seat)))
    }

    #[test]
    fn a_small_body_in_memory_needs_no_seat() {
        for (bytes, taken) in [(MIN_SEATED_BYTES - 1, 0), (MIN_SEATED_BYTES, 1)] {
            let (seats, _body) = seated(bytes, true);
            assert_eq!(seats.taken(), taken, "{bytes}");
        }
    }

    #[tokio::test]
    async fn the_seat_is_held_until_the_body_has_ended() {
        let (seats, mut body) = seated(10, false);
        body.frame().await.expect("a frame").expect("no failure");
        assert_eq!(seats.taken(), 1, "the end has not been seen yet");
        assert!(body.frame().await.is_none());
        assert_eq!(seats.taken(), 0);
    }

    #[tokio::test]
    async fn a_large_chunk_holds_the_seat_until_it_is_written() {
        let (seats, mut body) = seated(MIN_SEATED_BYTES, true);
        let frame = body.frame().await.expect("a frame").expect("no failure");
        drop(body);
        assert_eq!(seats.taken(), 1, "the socket has not accepted it yet");
        drop(frame);
        assert_eq!(seats.taken(), 0);
    }

    #[test]
    fn a_dropped_body_releases_its_seat() {
        let (seats, body) = seated(10, false);
        drop(body);
        assert_eq!(seats.taken(), 0);
    }
}
