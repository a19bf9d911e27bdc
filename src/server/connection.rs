//! One client's connection, from its first byte to its last.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::{self, HeaderValue};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tower::util::Oneshot;
use tower::{Service, ServiceExt};

use super::activity::{Activity, Answering};
use super::io::{MAX_HEAD, Watched};
use crate::layers::classify::Arrival;

pub use super::activity::Timeouts;

/// Most that is read, and longest, after a refusal to a client that still sends, so that it sees the refusal and not a
/// reset: closing a socket with unread bytes in it resets it.
const LINGER: (u64, Duration) = (1024 * 1024, Duration::from_secs(1));

/// What answers requests: a tower service that turns its errors into answers itself.
pub trait Stack: Service<Arrival<Incoming>, Response = Response<Self::Body>, Error = Infallible> + Clone {
    /// Of the answers.
    type Body: http_body::Body<Error: std::error::Error + Send + Sync + 'static> + 'static;
}

impl<S, B> Stack for S
where
    S: Service<Arrival<Incoming>, Response = Response<B>, Error = Infallible> + Clone,
    B: http_body::Body<Error: std::error::Error + Send + Sync + 'static> + 'static,
{
    type Body = B;
}

/// Serves a connection until either side closes it, it is useless for too long, or the drain ends it.
pub async fn serve<I, S>(io: I, peer: SocketAddr, stack: S, timeouts: Timeouts, stopping: CancellationToken)
where
    I: AsyncRead + AsyncWrite + Unpin,
    S: Stack,
{
    let activity = Arc::new(Activity::new());
    let service = PerConnection { stack, peer, activity: Arc::clone(&activity) };
    let mut connection = http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        // As the real server writes them, for scripts that look for `Metadata-Flavor: Google` in what curl prints.
        .title_case_headers(true)
        .serve_connection(TokioIo::new(Watched::new(io, Arc::clone(&activity))), service);

    let mut stopping = pin!(stopping.cancelled_owned());
    let mut stopped = false;
    let mut overdue = pin!(sleep_until(activity.deadline(timeouts)));
    let ended = poll_fn(|cx| {
        if !stopped && stopping.as_mut().poll(cx).is_ready() {
            stopped = true;
            Pin::new(&mut connection).graceful_shutdown();
        }
        if let Poll::Ready(ended) = Pin::new(&mut connection).poll(cx) {
            return Poll::Ready(Some(ended));
        }
        // Deadlines mostly move away, and a timer that fires early costs less than one moved at every request.
        let deadline = activity.deadline(timeouts);
        if deadline < overdue.deadline() {
            overdue.as_mut().reset(deadline);
        }
        while overdue.as_mut().poll(cx).is_ready() {
            let deadline = activity.deadline(timeouts);
            if deadline <= Instant::now() {
                return Poll::Ready(None);
            }
            overdue.as_mut().reset(deadline);
        }
        Poll::Pending
    });
    let unread = match ended.await {
        Some(Ok(())) => activity.body_announced(),
        Some(Err(error)) => {
            tracing::debug!(%peer, %error, "a connection ended early");
            error.is_parse()
        }
        None => {
            tracing::debug!(%peer, "a connection was useless for too long");
            false
        }
    };
    if unread {
        linger(connection.into_parts().io.into_inner().into_inner()).await;
    }
}

async fn linger<I: AsyncRead + AsyncWrite + Unpin>(mut io: I) {
    let (bytes, time) = LINGER;
    let drained = async {
        io.shutdown().await?;
        tokio::io::copy(&mut io.take(bytes), &mut tokio::io::sink()).await
    };
    // Whatever comes of it, the connection is closed next.
    let _ = timeout(time, drained).await;
}

/// The stack as one connection sees it.
struct PerConnection<S> {
    stack: S,
    peer: SocketAddr,
    activity: Arc<Activity>,
}

impl<S: Stack> hyper::service::Service<Request<Incoming>> for PerConnection<S> {
    type Response = Response<S::Body>;
    type Error = Infallible;
    type Future = Answer<Oneshot<S, Arrival<Incoming>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let arrival = Arrival { request, peer: self.peer };
        Answer {
            inner: self.stack.clone().oneshot(arrival),
            answering: self.activity.answering(),
            close: self.activity.body_announced(),
        }
    }
}

pin_project! {
    struct Answer<F> {
        #[pin]
        inner: F,
        answering: Answering,
        close: bool,
    }
}

