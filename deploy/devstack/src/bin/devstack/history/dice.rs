//! Pseudo-random numbers.

/// A generator of pseudo-random numbers that are the same in each run (SplitMix64).
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: &str) -> Self {
        Self(seed.bytes().fold(7, |hash, byte| hash.wrapping_mul(31) + u64::from(byte)))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `limit` - 1.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Rounds up or down so that the average result is `expected`.
    pub(super) fn round(&mut self, expected: f64) -> u64 {
        (expected + self.below(1_000) as f64 / 1_000.0) as u64
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next() as u8)
    }

    /// Returns one of the choices, weighted by their shares. Panics when there are none.
    pub(super) fn choose<T: Copy>(&mut self, choices: &[T], share: impl Fn(&T) -> u64) -> T {
        let mut position = self.below(choices.iter().map(&share).sum::<u64>().max(1));
        let chosen = choices.iter().find(|choice| match position.checked_sub(share(choice)) {
            Some(rest) => {
                position = rest;
                false
            }
            None => true,
        });
        *chosen.unwrap_or(&choices[0])
    }
}
