//! How much of a streamed response is read for a client that does not read.

use super::*;

const PIECE_BYTES: usize = 1024;

/// A body without end, which counts the pieces that were taken.
#[derive(Clone, Default)]
struct Endless {
    taken: Arc<AtomicUsize>,
}

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = Reset;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Reset>>> {
        self.taken.fetch_add(1, Relaxed);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; PIECE_BYTES])))))
    }
}

/// However small the pieces are: a chunked response of the metadata server comes in pieces of less than a read.
#[tokio::test(start_paused = true)]
async fn a_piece_is_taken_only_once_the_one_before_is_written() {
    const PIPE_BYTES: usize = 4 * PIECE_BYTES;
    let (mut io, other_end) = duplex(PIPE_BYTES);
    let body = Endless::default();
    let stack = {
        let body = body.clone();
        tower::service_fn(move |_: Request<Payload>| {
            let body = body.clone();
            async move { Ok::<_, Reset>(Response::new(body)) }
        })
    };
    tokio::spawn(connection(other_end, stack, LastCall::default()).serve());
    io.write_all(REQUEST).await.expect("the server reads");
    sleep(Duration::from_secs(1)).await;
    let taken = body.taken.load(Relaxed);
    assert!((2..=PIPE_BYTES / PIECE_BYTES + 1).contains(&taken), "{taken} pieces for a pipe of {PIPE_BYTES} bytes");
}
