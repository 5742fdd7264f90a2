//! Random draws from a seed (xoshiro256++). They are the same on every machine and in every build.
//!
//! Guarantees: a stream of numbers depends only on its seed. [`Draw::fork`] gives each name a stream of its own. So an
//! additional draw in one place changes nothing in other places. Not suitable for secrets.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Draw([u64; 4]);

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Draw {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self(std::array::from_fn(|_| split_mix(&mut state)))
    }

    /// The stream of a name within a seed.
    #[must_use]
    pub fn fork(seed: u64, name: &str) -> Self {
        let hash =
            name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        Self::new(seed ^ hash)
    }

    fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number that is uniformly distributed in `0..1`.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number that is uniformly distributed in `low..high`.
    pub fn real(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// An integer that is uniformly distributed in `low..=high`; `low` if the range is empty.
    pub fn int(&mut self, low: u64, high: u64) -> u64 {
        if high <= low { low } else { low + (self.unit() * (high - low + 1) as f64) as u64 }
    }

    /// An integer in `low..=high` that is uniformly distributed on a logarithmic scale. Both limits must be at least 1.
    pub fn log_int(&mut self, low: u64, high: u64) -> u64 {
        let drawn = self.real((low as f64).ln(), (high as f64 + 1.0).ln()).exp() as u64;
        drawn.clamp(low, high.max(low))
    }

    /// True with this probability, otherwise false.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A random element.
    ///
    /// # Panics
    /// The slice is empty.
    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.int(0, all.len() as u64 - 1) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_repeat_and_stay_in_their_ranges() {
        let (mut a, mut b) = (Draw::fork(7, "leak"), Draw::fork(7, "leak"));
        let mut other = Draw::fork(7, "benign");
        let mut equal = 0;
        for _ in 0..1_000 {
            let drawn = a.log_int(3, 400);
            assert_eq!(drawn, b.log_int(3, 400));
            assert!((3..=400).contains(&drawn));
            equal += u32::from(drawn == other.log_int(3, 400));
        }
        assert!(equal < 100);
        let mean = (0..10_000).map(|_| a.int(0, 10)).sum::<u64>() as f64 / 10_000.0;
        assert!((mean - 5.0).abs() < 0.2, "{mean}");
        assert_eq!(a.int(4, 4), 4);
    }
}
