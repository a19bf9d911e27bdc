//! Reads the IPv4 addresses of a network from `/proc/PID/net/fib_trie`.
//!
//! The file lists routing tables. An address that an interface has is a route of the table `Local`:
//!
//! ```text
//! Local:
//!   +-- 10.8.0.0/24 2 0 2
//!      |-- 10.8.0.5
//!         /32 host LOCAL
//! ```

use std::net::Ipv4Addr;

/// A parser that takes the lines one by one: a node may have thousands of routes.
#[derive(Debug, Default)]
pub(super) struct Parser {
    is_local: bool,
    /// The address that the next routes lead to.
    leaf: Option<Ipv4Addr>,
}

impl Parser {
    /// Reads the next line, with or without its newline. Returns an address if the line assigns it to an interface.
    pub(super) fn line(&mut self, line: &[u8]) -> Option<Ipv4Addr> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        if !line.starts_with(b" ") {
            *self = Self { is_local: line == b"Local:", leaf: None };
            return None;
        }
        if !self.is_local {
            return None;
        }
        let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
        match (words.next()?, words.next(), words.next()) {
            ("|--", leaf, None) => {
                self.leaf = leaf.and_then(|leaf| leaf.parse().ok());
                None
            }
            ("+--", ..) => {
                self.leaf = None;
                None
            }
            ("/32", Some("host"), Some("LOCAL")) => self.leaf,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use proptest::prelude::*;

    use super::*;

    fn addresses(text: &[u8]) -> Vec<Ipv4Addr> {
        let mut parser = Parser::default();
        text.split_inclusive(|byte| *byte == b'\n').filter_map(|line| parser.line(line)).collect()
    }

    const POD: &str = "\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.8.0.0/24 2 0 2
        |-- 10.8.0.5
           /32 host LOCAL
Local:
  +-- 0.0.0.0/0 3 0 5
     +-- 10.8.0.0/24 2 0 2
        +-- 10.8.0.0/29 2 0 2
           |-- 10.8.0.0
              /24 link UNICAST
           |-- 10.8.0.5
              /32 host LOCAL
        |-- 10.8.0.255
           /32 link BROADCAST
     +-- 127.0.0.0/8 2 0 2
        +-- 127.0.0.0/31 1 0 0
           |-- 127.0.0.0
              /8 host LOCAL
           |-- 127.0.0.1
              /32 host LOCAL
Id 133:
  |-- 10.9.0.1
     /32 host LOCAL
";

    #[test]
    fn addresses_of_interfaces_are_found_once() {
        assert_eq!(addresses(POD.as_bytes()), [Ipv4Addr::new(10, 8, 0, 5), Ipv4Addr::LOCALHOST]);
        assert!(addresses(b"").is_empty());
    }

    #[test]
    fn networks_that_are_routed_to_the_machine_itself_are_no_addresses() {
        // Such as those of a proxy that answers for others.
        assert!(addresses(b"Local:\n  |-- 10.0.0.0\n     /8 host LOCAL\n     /32 link UNICAST\n").is_empty());
    }

    #[test]
    fn one_leaf_can_have_several_routes() {
        let text = b"Local:\n  |-- 10.8.0.0\n     /24 link UNICAST\n     /32 host LOCAL tos=16\n";
        assert_eq!(addresses(text), [Ipv4Addr::new(10, 8, 0, 0)]);
    }

    /// An address and its routes: the length of the prefix, and whether the route is local.
    type Leaf = (u32, Vec<(u8, bool)>);

    /// Routes as the kernel prints them.
    fn printed(tables: &[(String, Vec<Leaf>)]) -> String {
        let mut text = String::new();
        for (table, leaves) in tables {
            let _ = writeln!(text, "{table}:\n  +-- 0.0.0.0/0 3 0 5");
            for (leaf, routes) in leaves {
                let _ = writeln!(text, "     |-- {}", Ipv4Addr::from(*leaf));
                for (prefix, is_local) in routes {
                    let kind = if *is_local { "host LOCAL" } else { "link UNICAST" };
                    let _ = writeln!(text, "        /{prefix} {kind}");
                }
            }
        }
        text
    }

    proptest! {
        #[test]
        fn exactly_the_local_host_routes_of_the_local_table_are_found(
            tables in proptest::collection::vec(
                (
                    prop_oneof!["Main", "Local", "Id [0-9]{1,3}"],
                    proptest::collection::vec(
                        (any::<u32>(), proptest::collection::vec((prop_oneof![Just(32), 0..=32_u8], any::<bool>()), 0..3)),
                        0..5,
                    ),
                ),
                0..4,
            ),
        ) {
            let local = tables.iter().filter(|(table, _)| table == "Local").flat_map(|(_, leaves)| leaves);
            let wanted: Vec<Ipv4Addr> = local
                .flat_map(|(leaf, routes)| routes.iter().filter(|route| **route == (32, true)).map(|_| Ipv4Addr::from(*leaf)))
                .collect();
            prop_assert_eq!(addresses(printed(&tables).as_bytes()), wanted);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = addresses(&bytes);
        }

        #[test]
        fn no_text_panics(text in "(Local:|\n| |\\|--|/32|host|LOCAL|10\\.8\\.0\\.5|\\+--){0,40}") {
            let _ = addresses(text.as_bytes());
        }
    }
}
