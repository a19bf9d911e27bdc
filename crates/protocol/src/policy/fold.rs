//! Folding: the most lenient reading of a name, without case, hyphens and underscores.

/// The folded form of a name from a pattern. Both are ASCII.
pub(super) fn folded(name: &str) -> Box<str> {
    fold(name.as_bytes()).map(char::from).collect()
}

/// What a byte is read as, or 0, which is in no name, if it is skipped. A table, because every byte of every path is looked up.
const READ: [u8; 256] = {
    let mut read = [0; 256];
    let mut byte = 0;
    while byte < 128_u8 {
        read[byte as usize] = byte.to_ascii_lowercase();
        read[byte as usize + 128] = byte + 128;
        byte += 1;
    }
    read[b'-' as usize] = 0;
    read[b'_' as usize] = 0;
    read
};

/// Folds a name: removes case, hyphens and underscores. A name that consists of these becomes empty, but it is still a name,
/// which `*` matches.
pub(super) fn fold(name: &[u8]) -> impl Iterator<Item = u8> {
    name.iter().map(|byte| READ[usize::from(*byte)]).filter(|byte| *byte != 0)
}
