//! The wire format. Each end begins with [`MAGIC`] and [`VERSION`]. Any change of the rest needs a new version.

use std::io;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use zeroize::Zeroizing;

use identity::tokens::WorkloadRecord;
use protocol::metadata::token::Length;
use proxy::layers::token_cache::TokenRecord;

/// The first bytes of each end.
const MAGIC: &[u8; 7] = b"gmp-ho:";

/// Version of the format of all that follows.
pub(super) const VERSION: u8 = 2;

/// Random for each connection, so that a recorded hand-over cannot be replayed.
pub(super) type Nonce = [u8; 16];

/// Maximum size of a record, and maximum size and number of all. A node with 110 accounts has about 0.5 MiB.
pub(super) const MAX_RECORD: usize = 256 << 10;
pub(super) const MAX_BYTES: usize = 4 << 20;
pub(super) const MAX_RECORDS: usize = 4096;

/// A message of a hand-over.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Record {
    /// The first: the settings that both processes must share, and the predecessor's time in nanoseconds since boot.
    Begin { settings: String, now: u64 },
    /// A pod's account. The tokens that follow refer to it by this number.
    Workload { number: u64, record: Box<WorkloadRecord> },
    /// A token of an account, or of the node.
    Token { workload: Option<u64>, record: TokenRecord },
    /// The last: the number of records in between.
    End { records: usize },
}

/// Reason for an incomplete hand-over.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it speaks version {0} of the format, and this process {VERSION}")]
    Version(u8),
    #[error("it is not a hand-over")]
    Magic,
    #[error("it is too large")]
    TooLarge,
    #[error("it is invalid")]
    Invalid,
}

/// Writes the hello.
pub(super) async fn send_hello(to: &mut (impl AsyncWrite + Unpin), nonce: &Nonce) -> io::Result<()> {
    let mut hello = [0; 24];
    hello[..7].copy_from_slice(MAGIC);
    hello[7] = VERSION;
    hello[8..].copy_from_slice(nonce);
    to.write_all(&hello).await
}

/// Reads the hello.
pub(super) async fn read_hello(from: &mut (impl AsyncRead + Unpin)) -> Result<Nonce, Broken> {
    let mut hello = [0; 8];
    from.read_exact(&mut hello).await?;
    if hello[..7] != *MAGIC {
        return Err(Broken::Magic);
    }
    if hello[7] != VERSION {
        return Err(Broken::Version(hello[7]));
    }
    let mut nonce = Nonce::default();
    from.read_exact(&mut nonce).await?;
    Ok(nonce)
}

/// Writes a record. Returns its size.
pub(super) async fn send(to: &mut (impl AsyncWrite + Unpin), record: &Record) -> Result<usize, Broken> {
    let mut length = Length(0);
    serde_json::to_writer(&mut length, record).map_err(|_| Broken::Invalid)?;
    if length.0 > MAX_RECORD {
        return Err(Broken::TooLarge);
    }
    // Allocated at its exact size: growing would leave a copy behind that is not wiped.
    let mut text = Zeroizing::new(Vec::with_capacity(4 + length.0));
    text.extend_from_slice(&u32::try_from(length.0).map_err(|_| Broken::TooLarge)?.to_be_bytes());
    serde_json::to_writer(&mut *text, record).map_err(|_| Broken::Invalid)?;
    to.write_all(&text).await?;
    Ok(length.0)
}

/// Reads a record. Returns it with its size.
pub(super) async fn read(from: &mut (impl AsyncRead + Unpin)) -> Result<(Record, usize), Broken> {
    let length = usize::try_from(from.read_u32().await?).map_err(|_| Broken::TooLarge)?;
    if length > MAX_RECORD {
        return Err(Broken::TooLarge);
    }
    let mut text = Zeroizing::new(vec![0; length]);
    from.read_exact(&mut text).await?;
    // serde's error would quote a part of the record.
    Ok((serde_json::from_slice(&text).map_err(|_| Broken::Invalid)?, length))
}
