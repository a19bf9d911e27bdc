//! Reads the IPv6 addresses of a network from `/proc/PID/net/if_inet6`.
//!
//! Each line is an address, then the interface's index, the length of the prefix, the scope and flags in hexadecimal, and the
//! interface's name: `fd00000b000000000000000000000005 02 40 00 80 eth0`.

use std::net::Ipv6Addr;

const DIGITS: usize = 32;

/// Words in a line.
const WORDS: usize = 6;

/// The address in a line, with or without its newline.
pub(super) fn address(line: &[u8]) -> Option<Ipv6Addr> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let address = words.next()?;
    let is_whole = address.len() == DIGITS && address.iter().all(u8::is_ascii_hexdigit) && words.count() == WORDS - 1;
    let digits = std::str::from_utf8(address).ok().filter(|_| is_whole)?;
    u128::from_str_radix(digits, 16).ok().map(Ipv6Addr::from)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_of_the_kernel() {
        let line = b"fd00000b000000000000000000000005 02 40 00 80     eth0\n";
        assert_eq!(address(line), Some("fd00:b::5".parse().expect("an address")));
        assert_eq!(address(b"00000000000000000000000000000001 01 80 10 80       lo"), Some(Ipv6Addr::LOCALHOST));
    }

    #[test]
    fn anything_else_is_no_address() {
        for line in [
            "",
            "fd00000b000000000000000000000005",
            "fd00000b00000000000000000000000 02 40 00 80 eth0",
            "+d00000b000000000000000000000005 02 40 00 80 eth0",
            "fd00000b000000000000000000000005 02 40 00 80",
        ] {
            assert_eq!(address(line.as_bytes()), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn what_the_kernel_writes_is_read(bits: u128, index: u16, prefix in 0..=128_u8, flags: u8, name in "[!-~]{1,15}") {
            let line = format!("{bits:032x} {index:02x} {prefix:02x} 00 {flags:02x} {name:>8}\n");
            prop_assert_eq!(address(line.as_bytes()), Some(Ipv6Addr::from(bits)));
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = address(&bytes);
        }
    }
}
