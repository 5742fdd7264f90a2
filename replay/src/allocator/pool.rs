//! A pool of blocks of one size class: its free list and its unmapped ranges, in PyTorch's orders.
//!
//! Guarantees: free blocks are ordered by (stream, size, address), which decides ties of the best fit; unmapped ranges by
//! (stream, address). Refuses to know what a block is.

use std::collections::BTreeMap;
use std::ops::Bound;

use memctl_model::PoolId;

use super::slab::{Block, Slot};

/// (stream, size, address).
pub(super) type FreeKey = (u64, u64, u64);

#[derive(Clone, Debug)]
pub(super) struct Pool {
    /// Whether it serves requests up to 1 MiB.
    pub is_small: bool,
    /// Free blocks with memory behind them.
    pub free: BTreeMap<FreeKey, Slot>,
    /// Ranges of expandable segments without memory behind them.
    pub unmapped: BTreeMap<(u64, u64), Slot>,
    /// How often it was searched while garbage collection is on.
    pub searches: u64,
    /// Whether nothing uses it any more, so that its cache may be released. The default pools' always may.
    pub is_releasable: bool,
}

impl Pool {
    pub fn new(id: PoolId, is_small: bool) -> Self {
        Self {
            is_small,
            free: BTreeMap::new(),
            unmapped: BTreeMap::new(),
            searches: 0,
            is_releasable: id == PoolId::DEFAULT,
        }
    }

    /// The smallest free block of a stream with at least this many bytes, and where it stands.
    pub fn best_fit(&self, stream: u64, size: u64) -> Option<(FreeKey, Slot)> {
        self.of_stream(self.free.range((stream, size, 0)..), stream)
    }

    /// The next larger one of the same stream.
    pub fn after(&self, key: FreeKey) -> Option<(FreeKey, Slot)> {
        self.of_stream(self.free.range((Bound::Excluded(key), Bound::Unbounded)), key.0)
    }

    fn of_stream<'a>(
        &self,
        mut range: impl Iterator<Item = (&'a FreeKey, &'a Slot)>,
        stream: u64,
    ) -> Option<(FreeKey, Slot)> {
        let (&key, &slot) = range.next()?;
        (key.0 == stream).then_some((key, slot))
    }

    pub fn key(block: &Block) -> FreeKey {
        (block.stream, block.size, block.addr)
    }
}
