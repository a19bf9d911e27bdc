//! [`Rest`]: reads the body of a response. [`Framing`]: where it ends.

use bytes::{Buf, Bytes, BytesMut};

use crate::failure::Failure;

/// Maximum number of bytes of a chunked body that carry nothing: extensions, spaces and leading zeros.
const MAX_IDLE_BYTES: usize = 16 * 1024;

/// How the rest of a body ends.
#[derive(Debug)]
pub(super) enum Framing {
    /// After this many bytes.
    Length(u64),
    /// After the last chunk.
    Chunked(Chunks),
    /// With the connection.
    ToEnd,
}

/// The part of a response that is not decoded.
#[derive(Debug)]
pub(super) struct Rest {
    pub(super) framing: Framing,
    /// Whether the connection may be used again after the body.
    pub(super) is_kept: bool,
    /// Bytes that were read.
    pub(super) read: Bytes,
}

impl Rest {
    /// The next data, which is empty if there is none in what was read. At the end of the body also whether the connection may be
    /// used again: bytes behind the body are nobody's response.
    pub(super) fn decode(&mut self) -> Result<(Bytes, Option<bool>), Failure> {
        let data = self.framing.decode(&mut self.read)?;
        Ok((data, self.framing.is_complete().then(|| self.is_kept && self.read.is_empty())))
    }

    /// Adds what was read after all was decoded: nothing if the upstream has closed the connection.
    pub(super) fn add(&mut self, piece: Bytes) -> Result<(), Failure> {
        match self.framing {
            Framing::ToEnd if piece.is_empty() => self.framing = Framing::Length(0),
            _ if piece.is_empty() => return Err(Failure::CutShort),
            _ => self.read = piece,
        }
        Ok(())
    }
}

impl Framing {
    /// Takes from the bytes that were read what belongs to the body, and returns its data, which is empty if it does not go
    /// that far. What remains of the bytes is behind the body.
    fn decode(&mut self, read: &mut Bytes) -> Result<Bytes, Failure> {
        match self {
            Self::Length(left) => {
                let data = read.split_to(at_most(*left, read));
                *left -= data.len() as u64;
                Ok(data)
            }
            Self::Chunked(chunks) => chunks.decode(read),
            Self::ToEnd => Ok(std::mem::take(read)),
        }
    }

    /// Whether the body is complete.
    fn is_complete(&self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked(Chunks { at: At::End, .. }))
    }
}

/// Where a chunked body has been read to.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    at: At,
    /// The size of the current chunk as far as it has been read, or its remaining bytes.
    left: u64,
    /// Number of bytes that carried nothing.
    idle: usize,
}

/// The next byte of a chunked body (RFC 9112, section 7.1).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum At {
    #[default]
    Size,
    MoreOfSize,
    Space,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    LastCr,
    LastLf,
    End,
}

impl Chunks {
    fn decode(&mut self, read: &mut Bytes) -> Result<Bytes, Failure> {
        let mut data = BytesMut::new();
        while let Some(byte) = read.first() {
            match self.at {
                At::End => break,
                At::Data => {
                    let length = at_most(self.left, read);
                    data.extend_from_slice(&read.split_to(length));
                    self.left -= length as u64;
                    if self.left == 0 {
                        self.at = At::DataCr;
                    }
                }
                // Trailers contain nothing that metadata clients use. They are left unread, so the connection is closed.
                At::LastCr if *byte != b'\r' => self.at = At::End,
                _ => {
                    self.step(*byte).ok_or(Failure::CutShort)?;
                    read.advance(1);
                }
            }
        }
        Ok(data.freeze())
    }

    /// Reads a byte that is not data. `None` if it is not allowed there.
    fn step(&mut self, byte: u8) -> Option<()> {
        self.at = match (self.at, byte) {
            (At::Size | At::MoreOfSize, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = char::from(byte).to_digit(16)?;
                self.left = self.left.checked_mul(16)? + u64::from(digit);
                At::MoreOfSize
            }
            (At::MoreOfSize | At::Space, b' ' | b'\t') => At::Space,
            (At::MoreOfSize | At::Space, b';') => At::Extension,
            (At::MoreOfSize | At::Space | At::Extension, b'\r') => At::SizeLf,
            // With a line that ends in LF alone, another reader would see another body.
            (At::Extension, byte) if byte != b'\n' => At::Extension,
            (At::SizeLf, b'\n') if self.left == 0 => At::LastCr,
            (At::SizeLf, b'\n') => At::Data,
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => At::Size,
            (At::LastCr, b'\r') => At::LastLf,
            (At::LastLf, b'\n') => At::End,
            _ => return None,
        };
        if matches!(self.at, At::Space | At::Extension) || self.at == At::MoreOfSize && self.left == 0 {
            self.idle += 1;
        }
        (self.idle <= MAX_IDLE_BYTES).then_some(())
    }
}

