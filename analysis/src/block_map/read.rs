//! What can be read off the map: counters, sites, free blocks, segments.
//!
//! Guarantees: reading changes nothing. Everything here looks at every block, so it is for
//! boundaries (steps, epochs, questions), not for every event; [`BlockMap::levels`] is for those.

use memctl_model::{Counters, Phase, PoolId, SegmentKind, SiteRow, StackId};

use super::slab::Use;
use super::{BlockMap, Segment};

/// A free block and where it can serve: blocks are reusable only on their stream and in their pool.
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
    /// Bytes handed out.
    pub allocated_bytes: u64,
    /// Bytes given back that wait for another stream.
    pub pending_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// The largest free block.
    pub largest_free_bytes: u64,
    /// Blocks handed out or pending.
    pub live_blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
}

impl BlockMap {
    /// The counters. O(blocks), because of `largest_free_bytes`; the others are kept up to date by every event.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let free = self.slab.iter().filter(|block| block.usage == Use::Free);
        Counters {
            allocated_bytes: self.sums.allocated_bytes,
            active_bytes: self.sums.active_bytes,
            reserved_bytes: self.sums.reserved_bytes,
            requested_bytes: self.sums.requested_bytes,
            inactive_split_bytes: self.sums.inactive_split_bytes,
            largest_free_bytes: free.map(|block| block.size).max().unwrap_or(0),
            allocated_blocks: self.sums.allocated_blocks,
            segments: self.segments.len() as u64,
        }
    }

    /// Allocated blocks and bytes (true size) by stack, epoch and phase of birth, sorted by these. Their
    /// bytes sum to `allocated_bytes`: blocks whose free was requested belong to nobody any more.
    /// O(n log n) in the live blocks.
    #[must_use]
    pub fn site_rows(&self) -> Vec<SiteRow> {
        let allocated = self.slab.iter().filter(|block| block.usage == Use::Allocated);
        /// Stack, epoch of birth, phase of birth.
        type Site = (StackId, u32, Option<Phase>);
        let mut by_site: Vec<(Site, u64)> =
            allocated.map(|block| ((block.stack, block.birth_epoch, block.birth_phase), block.size)).collect();
        by_site.sort_unstable_by_key(|&(site, _)| site);
        let same_site = by_site.chunk_by(|(a, _), (b, _)| a == b);
        same_site
            .map(|blocks| SiteRow {
                stack: blocks[0].0.0,
                birth_epoch: blocks[0].0.1,
                birth_phase: blocks[0].0.2,
                blocks: blocks.len() as u64,
                bytes: blocks.iter().map(|&(_, size)| size).sum(),
            })
            .collect()
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
        let &Segment { size, stream, pool, kind, expandable, first, near_end: _ } = segment;
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
