//! Restores the state in which a recording began.
//!
//! Guarantees: segments, blocks and free ranges equal those of the keyframe. Counts of driver calls start at 0, and
//! peaks start at the present levels. Segments that overlap others, or whose blocks do not tile them, are left out and
//! counted.

use memctl_model::allocator::MIN_BLOCK_BYTES;
use memctl_model::{BlockUse, SegmentKind, SegmentState};

use super::address::ReservationId;
use super::slab::{Block, NIL, Slot, Use};
use super::{Allocator, BlockId};

/// The result of restoring a state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Restored {
    /// Live blocks with their addresses, in the order of addresses.
    pub live: Vec<(u64, BlockId)>,
    /// Number of segments that contradict themselves or others and were left out.
    pub left_out: u64,
}

impl Allocator {
    /// Restores the segments of a keyframe, in address order. The allocator must be empty.
    pub(crate) fn restore(&mut self, segments: &[SegmentState]) -> Restored {
        let mut restored = Restored::default();
        let (whole, pages): (Vec<_>, Vec<_>) = segments.iter().partition(|segment| !segment.expandable);
        for segment in whole {
            if !tiles(segment) || !self.addresses.adopt(segment.addr, segment.size) {
                restored.left_out += 1;
                continue;
            }
            let pool = self.pool(segment.pool, segment.kind == SegmentKind::Small);
            let age = self.next_age();
            self.lay(segment, pool, (None, age), NIL, &mut restored);
        }
        // Ranges of one stream and pool belong to one expandable segment as long as they fit into it.
        let mut open: Vec<(u64, usize, u64, Slot)> = Vec::new();
        for segment in pages {
            let pool = self.pool(segment.pool, segment.kind == SegmentKind::Small);
            let page = self.page_bytes(pool);
            if !tiles(segment) || !segment.size.is_multiple_of(page) {
                restored.left_out += 1;
                continue;
            }
            // A segment whose blocks tile it has an end within 64 bits, so the sum cannot overflow.
            let known = open.iter().position(|&(stream, of, end, rest)| {
                let is_behind = segment.addr >= self.blocks.get(rest).addr;
                stream == segment.stream && of == pool && is_behind && segment.addr + segment.size <= end
            });
            let at = match known {
                Some(at) => at,
                None => {
                    let bytes = self.reservation_bytes.max(segment.size);
                    if !self.addresses.take(segment.addr, bytes) {
                        restored.left_out += 1;
                        continue;
                    }
                    let number = self.add_reservation(segment.addr, bytes, pool);
                    let all = Block::free(segment.addr, bytes, segment.stream, pool as u32, Some(number));
                    let age = self.next_age();
                    let slot = self.blocks.insert(Block { mapped: false, age, ..all });
                    open.push((segment.stream, pool, segment.addr + bytes, slot));
                    open.len() - 1
                }
            };
            let rest = open[at].3;
            match self.lay_pages(segment, pool, rest, &mut restored) {
                Some(rest) => open[at].3 = rest,
                None => {
                    open.remove(at);
                }
            }
        }
        for (.., rest) in open {
            self.insert_unmapped(rest);
        }
        self.counts.peak_allocated_bytes = self.counts.allocated_bytes;
        self.counts.peak_requested_bytes = self.counts.requested_bytes;
        self.counts.peak_reserved_bytes = self.counts.reserved_bytes;
        restored.live.sort_unstable_by_key(|&(addr, _)| addr);
        restored
    }

    /// Places a mapped range into the unmapped rest of its expandable segment. Returns the rest behind it.
    fn lay_pages(&mut self, segment: &SegmentState, pool: usize, rest: Slot, restored: &mut Restored) -> Option<Slot> {
        let block = *self.blocks.get(rest);
        let mut before = block.prev;
        if segment.addr > block.addr {
            let gap = Block { size: segment.addr - block.addr, ..block };
            before = self.blocks.splice(block.prev, gap, rest);
            self.insert_unmapped(before);
        }
        let last = self.lay(segment, pool, (block.reservation, block.age), before, restored);
        let end = segment.addr + segment.size;
        let left = block.addr + block.size - end;
        self.blocks.get_mut(last).next = NIL;
        if left == 0 {
            self.blocks.remove(rest);
            return None;
        }
        let tail = self.blocks.get_mut(rest);
        (tail.addr, tail.size, tail.prev) = (end, left, last);
        self.blocks.get_mut(last).next = rest;
        Some(rest)
    }

    /// Places the blocks of a segment behind `before`; returns the last of them.
    fn lay(
        &mut self,
        segment: &SegmentState,
        pool: usize,
        (reservation, age): (Option<ReservationId>, u32),
        before: Slot,
        restored: &mut Restored,
    ) -> Slot {
        let mut last = before;
        for state in &segment.blocks {
            let is_free = state.usage == BlockUse::Inactive;
            if is_free && last != before && self.blocks.get(last).usage == Use::Free {
                self.blocks.get_mut(last).size += state.size;
                continue;
            }
            let block = Block::free(state.addr, state.size, segment.stream, pool as u32, reservation);
            let block = Block { age: self.age_beside(age), ..block };
            last = self.blocks.splice(last, block, NIL);
            if is_free {
                continue;
            }
            let requested = state.requested.min(state.size);
            self.counts.hand_out(state.size, requested);
            let block = self.blocks.get_mut(last);
            block.usage = Use::Allocated;
            block.requested = requested;
            restored.live.push((state.addr, BlockId(last)));
            if state.usage == BlockUse::PendingFree {
                self.free_requested(BlockId(last));
            }
        }
        let mut slot = last;
        while slot != before {
            let block = self.blocks.get(slot);
            if block.usage == Use::Free {
                self.pools[pool].free.insert(slot, &self.blocks);
            }
            slot = block.prev;
        }
        self.counts.reserve(segment.size);
        last
    }
}

/// Whether a segment's blocks cover it without gap or overlap.
fn tiles(segment: &SegmentState) -> bool {
    let mut at = segment.addr;
    for block in &segment.blocks {
        if block.addr != at || block.size == 0 || !block.size.is_multiple_of(MIN_BLOCK_BYTES) {
            return false;
        }
        let Some(end) = at.checked_add(block.size) else { return false };
        at = end;
    }
    segment.addr.is_multiple_of(MIN_BLOCK_BYTES)
        && segment.size > 0
        && segment.addr.checked_add(segment.size) == Some(at)
}
