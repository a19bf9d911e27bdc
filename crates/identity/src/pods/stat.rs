//! Reads the state and the start of a process from `/proc/PID/stat`.

/// Number of words from the state (field 3), the first after the name, to the start (field 22).
const START: usize = 22 - 3;

/// The parsed fields of a `stat` file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    /// Whether it is running. A zombie, which has ended but is not reaped by its parent yet, is not.
    pub(super) is_running: bool,
    /// Start, in clock ticks since boot, rounded down.
    pub(super) start: u64,
}

impl Stat {
    /// Parses the file. The name of the process is in parentheses, and may contain any bytes, parentheses too.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let name_end = text.iter().rposition(|byte| *byte == b')')?;
        let mut words = std::str::from_utf8(&text[name_end + 1..]).ok()?.split_ascii_whitespace();
        let state = words.next()?;
        let start = words.nth(START - 1)?.parse().ok()?;
        Some(Self { is_running: !matches!(state, "Z" | "X" | "x"), start })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::super::sandboxes::fake_proc::stat as text;
    use super::*;

    #[test]
    fn a_text_of_the_kernel() {
        let text =
            b"1 (systemd) S 0 1 1 0 -1 4194560 213843 708145487 0 35050 6734 41988 5955860 629030 10 -10 14 0 17 \
                     46768128 3407 18446744073709551615 1 1 0\n";
        assert_eq!(Stat::parse(text), Some(Stat { is_running: true, start: 17 }));
    }

    #[test]
    fn a_process_that_has_ended_is_not_running() {
        for (state, is_running) in [('R', true), ('D', true), ('T', true), ('Z', false), ('X', false)] {
            assert_eq!(Stat::parse(&text(9, b"pause", state, 5)), Some(Stat { is_running, start: 5 }), "{state}");
        }
    }

    #[test]
    fn a_truncated_text_says_nothing() {
        let whole = text(9, b"pause", 'S', 5);
        assert_eq!(Stat::parse(&whole[..whole.len() / 2]), None);
        assert_eq!(Stat::parse(b""), None);
    }

    proptest! {
        #[test]
        fn a_name_cannot_pretend_anything(pid: u32, name in "(\\)|\\(| |S|Z|[0-9]|\n){0,15}", start: u64) {
            let stat = Stat::parse(&text(pid, name.as_bytes(), 'S', start));
            prop_assert_eq!(stat, Some(Stat { is_running: true, start }));
        }

        #[test]
        fn names_are_any_bytes(name in proptest::collection::vec(any::<u8>(), 0..15), start: u64) {
            prop_assert_eq!(Stat::parse(&text(1, &name, 'S', start)), Some(Stat { is_running: true, start }));
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = Stat::parse(&bytes);
        }
    }
}
