//! Prefix codes: Huffman lengths, canonical codes, and tables for decoding.
//!
//! Guarantees: only integers are used. Equal lengths give equal codes on every machine. No code is longer than
//! [`LENGTH_MAX`] bits, so a table of 4 KiB decodes any symbol with one lookup.
//! Refuses: lengths that do not form a complete code.

use super::columns::Column;
use super::{Fault, Part};

/// Longest code in bits. Longer codes would save 0.1 % of the times' size, but the tables would no longer fit the
/// first-level cache.
pub(super) const LENGTH_MAX: usize = 10;

/// Computes the least-cost code lengths for symbols with these counts. Stores each length plus one, and 0 for symbols
/// that do not occur. There are at most 256 symbols.
pub(super) fn lengths(counts: &[u32], stored: &mut [u8]) {
    let mut leaves: Vec<(u32, u8)> = counts
        .iter()
        .zip(0..=u8::MAX)
        .filter(|&(&count, _)| count > 0)
        .map(|(&count, symbol)| (count, symbol))
        .collect();
    leaves.sort_unstable();
    stored.fill(0);
    while !try_lengths(&leaves, stored) {
        // The tree is too deep. Halving the counts makes it flatter and keeps their order. With equal counts, 256
        // symbols have 8 bits.
        leaves.iter_mut().for_each(|(count, _)| *count = (*count).div_ceil(2));
    }
}

/// Huffman's algorithm on sorted leaves with two queues. Returns false if a code would be too long.
fn try_lengths(leaves: &[(u32, u8)], stored: &mut [u8]) -> bool {
    let n = leaves.len();
    if let [(_, symbol)] = *leaves {
        stored[usize::from(symbol)] = 1;
    }
    if n < 2 {
        return true;
    }
    // Nodes 0..n are leaves. Nodes from n on are inner nodes in the order of their weights. `parents` has an entry for
    // each node except the root.
    let (mut weights, mut parents) = ([0u32; 511], [0u16; 511]);
    weights.iter_mut().zip(leaves).for_each(|(weight, &(count, _))| *weight = count);
    let (mut leaf, mut joint) = (0, n);
    for new in n..2 * n - 1 {
        for _ in 0..2 {
            let child =
                if leaf < n && (joint == new || weights[leaf] <= weights[joint]) { &mut leaf } else { &mut joint };
            parents[*child] = new as u16;
            weights[new] += weights[*child];
            *child += 1;
        }
    }
    let mut depths = [0u8; 511];
    for node in (0..2 * n - 2).rev() {
        depths[node] = depths[usize::from(parents[node])] + 1;
    }
    // The rarest leaf is among the deepest.
    if usize::from(depths[0]) > LENGTH_MAX {
        return false;
    }
    leaves.iter().zip(depths).for_each(|(&(_, symbol), depth)| stored[usize::from(symbol)] = depth + 1);
    true
}

/// A canonical code. The slots of a table of `1 << bits` are assigned to symbols in the order of (length, symbol).
pub(super) struct Code {
    /// Length of the longest code, at least 1.
    pub(super) bits: usize,
    /// Next free slot by length.
    next: [u32; LENGTH_MAX + 1],
}

impl Code {
    /// Checks stored lengths and prepares assigning slots.
    pub(super) fn new(stored: &[u8]) -> Result<Self, Fault> {
        let mut symbols = [0u32; LENGTH_MAX + 2];
        for &length in stored {
            *symbols.get_mut(usize::from(length)).ok_or(Fault::Malformed(Part::Column(Column::Lengths)))? += 1;
        }
        let symbols = &symbols[1..];
        let bits = symbols.iter().rposition(|&symbols| symbols > 0).unwrap_or(0).max(1);
        let (mut next, mut slot) = ([0; LENGTH_MAX + 1], 0);
        for (length, (next, &symbols)) in next.iter_mut().zip(symbols).enumerate().take(bits + 1) {
            *next = slot;
            // The sum is small: at most 256 symbols of at most 2^10 slots.
            slot += symbols << (bits - length);
        }
        if slot == 1 << bits { Ok(Self { bits, next }) } else { Err(Fault::Malformed(Part::Column(Column::Lengths))) }
    }

    /// Assigns the slots of the next symbol from its stored length, which must be one of the lengths of this code.
    /// Returns the first slot, and the binary logarithm of the number of slots.
    #[inline]
    pub(super) fn hand_out(&mut self, stored: u8) -> (usize, usize) {
        let length = usize::from(stored) - 1;
        let shift = self.bits - length;
        let slot = self.next[length] as usize;
        self.next[length] += 1 << shift;
        (slot, shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(counts: &[u32]) -> Vec<u8> {
        let mut stored = vec![9; counts.len()];
        lengths(counts, &mut stored);
        Code::new(&stored).unwrap();
        stored
    }

    #[test]
    fn lengths_are_huffman_s() {
        assert_eq!(code(&[5, 0, 1, 1, 2]), [2, 0, 4, 4, 3]);
        assert_eq!(code(&[0, 7, 0]), [0, 1, 0]);
        assert_eq!(code(&[3, 3]), [2, 2]);
        assert_eq!(code(&[1; 256]), [9; 256]);
    }

    #[test]
    fn lengths_are_limited_and_complete() {
        // Fibonacci numbers make the deepest trees.
        let fibonacci: Vec<u32> = (0..40)
            .scan((1u32, 1u32), |(a, b), _| {
                (*a, *b) = (*b, *a + *b);
                Some(*a)
            })
            .collect();
        let stored = code(&fibonacci);
        assert_eq!(usize::from(*stored.iter().max().unwrap()), LENGTH_MAX + 1);
        assert!(stored.windows(2).all(|pair| pair[0] >= pair[1]));
        code(&[[1; 255].as_slice(), &[u32::MAX >> 1]].concat());
    }

    #[test]
    fn incomplete_and_overfull_codes_are_refused() {
        for stored in [&[][..], &[0, 0], &[2], &[1, 1], &[2, 2, 2], &[3, 2], &[12, 12], &[1, 2], &[255]] {
            assert!(Code::new(stored).is_err(), "{stored:?}");
        }
    }

    #[test]
    fn slots_are_handed_out_by_length_then_symbol() {
        let mut code = Code::new(&[3, 2, 3]).unwrap();
        assert_eq!(code.bits, 2);
        assert_eq!([3, 2, 3].map(|stored| code.hand_out(stored)), [(2, 0), (0, 1), (3, 0)]);
    }
}
