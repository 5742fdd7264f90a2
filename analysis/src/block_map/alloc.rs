//! Allocations: a block is taken from the free block that starts at its address and is split as PyTorch splits it.
//!
//! Guarantees: the usual case costs one look-up and, if the block is split, one insertion. Cold functions handle all
//! other cases; they follow the module's table of contradictions.

use memctl_model::allocator::REQUEST_BYTES_MAX;
use memctl_model::{Event, SegmentKind};

use super::slab::{Block, NIL, Slot, Use};
use super::{Birth, BlockMap};

impl BlockMap {
    #[inline]
    pub(super) fn alloc(&mut self, event: &Event, birth: Birth) {
        let rounded = self.rules.round_size(event.size);
        let found = self.index.find(&self.slab, event.addr);
        if let Some(slot) = found {
            let block = self.slab.get(slot);
            if block.usage == Use::Free && block.size >= rounded && event.size <= REQUEST_BYTES_MAX {
                self.hand_out(slot, rounded, event, birth);
                return;
            }
        }
        self.alloc_against_the_map(found, rounded, event, birth);
    }

    /// Allocates a free block of at least `rounded` bytes, splitting it by the rule.
    #[inline]
    fn hand_out(&mut self, slot: Slot, rounded: u64, event: &Event, birth: Birth) {
        let block = *self.slab.get(slot);
        self.sums.inactive_split_bytes -= block.inactive_split_bytes();
        let remaining = block.size - rounded;
        let mut size = block.size;
        if self.rules.should_split(block.kind, block.expandable, rounded, remaining) {
            size = rounded;
            let rest = Block::free(block.addr + rounded, remaining, block.kind, block.expandable);
            let rest = self.link_after(slot, rest);
            self.sums.inactive_split_bytes += self.slab.get(rest).inactive_split_bytes();
        }
        let block = self.slab.get_mut(slot);
        block.size = size;
        self.occupy(slot, event, birth);
    }

    /// Makes a block live.
    #[inline]
    fn occupy(&mut self, slot: Slot, event: &Event, birth: Birth) {
        let block = self.slab.get_mut(slot);
        block.site = self.sites.enter(event.stack, birth.epoch, birth.phase, block.size);
        block.usage = Use::Allocated;
        // If the free block was too small for the request, the block holds less than was requested.
        block.requested = event.size.min(block.size);
        block.stack = event.stack;
        block.birth_epoch = birth.epoch;
        block.birth_step = birth.step;
        block.birth_phase = birth.phase;
        self.sums.allocated_bytes += block.size;
        self.sums.active_bytes += block.size;
        self.sums.requested_bytes += block.requested;
        self.sums.allocated_blocks += 1;
        self.raise_allocated_peaks();
    }

    /// Gives the live block at an address the stack that an event names.
    #[cold]
    pub(super) fn rename(&mut self, event: &Event) {
        let Some(slot) = self.index.find(&self.slab, event.addr).filter(|_| event.stack.is_some()) else { return };
        let block = self.slab.get_mut(slot);
        if !block.usage.is_live() {
            return;
        }
        block.stack = event.stack;
        if block.usage == Use::Allocated {
            self.sites.leave(block.site, block.size);
            block.site = self.sites.enter(event.stack, block.birth_epoch, block.birth_phase, block.size);
        }
    }

    /// Handles every case except a large enough free block at exactly this address.
    #[cold]
    fn alloc_against_the_map(&mut self, found: Option<Slot>, rounded: u64, event: &Event, birth: Birth) {
        if event.size > REQUEST_BYTES_MAX || event.addr.checked_add(rounded).is_none() {
            self.anomalies.contradictions += 1;
            return;
        }
        let mut contradicted = false;
        if let Some(slot) = found
            && self.slab.get(slot).usage.is_live()
        {
            contradicted = true;
            self.evict(slot);
        }
        match self.segment_of(event.addr) {
            None => contradicted |= self.alloc_loose(rounded, event, birth),
            Some(segment) => contradicted |= self.alloc_inside(segment, rounded, event, birth),
        }
        self.anomalies.contradictions += u64::from(contradicted);
    }

