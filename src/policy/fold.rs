//! Folding: a name in the most lenient reading, without case and hyphens.

/// Folding keeps ASCII what it is, and patterns hold nothing else.
pub(super) fn folded(name: &str) -> Box<str> {
    fold(name.as_bytes()).map(char::from).collect()
}

/// A table, since every letter of every path is looked up.
const LOWER_CASE: [u8; 256] = {
    let mut lower = [0; 256];
    let mut byte = 0;
    while byte < 128_u8 {
        lower[byte as usize] = byte.to_ascii_lowercase();
        lower[byte as usize + 128] = byte + 128;
        byte += 1;
    }
    lower
};

/// A name in the most lenient reading: without case and hyphens. Of a name of hyphens nothing is left, but it is a name
/// still, which `*` matches.
pub(super) fn fold(name: &[u8]) -> impl Iterator<Item = u8> {
    name.iter().filter(|byte| **byte != b'-').map(|byte| LOWER_CASE[usize::from(*byte)])
}
