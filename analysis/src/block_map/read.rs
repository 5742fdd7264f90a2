//! The figures that the map reports: counters, sites, free blocks, segments.
//!
//! Guarantees: reading changes no figure. The cost of a live session's table (counters, changed sites) depends on what
//! changed. All other queries visit every block or site, so they are not for every event. For levels after each event
//! use [`BlockMap::levels`].

use memctl_model::{Counters, PoolId, PoolRow, SegmentKind, SiteRow, StackId};

use super::slab::Use;
use super::{BlockMap, Segment};

/// A free block and where it can be reused: blocks are reusable only on their stream and in their pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeBlock {
    /// Device address.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
    /// Stream of its segment.
    pub stream: u64,
    /// Pool of its segment.
    pub pool: PoolId,
    /// Small or large blocks.
    pub kind: SegmentKind,
    /// Whether it belongs to an expandable segment.
    pub expandable: bool,
}

/// How one segment is used. `allocated + pending + free = size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentUse {
    /// Device address.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
    /// Stream its blocks belong to.
    pub stream: u64,
    /// Pool it belongs to.
    pub pool: PoolId,
    /// Small or large blocks.
    pub kind: SegmentKind,
    /// Whether it is a mapped range of an expandable segment.
    pub expandable: bool,
    /// Bytes of allocated blocks.
    pub allocated_bytes: u64,
    /// Bytes that the program freed and that wait for another stream.
    pub pending_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// The largest free block.
    pub largest_free_bytes: u64,
    /// Allocated and pending blocks.
    pub live_blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
}

impl BlockMap {
    /// The counters. O(blocks), because `largest_free_bytes` needs a scan; every event updates the other counters.
    /// Tables use [`Self::counters_since`], which is cheaper.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let free = self.slab.iter().filter(|block| block.usage == Use::Free);
        self.counters_with(free.map(|block| block.size).max().unwrap_or(0))
    }

    /// The same counters, at a cost proportional to the blocks that changed since the last call.
    pub fn counters_since(&mut self) -> Counters {
        let largest = self.largest.bytes(&mut self.slab);
        self.counters_with(largest)
    }

    fn counters_with(&self, largest_free_bytes: u64) -> Counters {
        Counters {
            allocated_bytes: self.sums.allocated_bytes,
            active_bytes: self.sums.active_bytes,
            reserved_bytes: self.sums.reserved_bytes,
            requested_bytes: self.sums.requested_bytes,
            inactive_split_bytes: self.sums.inactive_split_bytes,
            largest_free_bytes,
            allocated_blocks: self.sums.allocated_blocks,
            segments: self.segments.len() as u64,
        }
    }

    /// Allocated blocks and bytes (block size) by stack, epoch and phase of birth, sorted by these. Their bytes sum to
    /// `allocated_bytes`: blocks whose free was requested are not included. O(n log n) in the sites.
    #[must_use]
    pub fn site_rows(&self) -> Vec<SiteRow> {
        self.sites.rows()
    }

    /// Number of allocated blocks. O(1).
    #[must_use]
    pub fn allocated_blocks(&self) -> u64 {
        self.sums.allocated_blocks
    }

    /// Number of rows that [`Self::site_rows`] returns.
    #[must_use]
    pub fn site_count(&self) -> usize {
        self.sites.living()
    }

    /// The same rows as [`Self::site_rows`]. The next [`Self::site_changes`] returns the changes since this call.
    pub fn take_site_rows(&mut self) -> Vec<SiteRow> {
        self.sites.take_rows()
    }

    /// The rows that changed since rows or changes were last taken. Sites without blocks have 0 blocks. The first call
    /// returns all rows. O(n log n) in the sites that events touched.
    pub fn site_changes(&mut self) -> Vec<SiteRow> {
        self.sites.changes()
    }

    /// Saves the present rows for [`Self::kept_site_rows`]. From now on the map records changes to them.
    pub fn keep_site_rows(&mut self) {
        self.sites.keep();
    }

    /// The rows as last saved, or the present rows if none were saved.
    #[must_use]
    pub fn kept_site_rows(&self) -> Vec<SiteRow> {
        self.sites.kept()
    }

    /// Reserved memory of private pools by the stack that requested it, sorted by stack.
    #[must_use]
    pub fn private_pools(&self) -> Vec<PoolRow> {
        self.pools.rows()
    }

    /// Bytes of the block that begins at an address; `None` if no block begins there. O(1).
    #[must_use]
    pub fn block_bytes(&self, addr: u64) -> Option<u64> {
        self.index.find(&self.slab, addr).map(|slot| self.slab.get(slot).size)
    }

    /// The stack of the live block that begins at an address; [`StackId::NONE`] if no live block begins there. O(1).
    #[must_use]
    pub fn block_stack(&self, addr: u64) -> StackId {
        let live =
            self.index.find(&self.slab, addr).map(|slot| self.slab.get(slot)).filter(|block| block.usage.is_live());
        live.map_or(StackId::NONE, |block| block.stack)
    }

    /// Every free block, in address order.
    pub fn free_blocks(&self) -> impl Iterator<Item = FreeBlock> {
        self.segments.values().flat_map(|segment| {
            let free = self.blocks_from(segment.first).filter(|block| block.usage == Use::Free);
            free.map(|block| FreeBlock {
                addr: block.addr,
                size: block.size,
                stream: segment.stream,
                pool: segment.pool,
                kind: segment.kind,
                expandable: segment.expandable,
            })
        })
    }

    /// Every segment and how it is used, in address order.
    pub fn segments(&self) -> impl Iterator<Item = SegmentUse> {
        self.segments.iter().map(|(&addr, segment)| self.segment_use(addr, segment))
    }

    fn segment_use(&self, addr: u64, segment: &Segment) -> SegmentUse {
        let &Segment { size, stream, pool, stack: _, kind, expandable, first, near_end: _ } = segment;
        let mut used = SegmentUse {
            addr,
            size,
            stream,
            pool,
            kind,
            expandable,
            allocated_bytes: 0,
            pending_bytes: 0,
            free_bytes: 0,
            largest_free_bytes: 0,
            live_blocks: 0,
            free_blocks: 0,
        };
        for block in self.blocks_from(first) {
            match block.usage {
                Use::Allocated => used.allocated_bytes += block.size,
                Use::Pending => used.pending_bytes += block.size,
                Use::Free | Use::Vacant => {
                    used.free_bytes += block.size;
                    used.largest_free_bytes = used.largest_free_bytes.max(block.size);
                    used.free_blocks += 1;
                    continue;
                }
            }
            used.live_blocks += 1;
        }
        used
    }
}