    /// Allocates in a segment whose free blocks do not agree with the event. Returns whether anything had to be
    /// corrected.
    fn alloc_inside(&mut self, segment: u64, rounded: u64, event: &Event, birth: Birth) -> bool {
        let mut contradicted = false;
        let mut slot = self.block_at(segment, event.addr);
        let block = *self.slab.get(slot);
        if block.usage.is_live() {
            contradicted = true;
            slot = if event.addr - block.addr >= self.rules.round_size(block.requested) {
                self.shrink(slot, event.addr)
            } else {
                self.evict_in_segment(slot)
            };
        }
        if self.slab.get(slot).addr < event.addr {
            contradicted = true;
            slot = self.cut_below(slot, event.addr);
        }
        while self.slab.get(slot).size < rounded && self.slab.get(slot).next != NIL {
            contradicted = true;
            self.evict_in_segment(self.slab.get(slot).next);
        }
        let room = self.slab.get(slot).size;
        self.hand_out(slot, rounded.min(room), event, birth);
        contradicted || room < rounded
    }

    /// Ends a live block at `end`; the rest becomes free. Returns the free block.
    fn shrink(&mut self, slot: Slot, end: u64) -> Slot {
        let block = self.slab.get_mut(slot);
        let cut = block.end() - end;
        block.size -= cut;
        let Block { usage, kind, expandable, site, size, .. } = *block;
        self.sums.active_bytes -= cut;
        if usage == Use::Allocated {
            self.sums.allocated_bytes -= cut;
            self.sites.resize(site, size + cut, size);
        }
        let rest = self.link_after(slot, Block::free(end, cut, kind, expandable));
        self.settle_free(rest)
    }

    /// Divides a free block at `addr` and returns the upper part. A lower part too small to be left by a split can
    /// only be the unsplit rest of the live block below, so it joins that block. A larger lower part stays free.
    fn cut_below(&mut self, slot: Slot, addr: u64) -> Slot {
        let block = *self.slab.get(slot);
        let gap = addr - block.addr;
        self.sums.inactive_split_bytes -= block.inactive_split_bytes();
        self.slab.get_mut(slot).size = gap;
        let upper = self.link_after(slot, Block::free(addr, block.size - gap, block.kind, block.expandable));
        let below = block.prev;
        let unsplit_rest = below != NIL && !self.rules.should_split(block.kind, block.expandable, 0, gap);
        if unsplit_rest {
            // Neighbours of a free block are never free, so the block below is live.
            let Block { usage, site, size, .. } = *self.slab.get(below);
            self.sums.active_bytes += gap;
            if usage == Use::Allocated {
                self.sums.allocated_bytes += gap;
                self.sites.resize(site, size, size + gap);
                self.raise_allocated_peaks();
            }
            self.absorb_next(below);
        } else {
            self.sums.inactive_split_bytes += self.slab.get(slot).inactive_split_bytes();
        }
        self.sums.inactive_split_bytes += self.slab.get(upper).inactive_split_bytes();
        upper
    }

    /// Allocates outside every known segment: the rounded size at the event's address. Returns whether anything had to
    /// be corrected.
    fn alloc_loose(&mut self, rounded: u64, event: &Event, birth: Birth) -> bool {
        let end = event.addr + rounded;
        let mut contradicted = self.evict_loose(event.addr, end);
        let mut size = rounded;
        if let Some((&segment, _)) = self.segments.range(event.addr..end).next() {
            contradicted = true;
            size = segment - event.addr;
        }
        let slot =
            self.link_after(NIL, Block { loose: true, ..Block::free(event.addr, size, SegmentKind::Large, false) });
        self.loose.insert(event.addr, slot);
        self.occupy(slot, event, birth);
        contradicted
    }
}
