//! Folding: the most lenient reading of a name, without case and hyphens.

/// The folded form of a name from a pattern. Both are ASCII.
pub(super) fn folded(name: &str) -> Box<str> {
    fold(name.as_bytes()).map(char::from).collect()
}

/// A table, because every byte of every path is looked up.
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

/// Folds a name: removes case and hyphens. A name that consists of hyphens becomes empty, but it is still a name, which
/// `*` matches.
pub(super) fn fold(name: &[u8]) -> impl Iterator<Item = u8> {
    name.iter().filter(|byte| **byte != b'-').map(|byte| LOWER_CASE[usize::from(*byte)])
}
