//! [`Link`]: a network interface of this network namespace, as rtnetlink(7) shows it. Needs no capability.

use std::io;

use crate::netlink::{NLM_F_ACK, NLM_F_DUMP, ask, attributes, number};

/// From `linux/rtnetlink.h`, `linux/if_link.h` and `linux/if.h`.
const RTM_GETLINK: u16 = 18;
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
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// Given to one interface of a network namespace only, and not again when that is gone.
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
    fn loopback_is_an_interface_that_leads_nowhere_else() {
        let lo = of_index(1).expect("it exists in every network");
        assert_eq!((&*lo.name, &*lo.kind, lo.master, lo.leads_elsewhere), ("lo", "", None, false));
        assert!(list().expect("they can be listed").contains(&lo));
        assert_eq!(of_index(u32::MAX >> 1).expect_err("there is none").raw_os_error(), Some(19));
    }
}
