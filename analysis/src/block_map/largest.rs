//! Finds the largest free block without a scan of all blocks: a tree of maxima over the slots, with eight children per
//! node.
//!
//! Guarantees: the cost of a query is proportional to the slots that changed since the last query. The tree is built
//! at the first query, so maps without queries cost nothing.

use super::slab::{Slab, Slot};

/// Children of a node. Their maxima fill one cache line.
const FANOUT: usize = 8;

/// The tree. Level 0 has a place for every slot: its bytes if it is free, else 0.
#[derive(Clone, Debug, Default)]
pub(super) struct Largest {
    levels: Vec<Vec<u64>>,
}

impl Largest {
    /// Bytes of the largest free block, or 0 if there is none. Consumes the slab's list of touched slots.
    pub(super) fn bytes(&mut self, slab: &mut Slab) -> u64 {
        if self.levels.is_empty() {
            slab.list_touched();
            self.grow(slab.len());
            (0..slab.len()).for_each(|slot| self.set(slot, slab.free_bytes(slot as Slot)));
        }
        self.grow(slab.len());
        slab.take_touched(|slot, bytes| self.set(slot as usize, bytes));
        self.levels.last().and_then(|top| top.iter().copied().max()).unwrap_or(0)
    }

    /// Makes room for this many slots. The top level has at most eight entries.
    fn grow(&mut self, slots: usize) {
        let mut wanted = slots.max(1).next_multiple_of(FANOUT);
        for level in 0.. {
            if level == self.levels.len() {
                // The levels below are already filled.
                let below = level.checked_sub(1).map_or(&[][..], |below| &self.levels[below]);
                self.levels.push(below.chunks(FANOUT).map(|eight| eight.iter().copied().max().unwrap_or(0)).collect());
            }
            let places = &mut self.levels[level];
            places.resize(places.len().max(wanted), 0);
            if places.len() <= FANOUT {
                return;
            }
            wanted = (places.len() / FANOUT).next_multiple_of(FANOUT);
        }
    }

    fn set(&mut self, slot: usize, bytes: u64) {
        let (mut place, mut value) = (slot, bytes);
        for level in &mut self.levels {
            if std::mem::replace(&mut level[place], value) == value {
                return;
            }
            let first = place - place % FANOUT;
            value = level[first..first + FANOUT].iter().copied().max().unwrap_or(0);
            place /= FANOUT;
        }
    }
}
