//! The free blocks of a pool, in the order in which the allocator searches them: by stream, then size, then address.
//!
//! Guarantees: the smallest block of a stream that is large enough, of equal ones the lowest; every step costs the logarithm of
//! the blocks of that stream. Memory follows the blocks that are listed. A stream's blocks have a tree of their own, whose key is
//! size and address in one number: one comparison a step, which is most of what a replayed event costs.
//! Refuses to know what a block is.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::slab::{Block, Slot};

/// Where a free block stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FreeKey {
    stream: u64,
    /// Size in the high half, address in the low one.
    place: u128,
}

impl FreeKey {
    pub fn of(block: &Block) -> Self {
        Self { stream: block.stream, place: place(block.size, block.addr) }
    }

    pub fn size(self) -> u64 {
        (self.place >> 64) as u64
    }
}

fn place(size: u64, addr: u64) -> u128 {
    u128::from(size) << 64 | u128::from(addr)
}

#[derive(Clone, Debug, Default)]
pub(super) struct FreeList {
    streams: BTreeMap<u64, BTreeMap<u128, Slot>>,
}

impl FreeList {
    pub fn insert(&mut self, key: FreeKey, slot: Slot) {
        self.streams.entry(key.stream).or_default().insert(key.place, slot);
    }

    pub fn remove(&mut self, key: FreeKey) {
        if let Some(blocks) = self.streams.get_mut(&key.stream) {
            blocks.remove(&key.place);
            if blocks.is_empty() {
                self.streams.remove(&key.stream);
            }
        }
    }

    pub fn get(&self, key: FreeKey) -> Option<Slot> {
        self.streams.get(&key.stream)?.get(&key.place).copied()
    }

    /// The smallest block of a stream with at least this many bytes.
    pub fn best_fit(&self, stream: u64, size: u64) -> Option<(FreeKey, Slot)> {
        let (&place, &slot) = self.streams.get(&stream)?.range(place(size, 0)..).next()?;
        Some((FreeKey { stream, place }, slot))
    }

    /// The next larger one of the same stream.
    pub fn after(&self, FreeKey { stream, place }: FreeKey) -> Option<(FreeKey, Slot)> {
        let behind = (Bound::Excluded(place), Bound::Unbounded);
        let (&place, &slot) = self.streams.get(&stream)?.range(behind).next()?;
        Some((FreeKey { stream, place }, slot))
    }

    /// Those of a stream that have fewer bytes, the largest first.
    pub fn below(&self, stream: u64, size: u64) -> impl Iterator<Item = (FreeKey, Slot)> {
        let blocks = self.streams.get(&stream).into_iter();
        let below = blocks.flat_map(move |blocks| blocks.range(..place(size, 0)).rev());
        below.map(move |(&place, &slot)| (FreeKey { stream, place }, slot))
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (FreeKey, Slot)> {
        self.streams
            .iter()
            .flat_map(|(&stream, blocks)| blocks.iter().map(move |(&place, &slot)| (FreeKey { stream, place }, slot)))
    }

    /// All of them, in order.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        self.streams.values().flat_map(|blocks| blocks.values().copied())
    }
}
