//! Requests to the kernel by netlink, rtnetlink(7), and what its answers are made of.

use std::io;
use std::net::IpAddr;

use rustix::net::netlink::NETFILTER;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

/// From `linux/netlink.h`.
pub const NLM_F_ACK: u16 = 0x4;
pub const NLM_F_DUMP: u16 = 0x300;
const NLM_F_REQUEST: u16 = 0x1;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// The bits of an attribute's kind. Two others say how its value is written.
const NLA_TYPE_MASK: u16 = 0x3fff;

/// Lengths of `nlmsghdr` and `rtattr`.
pub(crate) const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;

/// Sends a request about the network to the kernel, and returns the messages of its response.
pub fn ask(kind: u16, flags: u16, request: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    ask_by(None, kind, flags, request)
}

/// The same about rules for packets.
pub fn ask_netfilter(kind: u16, flags: u16, request: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    ask_by(Some(NETFILTER), kind, flags, request)
}

fn ask_by(protocol: Option<Protocol>, kind: u16, flags: u16, request: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    let mut message = Vec::new();
    message.extend(u32::try_from(HEADER + request.len()).expect("a few bytes").to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((flags | NLM_F_REQUEST).to_ne_bytes());
    // The sequence number and the port ID: the socket sends only this request.
    message.extend([0; 8]);
    message.extend(request);
    send(&socket, &message, SendFlags::empty())?;
    let mut answers = Vec::new();
    // The kernel returns a list in parts of at most this size.
    let mut part = vec![0; 32 * 1024];
    loop {
        let (length, _) = recv(&socket, &mut part[..], RecvFlags::empty())?;
        let mut rest = part.get(..length).unwrap_or_default();
        while let Some((kind, body)) = next(&mut rest, HEADER, |header| {
            Some((number(header, 0)?, u16::from_ne_bytes(header.get(4..6)?.try_into().ok()?)))
        }) {
            match kind {
                NLMSG_DONE => return Ok(answers),
                NLMSG_ERROR => {
                    return match number(body, 0) {
                        Some(0) => Ok(answers),
                        error => Err(io::Error::from_raw_os_error(error.map_or(0, u32::cast_signed).wrapping_neg())),
                    };
                }
                _ => answers.push(body.to_vec()),
            }
        }
    }
}

/// The attributes, as kind and value, up to the first that is not whole.
pub fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (kind, value) = next(&mut rest, ATTRIBUTE, |header| {
            let half = |at: usize| header.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes);
            Some((half(0)?.into(), half(2)?))
        })?;
        Some((kind & NLA_TYPE_MASK, value))
    })
}

/// Appends an attribute, whose length is one of whole words, or which is the last: it is not padded.
pub fn add_attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend(u16::try_from(ATTRIBUTE + value.len()).expect("a few bytes").to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
}

/// The family of an address as netlink's single byte, its bytes, and their number of bits.
pub fn parts(ip: IpAddr) -> (u8, Vec<u8>, u8) {
    let (family, bytes) = match ip {
        IpAddr::V4(ip) => (AddressFamily::INET, ip.octets().to_vec()),
        IpAddr::V6(ip) => (AddressFamily::INET6, ip.octets().to_vec()),
    };
    let bits = u8::try_from(bytes.len() * 8).expect("at most 128");
    (u8::try_from(family.as_raw()).expect("2 or 10"), bytes, bits)
}

/// Takes a message or an attribute, as kind and body, from the front of `rest`. Each begins at a whole word.
fn next<'a>(
    rest: &mut &'a [u8],
    header: usize,
    length_and_kind: impl Fn(&[u8]) -> Option<(u32, u16)>,
) -> Option<(u16, &'a [u8])> {
    let (length, kind) = length_and_kind(rest.get(..header)?)?;
    let length = usize::try_from(length).ok()?;
    let body = rest.get(header..length)?;
    *rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, body))
}

pub fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}
