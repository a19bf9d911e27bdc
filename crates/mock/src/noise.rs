//! [`Noise`]: pseudo-random bytes.

/// A pseudo-random sequence.
#[derive(Debug, Clone)]
pub(super) struct Noise(fastrand::Rng);

impl Noise {
    /// A sequence that differs from that of any other mock, so that a restarted mock does not repeat tokens.
    pub(super) fn new() -> Self {
        Self(fastrand::Rng::new())
    }

    /// This many bytes.
    pub(super) fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.fill(&mut bytes);
        bytes
    }
}
