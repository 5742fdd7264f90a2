//! A pool of blocks of one size class: its free list and its unmapped ranges, in PyTorch's orders.
//!
//! Guarantees: unmapped ranges are ordered by (stream, address). Refuses to know what a block is.

use std::collections::BTreeMap;

use memctl_model::PoolId;

use super::free_list::FreeList;
use super::slab::Slot;

#[derive(Clone, Debug)]
pub(super) struct Pool {
    /// Whether it serves requests up to 1 MiB.
    pub is_small: bool,
    /// Free blocks with memory behind them.
    pub free: FreeList,
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
            free: FreeList::default(),
            unmapped: BTreeMap::new(),
            searches: 0,
            is_releasable: id == PoolId::DEFAULT,
        }
    }
}
