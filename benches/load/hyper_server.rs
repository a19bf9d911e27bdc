//! A peer: hyper alone, with the same response to every request. This is the minimum cost of a server based on
//! hyper.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpSocket;

/// Serves until the process is killed.
pub async fn serve(addr: SocketAddr, body: Bytes) -> io::Result<()> {
    gce_metadata_proxy::app::allow_files(u64::MAX)?;
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    let listener = socket.listen(4096)?;
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let body = body.clone();
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            let answer = service_fn(move |_: Request<Incoming>| {
                let mut response = Response::new(Full::new(body.clone()));
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                std::future::ready(Ok::<_, Infallible>(response))
            });
            // A failed connection is the client's concern.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}
