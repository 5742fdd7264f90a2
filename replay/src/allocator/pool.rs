//! A pool of blocks of one size class: its free list and its unmapped ranges, in PyTorch's orders.
//!
//! Guarantees: unmapped ranges are ordered by stream and address.

use std::collections::BTreeMap;

use memctl_model::PoolId;

use super::free_list::FreeList;
use super::slab::Slot;

#[derive(Clone, Debug)]
pub(super) struct Pool {
    /// Whether it serves requests up to 1 MiB.
    pub is_small: bool,
    /// Free blocks that are mapped.
    pub free: FreeList,
    /// Ranges of expandable segments that are not mapped.
    pub unmapped: BTreeMap<(u64, u64), Slot>,
    /// How often it was searched while garbage collection was on.
    pub searches: u64,
    /// Whether its cache may be released: always for the default pools, and for private pools once they are unused.
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
