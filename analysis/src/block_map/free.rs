//! Frees: a request to free removes the block from `allocated`; its completion merges the block with its free
//! neighbours.
//!
//! Guarantees: blocks that wait for another stream are never merged. A merged block keeps the slot of its lowest part.
//! A free of a block that is not live changes nothing and is counted.

use super::BlockMap;
use super::slab::{NIL, Slot, Use};

impl BlockMap {
    #[inline]
    pub(super) fn free_requested(&mut self, addr: u64) {
        let Some(slot) = self.index.find(&self.slab, addr) else {
            self.anomalies.unknown_frees += 1;
            return;
        };
        match self.slab.get(slot).usage {
            Use::Allocated => {
                self.give_back(slot);
                self.last_freed = slot;
            }
            Use::Pending => self.anomalies.contradictions += 1,
            Use::Free | Use::Vacant => self.anomalies.unknown_frees += 1,
        }
    }

    #[inline]
    pub(super) fn free_completed(&mut self, addr: u64) {
        let slot = match self.slab.try_get(self.last_freed) {
            Some(block) if block.addr == addr && block.usage == Use::Pending => self.last_freed,
            _ => match self.index.find(&self.slab, addr) {
                Some(slot) => slot,
                None => {
                    self.anomalies.unknown_completions += 1;
                    return;
                }
            },
        };
        match self.slab.get(slot).usage {
            Use::Pending => self.complete(slot),
            Use::Allocated => {
                self.anomalies.contradictions += 1;
                self.give_back(slot);
                self.complete(slot);
            }
            Use::Free | Use::Vacant => self.anomalies.unknown_completions += 1,
        }
    }

    /// Only `allocated` falls at the request; the other sums fall at the completion.
    #[inline]
    fn give_back(&mut self, slot: Slot) {
        let block = self.slab.get_mut(slot);
        block.usage = Use::Pending;
        self.sums.allocated_bytes -= block.size;
        self.sums.allocated_blocks -= 1;
        self.sites.leave(block.site, block.size);
    }

    #[inline]
    fn complete(&mut self, slot: Slot) {
        let block = self.slab.get_mut(slot);
        self.sums.active_bytes -= block.size;
        self.sums.requested_bytes -= block.requested;
        if block.loose {
            let addr = block.addr;
            self.loose.remove(&addr);
            self.index.remove(addr, slot);
            self.slab.remove(slot);
            return;
        }
        block.usage = Use::Free;
        block.requested = 0;
        self.settle_free(slot);
    }

    /// Merges a block that has just become free with its free neighbours and adds it to
    /// `inactive_split`. Returns the slot of the merged block.
    #[inline]
    pub(super) fn settle_free(&mut self, mut slot: Slot) -> Slot {
        let block = self.slab.get(slot);
        let (prev, next) = (block.prev, block.next);
        if next != NIL && self.slab.get(next).usage == Use::Free {
            self.sums.inactive_split_bytes -= self.slab.get(next).inactive_split_bytes();
            self.absorb_next(slot);
        }
        if prev != NIL && self.slab.get(prev).usage == Use::Free {
            self.sums.inactive_split_bytes -= self.slab.get(prev).inactive_split_bytes();
            self.absorb_next(prev);
            slot = prev;
        }
        self.sums.inactive_split_bytes += self.slab.get(slot).inactive_split_bytes();
        slot
    }

    /// Joins a block with the one above it, which disappears. The caller updates the sums.
    #[inline]
    pub(super) fn absorb_next(&mut self, slot: Slot) {
        let gone = self.slab.get(slot).next;
        let upper = *self.slab.get(gone);
        let block = self.slab.get_mut(slot);
        block.size += upper.size;
        block.next = upper.next;
        if upper.next != NIL {
            self.slab.get_mut(upper.next).prev = slot;
        }
        self.index.remove(upper.addr, gone);
        self.slab.remove(gone);
    }

    /// Ends a live block because an event shows that it no longer exists.
    #[cold]
    pub(super) fn evict(&mut self, slot: Slot) {
        if self.slab.get(slot).usage == Use::Allocated {
            self.give_back(slot);
        }
        self.complete(slot);
    }

    /// Like [`evict`](Self::evict), for a block of a segment; returns the free block that now covers it.
    pub(super) fn evict_in_segment(&mut self, slot: Slot) -> Slot {
        let prev = self.slab.get(slot).prev;
        let merges_down = prev != NIL && self.slab.get(prev).usage == Use::Free;
        self.evict(slot);
        if merges_down { prev } else { slot }
    }

    /// Ends every live block of the segment that begins with `first`; returns the one free block that remains.
    #[cold]
    pub(super) fn forget_blocks(&mut self, first: Slot) -> Slot {
        let mut slot = first;
        loop {
            if self.slab.get(slot).usage.is_live() {
                slot = self.evict_in_segment(slot);
            }
            // Two neighbours are never both free, so the next block is live. Its eviction merges it into this one.
            match self.slab.get(slot).next {
                NIL => return slot,
                next => slot = next,
            }
        }
    }

    /// Ends every loose block that overlaps `start..end`. Returns whether there was one.
    #[cold]
    pub(super) fn evict_loose(&mut self, start: u64, end: u64) -> bool {
        let below = self.loose.range(..start).next_back().map(|(_, &slot)| slot);
        let reaches_in = below.filter(|&slot| self.slab.get(slot).end() > start);
        let inside = self.loose.range(start..end).map(|(_, &slot)| slot);
        let gone: Vec<Slot> = reaches_in.into_iter().chain(inside).collect();
        for &slot in &gone {
            self.evict(slot);
        }
        !gone.is_empty()
    }
}
