//! [`noise`]: pseudo-random bytes.

/// This many bytes. They differ from those of any other mock, so that a restarted mock does not repeat tokens.
pub(super) fn noise(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    fastrand::fill(&mut bytes);
    bytes
}
