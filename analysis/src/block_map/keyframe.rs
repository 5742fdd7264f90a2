//! Conversion of the map to a keyframe and back.
//!
//! Guarantees: restoring a result of [`BlockMap::keyframe`] yields the same map, so a replay can start at any
//! keyframe. Keyframes from other sources are checked: parts that overlap, leave their segment or exceed 64 bits are
//! dropped, and gaps and adjacent free blocks become one free block. Each such part counts as a contradiction.

use memctl_model::{BlockState, BlockUse, DeviceIndex, Keyframe, KeyframeReason, SegmentKind, SegmentState, StackId};

use super::largest::Largest;
use super::segments::range_end;
use super::slab::{Block, NIL, Slot, Use};
use super::{BlockMap, Sums, WALK_STEPS_MAX};

impl BlockMap {
    /// Drops every segment and block and continues from a keyframe. Settings, anomalies and peaks
    /// stay; the peaks are raised to the keyframe's levels.
    pub fn restore(&mut self, keyframe: &Keyframe) {
        self.slab.clear();
        self.sites.clear();
        self.largest = Largest::default();
        self.index.clear();
        // A keyframe does not name the stack that requested a segment, so the stacks that are already known are kept.
        let known = std::mem::take(&mut self.segments);
        self.pools.clear();
        self.loose.clear();
        self.sums = Sums::default();
        self.last_freed = NIL;
        self.walk_steps_left = WALK_STEPS_MAX;
        for segment in &keyframe.segments {
            let stack = known.get(&segment.addr).filter(|known| known.pool == segment.pool).map(|known| known.stack);
            self.restore_segment(segment, stack.unwrap_or(StackId::NONE));
        }
        for block in &keyframe.loose {
            self.restore_loose(block);
        }
        self.raise_allocated_peaks();
        self.raise_reserved_peaks();
    }

    fn restore_segment(&mut self, state: &SegmentState, stack: StackId) {
        let end = range_end(state.addr, state.size).filter(|&end| self.segments_in(state.addr, end).is_empty());
        let Some(end) = end else {
            self.anomalies.contradictions += 1;
            return;
        };
        let (mut first, mut last, mut reached) = (NIL, NIL, state.addr);
        for block in &state.blocks {
            let block_end = range_end(block.addr, block.size).filter(|&e| block.addr >= reached && e <= end);
            let Some(block_end) = block_end else {
                self.anomalies.contradictions += 1;
                continue;
            };
            if block.addr > reached {
                self.anomalies.contradictions += 1;
                last = self.append_free(last, reached, block.addr - reached, state);
                first = if first == NIL { last } else { first };
            }
            last = match block.usage {
                BlockUse::Inactive => self.append_free(last, block.addr, block.size, state),
                BlockUse::Allocated => self.append_live(last, block, Use::Allocated, state.kind, state.expandable),
                BlockUse::PendingFree => self.append_live(last, block, Use::Pending, state.kind, state.expandable),
            };
            first = if first == NIL { last } else { first };
            reached = block_end;
        }
        if reached < end {
            // A segment without any block is shorthand for a free segment.
            self.anomalies.contradictions += u64::from(!state.blocks.is_empty());
            last = self.append_free(last, reached, end - reached, state);
            first = if first == NIL { last } else { first };
        }
        self.add_segment(state.addr, state.size, (state.stream, state.pool, stack), first, last);
        self.sums.reserved_bytes += state.size;
        self.sums.inactive_split_bytes += self.inactive_split_from(first);
    }

    fn inactive_split_from(&self, first: Slot) -> u64 {
        let mut sum = 0;
        let mut slot = first;
        while slot != NIL {
            let block = self.slab.get(slot);
            sum += block.inactive_split_bytes();
            slot = block.next;
        }
        sum
    }

    fn append_free(&mut self, last: Slot, addr: u64, size: u64, segment: &SegmentState) -> Slot {
        if last != NIL && self.slab.get(last).usage == Use::Free {
            self.slab.get_mut(last).size += size;
            return last;
        }
        self.link_after(last, Block::free(addr, size, segment.kind, segment.expandable))
    }

    fn append_live(&mut self, last: Slot, state: &BlockState, usage: Use, kind: SegmentKind, expandable: bool) -> Slot {
        let mut block = Block {
            // A block never holds more requested bytes than its size. The sum of requested bytes relies on this.
            requested: state.requested.min(state.size),
            birth_step: state.birth_step,
            stack: state.stack,
            birth_epoch: state.birth_epoch,
            birth_phase: state.birth_phase,
            usage,
            ..Block::free(state.addr, state.size, kind, expandable)
        };
        self.sums.active_bytes += block.size;
        self.sums.requested_bytes += block.requested;
        if usage == Use::Allocated {
            self.sums.allocated_bytes += block.size;
            self.sums.allocated_blocks += 1;
            block.site = self.sites.enter(block.stack, block.birth_epoch, block.birth_phase, block.size);
        }
        self.link_after(last, block)
    }

    fn restore_loose(&mut self, state: &BlockState) {
        let usage = match state.usage {
            BlockUse::Inactive => None,
            BlockUse::Allocated => Some(Use::Allocated),
            BlockUse::PendingFree => Some(Use::Pending),
        };
        let end = range_end(state.addr, state.size).filter(|&end| {
            let below = self.loose.range(..end).next_back().map(|(_, &slot)| self.slab.get(slot).end());
            below.is_none_or(|below| below <= state.addr) && self.segments_in(state.addr, end).is_empty()
        });
        let (Some(usage), Some(_)) = (usage, end) else {
            self.anomalies.contradictions += 1;
            return;
        };
        let slot = self.append_live(NIL, state, usage, SegmentKind::Large, false);
        self.slab.get_mut(slot).loose = true;
        self.loose.insert(state.addr, slot);
    }

    /// The whole state. `at_event` is the number of events of this device that came before.
    #[must_use]
    pub fn keyframe(&self, device: DeviceIndex, at_event: u64, time_ns: u64, reason: KeyframeReason) -> Keyframe {
        let segments = self.segments.iter().map(|(&addr, segment)| {
            let blocks = self.blocks_from(segment.first).map(Block::state).collect();
            let super::Segment { size, stream, pool, kind, expandable, .. } = *segment;
            SegmentState { addr, size, stream, pool, kind, expandable, blocks }
        });
        let loose = self.loose.values().map(|&slot| self.slab.get(slot).state());
        Keyframe { device, at_event, time_ns, reason, segments: segments.collect(), loose: loose.collect() }
    }

    /// The blocks of a segment from `first` on, in address order.
    pub(super) fn blocks_from(&self, first: Slot) -> impl Iterator<Item = &Block> {
        let mut slot = first;
        std::iter::from_fn(move || {
            let block = (slot != NIL).then(|| self.slab.get(slot))?;
            slot = block.next;
            Some(block)
        })
    }
}
