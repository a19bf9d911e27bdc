//! [`Link`]: a network interface of this network namespace, as rtnetlink(7) shows it. Needs no capability.

use std::io;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::netlink::{HEADER, NLM_F_ACK, NLM_F_DUMP, ask, attributes, number};

/// From `linux/rtnetlink.h`, `linux/if_link.h` and `linux/if.h`.
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTMGRP_LINK: u32 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_KIND: u16 = 1;
const IFF_UP: u32 = 1;

/// Length of `ifinfomsg`, and the position of the interface's index in it.
const MESSAGE: usize = 16;
const INDEX: usize = 4;

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Link {
    /// Unlike others in this network namespace. When the interface is gone, the next one may get it.
    pub index: u32,
    /// The name, such as `eth0`.
    pub name: String,
    /// Whether it is set up.
    pub is_up: bool,
    /// Such as `veth` or `bridge`. Empty for hardware.
    pub kind: String,
    /// The index of the bridge or of another interface that takes its packets.
    pub master: Option<u32>,
    /// Whether its other end is in another network namespace.
    pub leads_elsewhere: bool,
}

/// All interfaces.
pub fn list() -> io::Result<Vec<Link>> {
    Ok(ask(RTM_GETLINK, NLM_F_DUMP, &[0; MESSAGE])?.iter().filter_map(|message| read(message)).collect())
}

/// The interface with this index.
pub fn of_index(index: u32) -> io::Result<Link> {
    let mut request = [0; MESSAGE];
    request[INDEX..INDEX + 4].copy_from_slice(&index.to_ne_bytes());
    let messages = ask(RTM_GETLINK, NLM_F_ACK, &request)?;
    messages.iter().find_map(|message| read(message)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Subscription to changes of interfaces.
#[derive(Debug)]
pub struct Changes(OwnedFd);

/// A change of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The interface with this index was added, or changed.
    New(NonZeroU32),
    /// The interface with this index is gone, or a bridge released it. The kernel reports that before it gives the index to another.
    Gone(NonZeroU32),
}

/// Changes were lost: the kernel had no room for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost;

impl Changes {
    /// Subscribes to the changes from now on.
    pub fn subscribe() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, RTMGRP_LINK))?;
        Ok(Self(socket))
    }

    /// The next change that has happened. Never waits.
    pub fn next(&self) -> Result<Option<Change>, Lost> {
        // The rest of a message is not needed.
        let mut message = [0; HEADER + MESSAGE];
        loop {
            match recv(&self.0, &mut message[..], RecvFlags::empty()) {
                Ok(_) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(_) => return Err(Lost),
            }
            let Some(index) = number(&message, HEADER + INDEX).and_then(NonZeroU32::new) else { continue };
            match u16::from_ne_bytes([message[4], message[5]]) {
                RTM_NEWLINK => return Ok(Some(Change::New(index))),
                RTM_DELLINK => return Ok(Some(Change::Gone(index))),
                _ => {}
            }
        }
    }
}

/// Reads an `ifinfomsg` and its attributes.
fn read(message: &[u8]) -> Option<Link> {
    let (index, flags) = (number(message, INDEX)?, number(message, 8)?);
    let (mut name, mut kind, mut master, mut leads_elsewhere) = (None, String::new(), None, false);
    for (attribute, value) in attributes(message.get(MESSAGE..)?) {
        match attribute {
            IFLA_IFNAME => name = text(value),
            IFLA_MASTER => master = number(value, 0),
            IFLA_LINK_NETNSID => leads_elsewhere = true,
            IFLA_LINKINFO => {
                let found = attributes(value).find(|(attribute, _)| *attribute == IFLA_INFO_KIND);
                kind = found.and_then(|(_, value)| text(value)).unwrap_or_default();
            }
            _ => {}
        }
    }
    Some(Link { index, name: name?, is_up: flags & IFF_UP != 0, kind, master, leads_elsewhere })
}

/// A text that may end with a zero.
fn text(value: &[u8]) -> Option<String> {
    std::str::from_utf8(value).ok().map(|text| text.trim_end_matches('\0').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_change_nothing_is_reported() {
        let changes = Changes::subscribe().expect("anybody may");
        assert_eq!(changes.next(), Ok(None));
    }

    #[test]
    fn loopback_is_an_interface_that_leads_nowhere_else() {
        let lo = of_index(1).expect("it exists in every network");
        assert_eq!((&*lo.name, &*lo.kind, lo.master, lo.leads_elsewhere), ("lo", "", None, false));
        assert!(list().expect("they can be listed").contains(&lo));
        assert_eq!(of_index(u32::MAX >> 1).expect_err("there is none").raw_os_error(), Some(19));
    }
}