impl<F, B> Future for Answer<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
{
    type Output = Result<Response<B>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Ok(mut response) = ready!(this.inner.poll(cx));
        if *this.close {
            // What follows on the connection is a body that nobody reads.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Poll::Ready(Ok(response))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Full;
    use tokio::io::{DuplexStream, duplex};
    use tokio::task::JoinHandle;
    use tokio::time::sleep;

    use super::*;
    use crate::config::TIMEOUTS;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: metadata\r\n\r\n";

    /// A connection to a stack that takes this long for each answer.
    struct Client {
        io: DuplexStream,
        stopping: CancellationToken,
        server: JoinHandle<()>,
    }

    fn connect(delay: Duration) -> Client {
        let (io, other_end) = duplex(64 * 1024);
        let stack = tower::service_fn(move |_: Arrival<Incoming>| async move {
            sleep(delay).await;
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"answer"))))
        });
        let stopping = CancellationToken::new();
        let peer = ([10, 0, 0, 9], 40000).into();
        let server = tokio::spawn(serve(other_end, peer, stack, TIMEOUTS, stopping.clone()));
        Client { io, stopping, server }
    }

    impl Client {
        async fn send(&mut self, bytes: &[u8]) {
            self.io.write_all(bytes).await.expect("the server reads");
        }

        /// Until the server closes.
        async fn read_to_end(&mut self) -> String {
            let mut text = String::new();
            self.io.read_to_string(&mut text).await.expect("the server writes text");
            text
        }

        async fn read_answer(&mut self) -> String {
            let mut bytes = vec![0; 1024];
            let read = self.io.read(&mut bytes).await.expect("the server writes");
            String::from_utf8_lossy(&bytes[..read]).into_owned()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_trickles_is_cut_ten_seconds_after_its_first_byte() {
        let mut client = connect(Duration::ZERO);
        sleep(Duration::from_secs(30)).await;
        let began = Instant::now();
        for byte in &REQUEST[..2] {
            client.send(&[*byte]).await;
            sleep(Duration::from_millis(4900)).await;
        }
        assert!(!client.server.is_finished(), "9.8 s are allowed");
        assert_eq!(client.read_to_end().await, "");
        assert_eq!(began.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_kept_for_75_seconds_and_not_for_ever() {
        for request_first in [false, true] {
            let mut client = connect(Duration::ZERO);
            if request_first {
                client.send(REQUEST).await;
                assert!(client.read_answer().await.ends_with("answer"));
            }
            let began = Instant::now();
            assert_eq!(client.read_to_end().await, "");
            assert!((75..=90).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_in_use_every_minute_lives_on() {
        let mut client = connect(Duration::ZERO);
        for _ in 0..10 {
            client.send(REQUEST).await;
            assert!(client.read_answer().await.ends_with("answer"));
            sleep(Duration::from_secs(60)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_may_take_longer_than_an_idle_connection_lives() {
        let mut client = connect(Duration::from_secs(600));
        client.send(REQUEST).await;
        assert!(client.read_answer().await.ends_with("answer"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_drain_closes_idle_connections_at_once() {
        let mut client = connect(Duration::ZERO);
        client.send(REQUEST).await;
        client.read_answer().await;
        let began = Instant::now();
        client.stopping.cancel();
        assert_eq!(client.read_to_end().await, "");
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn the_drain_lets_a_request_in_flight_finish_and_then_closes() {
        let mut client = connect(Duration::from_secs(2));
        client.send(REQUEST).await;
        sleep(Duration::from_secs(1)).await;
        client.stopping.cancel();
        let answer = client.read_to_end().await;
        assert!(answer.contains("Connection: close") && answer.ends_with("answer"), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_cannot_be_read_is_answered_in_our_own_words() {
        for head in
            ["GET / HTTP/1.1\nHost: metadata\n\n", "GET / HTTP/1.1\r\nHost : metadata\r\n\r\n", "nonsense\r\n\r\n"]
        {
            let mut client = connect(Duration::ZERO);
            client.send(head.as_bytes()).await;
            let answer = client.read_to_end().await;
            assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("Metadata-Flavor: Google\r\n"), "{answer}");
            assert!(answer.ends_with("Bad request: this is not well-formed HTTP/1.1.\n"), "{answer}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_bad_head_behind_a_good_one_does_not_lose_the_good_ones_answer() {
        let mut client = connect(Duration::from_secs(1));
        client.send(&[REQUEST, b"GET / HTTP/1.1\nHost: metadata\n\n"].concat()).await;
        let answers = client.read_to_end().await;
        assert!(answers.contains("answer"), "{answers}");
        assert!(answers.contains("HTTP/1.1 400 "), "{answers}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_carried_a_body_is_closed_after_its_answer() {
        let mut client = connect(Duration::ZERO);
        client.send(b"GET / HTTP/1.1\r\nHost: metadata\r\nContent-Length: 5\r\n\r\nGET /").await;
        client.send(REQUEST).await;
        let answers = client.read_to_end().await;
        assert_eq!(answers.matches("HTTP/1.1 ").count(), 1, "{answers}");
        assert!(answers.contains("Connection: close"), "{answers}");
    }
}
