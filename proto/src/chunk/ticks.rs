//! Times on the grid: from nanoseconds to ticks, from differences of ticks to symbols and extra bits.
//!
//! Guarantees: flooring to the grid is exact for every time and resolution; a symbol and its bits
//! stand for exactly one difference. Refuses nothing: all 64-bit differences have a symbol.

use super::{Fault, Part};

/// Differences below this have a symbol each and no extra bits.
const EXACT: u64 = 16;

/// The symbol of a difference and the number of extra bits, which are its low bits: four symbols an octave.
#[inline]
pub(super) const fn symbol(difference: u64) -> (u8, u32) {
    if difference < EXACT {
        return (difference as u8, 0);
    }
    let octave = 63 - difference.leading_zeros();
    let quarter = (difference >> (octave - 2) & 3) as u32;
    ((EXACT as u32 + (octave - 4) * 4 + quarter) as u8, octave - 2)
}

/// The lowest difference of a symbol and the number of extra bits.
#[inline]
pub(super) const fn difference(symbol: u8) -> (u64, u32) {
    let (low, bits) = DIFFERENCES[symbol as usize];
    (low, bits as u32)
}

const DIFFERENCES: [(u64, u8); 256] = {
    let mut all = [(0, 0); 256];
    let mut symbol = 0;
    while symbol < all.len() {
        all[symbol] = if (symbol as u64) < EXACT {
            (symbol as u64, 0)
        } else {
            let (octave, quarter) = ((symbol as u64 - EXACT) / 4, (symbol as u64 - EXACT) % 4);
            ((4 + quarter) << (octave + 2), octave as u8 + 2)
        };
        symbol += 1;
    }
    all
};

/// Divides by the resolution again and again.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    resolution_ns: u64,
    /// ceil(2^64 / resolution), 0 when it does not fit.
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

    /// Ticks of a time that lies shortly after the tick `base`: no division, which would cost as much as the rest of an event.
    #[inline]
    pub(super) const fn ticks_after(self, time_ns: u64, base: u64) -> u64 {
        let base_ns = base.wrapping_mul(self.resolution_ns);
        // The product is too high by less than since / 2^64 < 2^-32 ticks; below 1 / resolution that changes no floor.
        if time_ns >= base_ns && time_ns - base_ns < 1 << 32 && self.resolution_ns <= 1 << 16 && self.resolution_ns > 1
        {
            base.wrapping_add((((time_ns - base_ns) as u128 * self.reciprocal as u128) >> 64) as u64)
        } else {
            self.ticks(time_ns)
        }
    }

    /// The time of a tick; wraps for ticks that no encoder writes.
    #[inline]
    pub(super) const fn time_ns(self, ticks: u64) -> u64 {
        ticks.wrapping_mul(self.resolution_ns)
    }
}

/// Collects extra bits, least significant first.
#[derive(Default)]
pub(super) struct BitWriter {
    pub(super) bytes: Vec<u8>,
    pending: u64,
    count: u32,
}

impl BitWriter {
    /// Appends the low `count` (at most 61) bits of `value`.
    #[inline]
    pub(super) fn put(&mut self, value: u64, count: u32) {
        let value = value & ((1 << count) - 1);
        self.pending |= value << self.count;
        let total = self.count + count;
        if total < 64 {
            self.count = total;
            return;
        }
        self.bytes.extend_from_slice(&self.pending.to_le_bytes());
        // `self.count` is at least 3 here, so the shift is below 64.
        self.pending = value >> (64 - self.count);
        self.count = total - 64;
    }

    /// Forgets what was written and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        (self.pending, self.count) = (0, 0);
    }

    /// Writes what is left.
    pub(super) fn finish(&mut self) {
        let left = self.count.div_ceil(8) as usize;
        self.bytes.extend_from_slice(&self.pending.to_le_bytes()[..left]);
        (self.pending, self.count) = (0, 0);
    }
}

/// Reads what [`BitWriter`] wrote.
pub(super) struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> BitReader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The next `count` (at most 61) bits.
    #[inline(always)]
    pub(super) fn get(&mut self, count: u32) -> Result<u64, Fault> {
        let (byte, shift) = (self.at / 8, self.at % 8);
        match self.bytes.get(byte..) {
            Some(rest) if shift as u32 + count <= 64 && rest.len() >= 8 => {
                self.at += count as usize;
                let word = rest.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
                Ok(word >> shift & ((1 << count) - 1))
            }
            _ => self.get_at_edge(count),
        }
    }

    /// Bits that reach into a ninth byte or lie in the last eight.
    #[inline(never)]
    fn get_at_edge(&mut self, count: u32) -> Result<u64, Fault> {
        let (byte, shift) = (self.at / 8, self.at % 8);
        self.at += count as usize;
        if self.at > self.bytes.len() * 8 {
            return Err(Fault::Truncated(Part::Bits));
        }
        let bytes = self.bytes[byte..].iter().take(9).rev().fold(0u128, |sum, &byte| sum << 8 | u128::from(byte));
        Ok((bytes >> shift) as u64 & ((1 << count) - 1))
    }

    /// An error unless only the padding of the last byte is left.
    pub(super) const fn finished(&self) -> Result<(), Fault> {
        if self.at.div_ceil(8) == self.bytes.len() { Ok(()) } else { Err(Fault::Malformed(Part::Bits)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_has_one_symbol() {
        let edges = (0..64).flat_map(|bit| [1u64 << bit, (1 << bit) + 1, (1 << bit) - 1, u64::MAX >> bit]);
        for value in (0..5000).chain(edges) {
            let (symbol, bits) = symbol(value);
            let (low, same_bits) = difference(symbol);
            assert_eq!(bits, same_bits);
            assert!(low <= value && value - low < 1 << bits, "{value}");
        }
        assert_eq!(symbol(u64::MAX), (255, 61));
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
        // Before the base, but only a few nanoseconds after it in wrapping arithmetic.
        let grid = Grid::new(100);
        assert_eq!(grid.ticks_after(1, grid.ticks(u64::MAX)), 0);
    }

    #[test]
    fn bits_survive_at_every_offset() {
        let mut writer = BitWriter::default();
        let widths: Vec<u32> = (0..2000).map(|n| (n * 7 + n / 62) % 62).collect();
        let value = |n: usize| (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        widths.iter().enumerate().for_each(|(n, &width)| writer.put(value(n), width));
        writer.finish();
        let mut reader = BitReader::new(&writer.bytes);
        for (n, &width) in widths.iter().enumerate() {
            assert_eq!(reader.get(width).unwrap(), value(n) & ((1 << width) - 1), "{n}");
        }
        reader.finished().unwrap();
        assert!(reader.get(61).is_err());
    }
}
