//! Converts times: from nanoseconds to ticks, and from differences of ticks to symbols and extra bits.
//!
//! Guarantees: rounding down to ticks is exact for every time and resolution. A symbol and its extra bits represent
//! exactly one difference. Differences without a symbol are in the column of wide values.

/// Differences below this have a symbol each and no extra bits.
const EXACT: u64 = 16;
/// Differences from this value on have one symbol per octave. Differences between [`EXACT`] and this value have four
/// per octave.
const COARSE: u64 = 64;
/// The lowest difference without a symbol: 65 ms at 1 µs. Differences have 16 bits in an entry of a decoding table.
pub(super) const DIFFERENCE_MAX: u64 = 1 << 16;
/// The symbol of a first difference in the column of wide values.
pub(super) const FIRST_ESCAPE: u8 = 34;
/// Number of symbols of a first difference.
pub(super) const FIRST_SYMBOLS: u8 = 35;
/// The symbol of a second difference in the column of wide values. Smaller differences are their own symbols.
pub(super) const SECOND_ESCAPE: u8 = 3;
/// Number of symbols for both differences together. A symbol is first + 35 · second.
pub(super) const SYMBOLS: usize = FIRST_SYMBOLS as usize * 4;

/// The symbol of a difference below [`DIFFERENCE_MAX`], and the number of extra bits. The extra bits are the low bits
/// of the difference.
#[inline]
pub(super) const fn symbol(difference: u64) -> (u8, u32) {
    if difference < EXACT {
        return (difference as u8, 0);
    }
    let octave = 63 - difference.leading_zeros();
    if difference < COARSE {
        let quarter = (difference >> (octave - 2) & 3) as u32;
        return ((EXACT as u32 + (octave - 4) * 4 + quarter) as u8, octave - 2);
    }
    ((EXACT as u32 + 8 + (octave - 6)) as u8, octave)
}

/// The lowest difference of a first symbol below [`FIRST_ESCAPE`] and the number of extra bits.
pub(super) const fn difference(symbol: u8) -> (u32, u32) {
    let above = (symbol as u32).saturating_sub(EXACT as u32);
    match symbol {
        0..16 => (symbol as u32, 0),
        16..24 => ((4 + above % 4) << (above / 4 + 2), above / 4 + 2),
        _ => (1 << (above - 8 + 6), above - 8 + 6),
    }
}

/// Divides times by the resolution, quickly for repeated divisions.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    resolution_ns: u64,
    /// ceil(2^64 / resolution); 0 when it does not fit.
    reciprocal: u64,
}

impl Grid {
    /// A grid of at least 1 ns.
    pub(super) fn new(resolution_ns: u32) -> Self {
        let resolution_ns = u64::from(resolution_ns.max(1));
        Self { resolution_ns, reciprocal: (u64::MAX / resolution_ns).wrapping_add(1) }
    }

    /// Ticks of a time.
    pub(super) const fn ticks(self, time_ns: u64) -> u64 {
        time_ns / self.resolution_ns
    }

    /// Ticks of a time shortly after the tick `base`. This avoids a division, which would cost as much as the rest of
    /// an event.
    #[inline]
    pub(super) const fn ticks_after(self, time_ns: u64, base: u64) -> u64 {
        let base_ns = base.wrapping_mul(self.resolution_ns);
        // The product is too high by less than since / 2^64 < 2^-32 ticks. This is below 1 / resolution, so it does not
        // change the rounding.
        if time_ns >= base_ns && time_ns - base_ns < 1 << 32 && self.resolution_ns <= 1 << 16 && self.resolution_ns > 1
        {
            base.wrapping_add((((time_ns - base_ns) as u128 * self.reciprocal as u128) >> 64) as u64)
        } else {
            self.ticks(time_ns)
        }
    }

    /// The time of a tick. It wraps for ticks that no encoder writes.
    #[inline]
    pub(super) const fn time_ns(self, ticks: u64) -> u64 {
        ticks.wrapping_mul(self.resolution_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_has_one_symbol() {
        for value in 0..DIFFERENCE_MAX {
            let (symbol, bits) = symbol(value);
            let (low, same_bits) = difference(symbol);
            assert_eq!(bits, same_bits);
            assert!(symbol < FIRST_ESCAPE && u64::from(low) <= value && value - u64::from(low) < 1 << bits, "{value}");
        }
        assert_eq!(symbol(DIFFERENCE_MAX - 1), (FIRST_ESCAPE - 1, 15));
        assert_eq!(usize::from(FIRST_ESCAPE + FIRST_SYMBOLS * SECOND_ESCAPE), SYMBOLS - 1);
    }

    #[test]
    fn ticks_are_floored_without_dividing() {
        for resolution in [1u32, 2, 3, 7, 100, 1000, 4096, 65_535, 65_536, 65_537, 1_000_000, u32::MAX] {
            let grid = Grid::new(resolution);
            let step = u64::from(resolution);
            for base_ns in [0, 1_700_000_000_123_456_789u64, u64::MAX - (1 << 33)] {
                let base = grid.ticks(base_ns);
                for since in [0, 1, step - 1, step, step + 1, 999_999, (1 << 32) - 1, 1 << 32, (1 << 32) / step * step]
                {
                    let time = base_ns + since;
                    assert_eq!(grid.ticks_after(time, base), time / step, "{resolution} {base_ns} {since}");
                }
                assert_eq!(grid.ticks_after(base_ns / 2, base), base_ns / 2 / step);
            }
        }
        assert_eq!(Grid::new(0).ticks(9), 9);
        // The time is before the base, but in wrapping arithmetic it is only a few nanoseconds after it.
        let grid = Grid::new(100);
        assert_eq!(grid.ticks_after(1, grid.ticks(u64::MAX)), 0);
    }
}
