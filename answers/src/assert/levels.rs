//! The allocated bytes at epoch ends, as far as they are comparable.

use super::{Terms, ends};
use crate::report::Rank;

/// Allocated bytes at the epoch ends that count, in their order.
pub(super) struct Levels {
    /// Bytes.
    pub bytes: Vec<u64>,
    /// Whether the last one is known. If not, it is as low as what is known allows.
    pub is_last_known: bool,
}

impl Levels {
    /// No epoch follows the last one, so its end may be a moment within its last step, in which temporary tensors are
    /// live, or a moment before the memory that is kept after each epoch. What is left at the end of the recording shows
    /// it: memory that stays after the loop is still there, unless the program has freed it. A last level above that counts
    /// only up to it, or up to the highest level before.
    pub(super) fn new(rank: &Rank, terms: &Terms) -> Self {
        let mut bytes: Vec<u64> = ends(rank, terms).into_iter().filter_map(|end| end.allocated_bytes).collect();
        let mut is_last_known = true;
        if let (Some(left), [earlier @ .., last]) = (rank.end_allocated_bytes, bytes.as_mut_slice())
            && let (Some(&first), Some(&before), Some(&highest)) =
                (earlier.first(), earlier.last(), earlier.iter().max())
        {
            if left < *last && *last > highest {
                is_last_known = left > highest;
                *last = left.max(highest);
            } else if before > first {
                *last = left.max(*last);
            }
        }
        Self { bytes, is_last_known }
    }

    /// How many levels are known.
    pub(super) fn known(&self) -> usize {
        self.bytes.len() - usize::from(!self.is_last_known)
    }
}
