//! Own clients for measurements that no tool does: single requests, connections that stay open, and the first response
//! of a process.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of connections being opened concurrently.
const MAX_CONCURRENT_OPENS: u32 = 100;

/// Sends a GET request. Returns the status and the body.
pub async fn get(addr: SocketAddr, target: &str) -> io::Result<(u16, Vec<u8>)> {
    let asked = async {
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(request(target, "Connection: close\r\n").as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        split(&answer).map(|(status, body)| (status, body.to_vec())).ok_or(io::ErrorKind::InvalidData.into())
    };
    timeout(REQUEST_TIMEOUT, asked).await?
}

/// Waits for a response with status 200. Returns the last error if that takes too long.
pub async fn answers(addr: SocketAddr, target: &str) -> io::Result<Vec<u8>> {
    let began = Instant::now();
    loop {
        let tried = get(addr, target).await;
        match tried {
            Ok((200, body)) => return Ok(body),
            Ok((status, _)) if began.elapsed() > REQUEST_TIMEOUT => {
                return Err(io::Error::other(format!("{target} is still answered with {status}")));
            }
            Err(error) if began.elapsed() > REQUEST_TIMEOUT => return Err(error),
            _ => sleep(Duration::from_millis(5)).await,
        }
    }
}

/// Time until a newly started process responds. Polls continuously, from another core.
pub async fn first_answer(addr: SocketAddr, target: &str, began: Instant) -> io::Result<Duration> {
    loop {
        match get(addr, target).await {
            Ok((200, _)) => return Ok(began.elapsed()),
            _ if began.elapsed() > REQUEST_TIMEOUT => return Err(io::ErrorKind::TimedOut.into()),
            _ => yield_now().await,
        }
    }
}

/// Opens connections that stay open, after one request on each.
pub async fn stay(addr: SocketAddr, target: &str, connections: u32) -> io::Result<Vec<TcpStream>> {
    let mut open = Vec::new();
    while open.len() < connections as usize {
        let mut opening = JoinSet::new();
        let missing = usize::min(MAX_CONCURRENT_OPENS as usize, connections as usize - open.len());
        for _ in 0..missing {
            opening.spawn(timeout(REQUEST_TIMEOUT, ask_and_stay(addr, request(target, ""))));
        }
        for opened in opening.join_all().await {
            open.push(opened??);
        }
    }
    Ok(open)
}

async fn ask_and_stay(addr: SocketAddr, request: String) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(addr).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    while !is_whole(&answer) {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(stream)
}

/// With a `Host` that both listeners of the proxy accept: the admin listener accepts IP addresses and `localhost` only.
fn request(target: &str, header: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata-Flavor: Google\r\n{header}\r\n")
}

pub fn split(answer: &[u8]) -> Option<(u16, &[u8])> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let status = std::str::from_utf8(answer.get(9..12)?).ok()?.parse().ok()?;
    Some((status, &answer[end + 4..]))
}

/// Whether the body of a response has the announced length.
pub fn is_whole(answer: &[u8]) -> bool {
    let Some((_, body)) = split(answer) else { return false };
    let head = String::from_utf8_lossy(&answer[..answer.len() - body.len()]).to_lowercase();
    let promised = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    promised.is_none_or(|promised: usize| body.len() >= promised)
}
