//! Writes responses: in one piece, unless a fault requires otherwise.

use std::io;
use std::time::Duration;

use http::Method;
use tokio::time::sleep;

use super::answer::{Length, Response};
use super::fault::{Fault, STRAY};
use super::head::Request;
use super::journal::GaugeGuard;
use super::wire::Wire;

/// A huge body is sent in pieces of this many bytes.
const PIECE_BYTES: usize = 64 * 1024;

/// What to do with the connection after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Read the next request.
    Keep,
    /// Close it.
    Close,
    /// Reset it.
    Reset,
    /// Nothing: the client has disconnected.
    Gone,
}

/// Writes the response to a request, which is in flight until its last piece is handed to the socket: a client that has
/// the whole response does not find its request in flight, except after [`Fault::HugeBody`].
pub(super) async fn deliver(
    wire: &mut Wire,
    request: &Request,
    answer: &Response,
    fault: Option<&Fault>,
    in_flight: GaugeGuard,
) -> io::Result<Next> {
    let body = answer.body.as_bytes();
    let length = match fault {
        Some(Fault::Chunked) => Length::Chunked,
        Some(Fault::ChunkedAndLength { length }) => Length::Both(*length),
        Some(Fault::HugeBody { bytes }) => Length::Known(*bytes),
        _ => Length::Known(body.len()),
    };
    answer.write_head(length, request.is_kept, &mut wire.out);
    if request.method != Method::HEAD {
        match fault {
            Some(Fault::SlowBody { chunk, every }) => {
                let is_there = slowly(wire, body.chunks((*chunk).max(1)), *every).await?;
                if !is_there {
                    return Ok(Next::Gone);
                }
            }
            Some(Fault::HugeBody { bytes }) => hugely(wire, *bytes).await?,
            Some(Fault::Chunked | Fault::ChunkedAndLength { .. }) => chunked(body, &mut wire.out),
            Some(Fault::CutBody { after } | Fault::CutBodyFin { after }) => {
                wire.out.extend_from_slice(&body[..body.len().min(*after)]);
            }
            Some(Fault::Stray) => wire.out.extend_from_slice(&[body, STRAY].concat()),
            _ => wire.out.extend_from_slice(body),
        }
    }
    drop(in_flight);
    wire.send().await?;
    Ok(match fault {
        Some(Fault::CutBody { .. }) => Next::Reset,
        Some(Fault::CutBodyFin { .. }) => Next::Close,
        _ if request.is_kept => Next::Keep,
        _ => Next::Close,
    })
}

/// Sends the head now, and a piece after each pause except the last, which remains to be sent. Returns whether
/// the client is still connected.
async fn slowly(wire: &mut Wire, pieces: impl Iterator<Item = &[u8]>, every: Duration) -> io::Result<bool> {
    for piece in pieces {
        wire.send().await?;
        if wire.unless_gone(sleep(every)).await.is_none() {
            return Ok(false);
        }
        wire.out.extend_from_slice(piece);
    }
    Ok(true)
}

/// Sends this many bytes without holding all of them in memory.
async fn hugely(wire: &mut Wire, bytes: usize) -> io::Result<()> {
    for from in (0..bytes).step_by(PIECE_BYTES) {
        wire.out.resize(wire.out.len() + PIECE_BYTES.min(bytes - from), b'x');
        wire.send().await?;
    }
    Ok(())
}

/// Writes two chunks if possible, so that the reader must join them.
fn chunked(body: &[u8], out: &mut Vec<u8>) {
    let (first, second) = body.split_at(body.len() / 2);
    for chunk in [first, second].into_iter().filter(|chunk| !chunk.is_empty()) {
        out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
}
