//! [`Noise`]: bytes that look random and need not be.

use std::hash::{BuildHasher, RandomState};

/// A `SplitMix64` sequence (Steele, Lea and Flood, 2014).
#[derive(Debug, Clone)]
pub(super) struct Noise(u64);

impl Noise {
    /// A sequence unlike that of any other mock, so that a restarted mock repeats no token.
    pub(super) fn new() -> Self {
        Self(RandomState::new().hash_one("mock"))
    }

    /// The next 64 bits.
    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// That many bytes.
    pub(super) fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..count.div_ceil(8)).flat_map(|_| self.bits().to_le_bytes()).collect();
        bytes.truncate(count);
        bytes
    }
}