/// The number of these bytes, or `limit` if there are more.
fn at_most(limit: u64, bytes: &Bytes) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX).min(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes a chunked body that arrives in pieces of this size. Returns its data, in how many parts it came, and the bytes
    /// behind it. `None` if it is invalid or not complete.
    fn decode(body: &[u8], size: usize) -> Option<(String, usize, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let mut framing = Framing::Chunked(Chunks::default());
        let (mut parts, mut behind) = (Vec::new(), Vec::new());
        for piece in body.chunks(size) {
            let mut piece = Bytes::copy_from_slice(piece);
            parts.extend(Some(framing.decode(&mut piece).ok()?).filter(|data| !data.is_empty()));
            behind.extend_from_slice(&piece);
        }
        framing.is_complete().then(|| (text(&parts.concat()), parts.len(), text(&behind)))
    }

    #[test]
    fn a_chunked_body_has_its_data_and_leaves_what_is_behind_it() {
        for (body, data, behind) in [
            ("0\r\n\r\n", "", ""),
            ("1\r\na\r\nA\r\n0123456789\r\n0\r\n\r\n", "a0123456789", ""),
            ("001 ;x=\"y\"\r\na\r\n1 \t\r\nb\r\n000\r\n\r\nHTTP", "ab", "HTTP"),
            ("1\r\na\r\n0\r\nTrailer: x\r\n\r\n", "a", "Trailer: x\r\n\r\n"),
        ] {
            for size in [1, 2, 3, 1000] {
                let (found, _, left) = decode(body.as_bytes(), size).expect("a body");
                assert_eq!((&*found, &*left), (data, behind), "{body:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn a_malformed_or_incomplete_chunked_body_is_none() {
        for body in [
            "",
            "1",
            "1\r\na",
            "1\r\na\r\n",
            "1\r\na\r\n0\r\n",
            "0\r\n\r",
            "0\r\n\rx",
            "x\r\n",
            "-1\r\n",
            "+1\r\n",
            "0x1\r\n",
            " 1\r\na\r\n0\r\n\r\n",
            "1 1\r\n",
            "1\na\n0\n\n",
            "1;a\nb\r\na\r\n0\r\n\r\n",
            "1\r\nab\r\n0\r\n\r\n",
            "1\r\na\n\n0\r\n\r\n",
            "1\rx",
            "\r\n",
            "10000000000000000\r\n\r\n",
            "FFFFFFFFFFFFFFFFF\r\n",
        ] {
            assert_eq!(decode(body.as_bytes(), 1000), None, "{body:?}");
        }
    }

    #[test]
    fn what_carries_nothing_is_bounded() {
        for (filler, byte) in [("1;", "x"), ("1 ", " "), ("", "0")] {
            let body = |length| format!("{filler}{}1\r\na\r\n0\r\n\r\n", byte.repeat(length)).replace(" 1\r", " \r");
            assert!(decode(body(MAX_IDLE_BYTES - 10).as_bytes(), 1000).is_some(), "{filler}");
            assert_eq!(decode(body(MAX_IDLE_BYTES + 1).as_bytes(), 1000), None, "{filler}");
        }
        let extended = "1;xxxxxxx\r\na\r\n".repeat(MAX_IDLE_BYTES / 8 + 1) + "0\r\n\r\n";
        assert_eq!(decode(extended.as_bytes(), 1000), None, "over all chunks");
    }

    /// Each part becomes a chunk of the client's response.
    #[test]
    fn a_flood_of_small_chunks_comes_in_a_part_a_read() {
        let body = "1\r\na\r\n".repeat(60_000) + "0\r\n\r\n";
        let (data, parts, _) = decode(body.as_bytes(), 4096).expect("a body");
        assert_eq!((data.len(), parts), (60_000, body.len().div_ceil(4096)));
    }
}
