//! Which bytes are held back until the close.

use super::*;

#[tokio::test(start_paused = true)]
async fn only_a_response_before_a_close_is_written_as_last() {
    for (version, options, is_last) in [
        ("1.0", "", true),
        ("1.0", "Connection: close\r\n", true),
        ("1.0", "Connection: keep-alive\r\n", false),
        ("1.1", "", false),
        ("1.1", "Connection: close\r\n", true),
        ("1.1", "Connection: Close\r\n", true),
        ("1.1", "Connection: keep-alive\r\n", false),
        // The connection lingers.
        ("1.1", "Connection: close\r\nContent-Length: 5\r\n", false),
    ] {
        LAST.take();
        let mut client = connect(Duration::ZERO);
        client.send(format!("GET / HTTP/{version}\r\nHost: metadata\r\n{options}\r\n").as_bytes()).await;
        let answer = client.read_answer().await;
        assert!(answer.ends_with("answer"), "{answer}");
        let last = String::from_utf8(LAST.take()).expect("text");
        assert_eq!(last, if is_last { &answer } else { "" }, "HTTP/{version} {options}");
        if is_last {
            assert_eq!(client.read_to_end().await, "");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_response_of_a_drain_is_written_as_last() {
    let mut client = connect(Duration::from_secs(2));
    client.send(REQUEST).await;
    sleep(Duration::from_secs(1)).await;
    client.last_call.call();
    let answer = client.read_to_end().await;
    assert_eq!(String::from_utf8(LAST.take()).expect("text"), answer);
}

/// A body of several chunks, one second apart.
struct Pieces {
    left: u8,
    next: Pin<Box<Sleep>>,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Reset;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Reset>>> {
        ready!(self.next.as_mut().poll(cx));
        let Some(left) = self.left.checked_sub(1) else { return Poll::Ready(None) };
        *self = Self { left, next: Box::pin(sleep(Duration::from_secs(1))) };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"piece")))))
    }
}

/// No chunk of a streamed response is held back.
#[tokio::test(start_paused = true)]
async fn only_the_last_chunk_is_written_as_last() {
    let (mut io, other_end) = duplex(1024);
    let stack = tower::service_fn(|_: Request<Payload>| async {
        Ok::<_, Reset>(Response::new(Pieces { left: 3, next: Box::pin(sleep(Duration::ZERO)) }))
    });
    tokio::spawn(connection(other_end, stack, LastCall::default()).serve());
    io.write_all(b"GET / HTTP/1.1\r\nHost: metadata\r\nConnection: close\r\n\r\n").await.expect("the server reads");
    let mut answer = String::new();
    io.read_to_string(&mut answer).await.expect("text");
    assert_eq!(answer.matches("piece").count(), 3, "{answer}");
    assert_eq!(String::from_utf8(LAST.take()).expect("text"), "0\r\n\r\n");
}
