//! Segments: memory that the driver provided and took back, whole or page by page.
//!
//! Guarantees: segments never overlap. Contiguous mapped ranges of one stream, pool and kind form one segment, as a
//! snapshot shows them. Ranges that are empty or exceed 64 bits are rejected.

use memctl_model::allocator::segment_kind;
use memctl_model::{Event, PoolId, SegmentKind, StackId};

use super::slab::{Block, NIL, Slot, Use};
use super::{BlockMap, Segment};

/// Stream, pool, and the stack that requested the segment.
pub(super) type Owner = (u64, PoolId, StackId);

/// The end of a range that is not empty and lies within 64 bits.
pub(super) fn range_end(addr: u64, size: u64) -> Option<u64> {
    if size == 0 { None } else { addr.checked_add(size) }
}

impl BlockMap {
    #[cold]
    pub(super) fn segment_alloc(&mut self, event: &Event) {
        let Some(end) = range_end(event.addr, event.size) else {
            self.anomalies.contradictions += 1;
            return;
        };
        self.anomalies.contradictions += u64::from(self.clear_range(event.addr, end));
        self.add_free_segment(event, segment_kind(event.size), false);
    }

    #[cold]
    pub(super) fn segment_map(&mut self, event: &Event) {
        let Some(end) = range_end(event.addr, event.size) else {
            self.anomalies.contradictions += 1;
            return;
        };
        self.anomalies.contradictions += u64::from(self.clear_range(event.addr, end));
        // Small pages are mapped one at a time; a large page has more than 10 MiB. The size therefore determines the
        // kind.
        self.add_free_segment(event, segment_kind(event.size), true);
        self.join_with_next(event.addr);
        if let Some((&below, segment)) = self.segments.range(..event.addr).next_back()
            && below + segment.size == event.addr
        {
            self.join_with_next(below);
        }
    }

    #[cold]
    pub(super) fn segment_free(&mut self, event: &Event) {
        match self.segments.get(&event.addr) {
            Some(segment) if !segment.expandable => {
                let resized = segment.size != event.size;
                let lived = self.drop_segment(event.addr);
                self.anomalies.contradictions += u64::from(resized || lived);
            }
            // Pages of expandable segments are unmapped, never freed. A range inside another segment cannot be a
            // segment of its own.
            Some(_) => self.anomalies.contradictions += 1,
            None if self.segment_of(event.addr).is_some() => self.anomalies.contradictions += 1,
            None => {
                self.anomalies.unknown_segments += 1;
                if let Some(end) = range_end(event.addr, event.size) {
                    self.anomalies.contradictions += u64::from(self.evict_loose(event.addr, end));
                }
            }
        }
    }

    #[cold]
    pub(super) fn segment_unmap(&mut self, event: &Event) {
        let Some(end) = range_end(event.addr, event.size) else {
            self.anomalies.contradictions += 1;
            return;
        };
        let (mut unmapped, mut contradicted) = (0, false);
        let mut reached = event.addr;
        while let Some(start) = self.next_segment(reached, end) {
            let segment = self.segments[&start];
            if !segment.expandable {
                // A segment that is not expandable ends the mapping, so nothing beyond it can belong to it.
                contradicted = true;
                break;
            }
            let (low, high) = (event.addr.max(start), end.min(start + segment.size));
            contradicted |= self.unmap_part(start, low, high);
            unmapped += high - low;
            reached = high;
        }
        if unmapped == 0 {
            self.anomalies.unknown_segments += 1;
            contradicted |= self.evict_loose(event.addr, end);
        } else {
            contradicted |= unmapped != event.size;
        }
        self.anomalies.contradictions += u64::from(contradicted);
    }

    /// The address of the first segment that overlaps `start..end`. The range may be empty.
    fn next_segment(&self, start: u64, end: u64) -> Option<u64> {
        if start >= end {
            return None;
        }
        self.segment_of(start).or_else(|| self.segments.range(start..end).next().map(|(&segment, _)| segment))
    }

    /// Addresses of the segments that overlap `start..end`.
    pub(super) fn segments_in(&self, start: u64, end: u64) -> Vec<u64> {
        let below = self.segment_of(start).filter(|&segment| segment < start);
        below.into_iter().chain(self.segments.range(start..end).map(|(&segment, _)| segment)).collect()
    }

    /// Clears a range of memory that the driver has just provided: whatever was recorded there can no longer exist.
    /// Returns whether anything was removed.
    fn clear_range(&mut self, start: u64, end: u64) -> bool {
        let mut cleared = self.evict_loose(start, end);
        for segment in self.segments_in(start, end) {
            cleared = true;
            let Segment { size, expandable, .. } = self.segments[&segment];
            if expandable {
                self.unmap_part(segment, start.max(segment), end.min(segment + size));
            } else {
                self.drop_segment(segment);
            }
        }
        cleared
    }

    fn add_free_segment(&mut self, event: &Event, kind: SegmentKind, expandable: bool) {
        let slot = self.link_after(NIL, Block::free(event.addr, event.size, kind, expandable));
        self.add_segment(event.addr, event.size, (event.stream, event.pool, event.stack), slot, slot);
        self.sums.reserved_bytes += event.size;
        self.raise_reserved_peaks();
    }

    /// Adds a segment whose blocks are already linked. The segment takes its kind from its first block.
    pub(super) fn add_segment(&mut self, addr: u64, size: u64, owner: Owner, first: Slot, near_end: Slot) {
        let Block { kind, expandable, .. } = *self.slab.get(first);
        let (stream, pool, stack) = owner;
        let mut segment = Segment { size, stream, pool, stack, kind, expandable, first, near_end };
        segment.stack = self.pools.enter(&segment);
        self.segments.insert(addr, segment);
    }

