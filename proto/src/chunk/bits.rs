//! Writes and reads the bits of the times, most significant bit first.
//!
//! Guarantees: reading truncated bits returns an error, never a panic.
//! Refuses: more than 32 bits at once.

use super::{Fault, Part};

/// Zero bytes after the bits, so that a window can be read at any bit.
pub(super) const PADDING: [u8; 8] = [0; 8];

/// Collects bits.
#[derive(Default)]
pub(super) struct BitWriter {
    pub(super) bytes: Vec<u8>,
    /// Bits that are not written yet, from the highest bit down.
    pending: u64,
    count: u32,
}

impl BitWriter {
    /// Discards the written bits and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        (self.pending, self.count) = (0, 0);
    }

    /// Appends `value`, which has at most `count` bits (at most 32).
    #[inline]
    pub(super) fn put(&mut self, value: u32, count: u32) {
        // Fewer than 32 bits are pending, so the shift is at least 1. It is less than 64 unless no bit is added.
        self.pending |= u64::from(value).wrapping_shl(64 - self.count - count);
        self.count += count;
        if self.count >= 32 {
            self.bytes.extend_from_slice(&((self.pending >> 32) as u32).to_be_bytes());
            self.pending <<= 32;
            self.count -= 32;
        }
    }

    /// Writes the pending bits.
    pub(super) fn finish(&mut self) {
        let left = self.count.div_ceil(8) as usize;
        self.bytes.extend_from_slice(&self.pending.to_be_bytes()[..left]);
        (self.pending, self.count) = (0, 0);
    }
}

/// The bits from bit `at` on, from the highest bit down; at least 57 of them.
#[inline(always)]
pub(super) fn window(padded: &[u8], at: usize) -> Result<u64, Fault> {
    match padded.get(at / 8..).and_then(|rest| rest.first_chunk::<8>()) {
        Some(word) => Ok(u64::from_be_bytes(*word) << (at % 8)),
        None => Err(Fault::Truncated(Part::Times)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_survive_at_every_offset() {
        let mut writer = BitWriter::default();
        let widths: Vec<u32> = (0..2000).map(|n| (n * 7 + n / 33) % 33).collect();
        let value = |n: usize| {
            let noise = (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            (noise & ((1 << widths[n]) - 1)) as u32
        };
        (0..widths.len()).for_each(|n| writer.put(value(n), widths[n]));
        writer.finish();
        let written = writer.bytes.len();
        let padded = [writer.bytes.as_slice(), &PADDING].concat();
        let mut at = 0;
        for (n, &width) in widths.iter().enumerate() {
            assert_eq!((window(&padded, at).unwrap() >> 1 >> (63 - width)) as u32, value(n), "{n}");
            at += width as usize;
        }
        assert_eq!(at.div_ceil(8), written);
        assert!(window(&padded, at + 8 + 64).is_err());
    }
}