    /// Removes a segment. The caller removes its blocks.
    fn remove_segment(&mut self, addr: u64) -> Option<Segment> {
        let segment = self.segments.remove(&addr)?;
        self.pools.leave(&segment);
        Some(segment)
    }

    /// Removes a segment with its blocks. Returns whether any of them was live.
    fn drop_segment(&mut self, addr: u64) -> bool {
        let Some(segment) = self.remove_segment(addr) else { return false };
        self.sums.reserved_bytes -= segment.size;
        let (mut slot, mut lived) = (segment.first, false);
        while slot != NIL {
            let block = *self.slab.get(slot);
            lived |= block.usage.is_live();
            self.forget(&block);
            self.index.remove(block.addr, slot);
            self.slab.remove(slot);
            slot = block.next;
        }
        lived
    }

    /// Subtracts a block from the sums.
    fn forget(&mut self, block: &Block) {
        self.sums.inactive_split_bytes -= block.inactive_split_bytes();
        if block.usage.is_live() {
            self.sums.active_bytes -= block.size;
            self.sums.requested_bytes -= block.requested;
        }
        if block.usage == Use::Allocated {
            self.sums.allocated_bytes -= block.size;
            self.sums.allocated_blocks -= 1;
            self.sites.leave(block.site, block.size);
        }
    }

    /// The last block of a segment. The search starts at the remembered block if that is still inside the segment.
    fn last_block(&mut self, addr: u64) -> Slot {
        let segment = self.segments[&addr];
        let remembered = self
            .slab
            .try_get(segment.near_end)
            .is_some_and(|block| block.usage != Use::Vacant && block.addr >= addr && block.addr - addr < segment.size);
        let mut slot = if remembered { segment.near_end } else { segment.first };
        while self.slab.get(slot).next != NIL {
            slot = self.slab.get(slot).next;
        }
        slot
    }

    /// Joins an expandable range with the one that begins where it ends, if they belong together.
    fn join_with_next(&mut self, addr: u64) {
        let lower = self.segments[&addr];
        let Some(&upper) = self.segments.get(&(addr + lower.size)) else { return };
        // Traces up to torch 2.11 do not name the pool, so the default pool means "not known".
        let pools_agree = lower.pool == upper.pool || lower.pool == PoolId::DEFAULT || upper.pool == PoolId::DEFAULT;
        let alike = lower.expandable
            && upper.expandable
            && pools_agree
            && (lower.stream, lower.kind) == (upper.stream, upper.kind);
        if !alike {
            return;
        }
        let last = self.last_block(addr);
        self.remove_segment(addr + lower.size);
        self.slab.get_mut(last).next = upper.first;
        self.slab.get_mut(upper.first).prev = last;
        let mut near_end = upper.near_end;
        if self.slab.get(last).usage == Use::Free && self.slab.get(upper.first).usage == Use::Free {
            // Free blocks of expandable segments are not part of any sum, so joining them changes none.
            self.absorb_next(last);
            near_end = if near_end == upper.first { last } else { near_end };
        }
        if let Some(segment) = self.segments.get_mut(&addr) {
            self.pools.leave(segment);
            segment.size += upper.size;
            // Only the range that names its pool has the stack that requested that pool's memory.
            segment.stack = if lower.pool == PoolId::DEFAULT { upper.stack } else { lower.stack };
            segment.pool = lower.pool.max(upper.pool);
            segment.near_end = near_end;
            segment.stack = self.pools.enter(segment);
        }
    }

    /// Removes `low..high` from an expandable range, which may leave a range on either side. Returns whether any block
    /// there was live.
    fn unmap_part(&mut self, segment: u64, low: u64, high: u64) -> bool {
        let lived = self.evict_range(segment, low, high);
        let slot = self.block_at(segment, low);
        let hole = *self.slab.get(slot);
        let Some(whole) = self.remove_segment(segment) else { return lived };
        self.sums.reserved_bytes -= high - low;
        self.index.remove(hole.addr, slot);
        self.slab.remove(slot);
        let owner = (whole.stream, whole.pool, whole.stack);
        if hole.next != NIL {
            self.slab.get_mut(hole.next).prev = NIL;
        }
        if hole.prev != NIL {
            self.slab.get_mut(hole.prev).next = NIL;
        }
        if low > segment {
            let (mut first, mut near_end) = (whole.first, hole.prev);
            if hole.addr < low {
                let head = self.link_after(hole.prev, Block::free(hole.addr, low - hole.addr, whole.kind, true));
                first = if hole.prev == NIL { head } else { first };
                near_end = head;
            }
            self.add_segment(segment, low - segment, owner, first, near_end);
        }
        let end = segment + whole.size;
        if high < end {
            let mut first = hole.next;
            if high < hole.end() {
                first = self.link_after(NIL, Block::free(high, hole.end() - high, whole.kind, true));
                self.slab.get_mut(first).next = hole.next;
                if hole.next != NIL {
                    self.slab.get_mut(hole.next).prev = first;
                }
            }
            self.add_segment(high, end - high, owner, first, whole.near_end);
        }
        lived
    }

    /// Ends every live block of a segment that overlaps `low..high`; leaves one free block.
    fn evict_range(&mut self, segment: u64, low: u64, high: u64) -> bool {
        let mut lived = false;
        let mut slot = self.block_at(segment, low);
        loop {
            if self.slab.get(slot).usage.is_live() {
                lived = true;
                slot = self.evict_in_segment(slot);
            }
            let block = self.slab.get(slot);
            if block.end() >= high || block.next == NIL {
                return lived;
            }
            slot = block.next;
        }
    }
}
