//! The state at the begin of a recording, derived from its end.
//!
//! A snapshot contains the segments at its end and the last events before it. Reading the events backwards gives the
//! segments at the start and the blocks that were live then. These blocks are live at the end or freed in the trace,
//! and are not allocated in it. Guarantees: replaying the trace from the result ends in the snapshot's segments. There
//! is one pass, and memory is proportional to the live blocks. No input makes it fail. Stacks are not guessed: the
//! stack of a free is not that of the allocation.
//!
//! Sizes of blocks that are freed in the trace:
//! - Small pool or expandable segment: the rounded request, because every rest of at least 512 bytes is split off.
//! - An allocation directly behind the block while the block is live shows the block's end. A free area is used from
//!   its low end, which is the block's end.
//! - A gap of at most 1 MiB in a large segment is the block's own unsplit rest, because all blocks and split rests
//!   there are larger.
//! - Otherwise the rounded request. Only in this case can the size be up to 1 MiB more;
//!   [`InitialState::assumed_sizes`] counts these.

mod ranges;

use std::collections::BTreeMap;

use memctl_model::allocator::{pool_of, segment_kind};
use memctl_model::{
    Action, AllocatorSettings, BlockState, BlockUse, DeviceIndex, Event, Keyframe, KeyframeReason, Phase, SegmentKind,
    SegmentState, StackId,
};

use crate::rules::PlacementRules;
use ranges::{Range, Ranges};

/// The result of [`initial_state`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialState {
    /// The state before the first event.
    pub keyframe: Keyframe,
    /// Blocks freed in the trace that were neither allocated in it nor inside a segment known at that time.
    pub unknown_frees: u64,
    /// Events that contradict the state at the end: something in between is missing.
    pub contradictions: u64,
    /// Blocks of large segments for which nothing showed the size, so that the rounded request was assumed.
    pub assumed_sizes: u64,
}

/// Derives the state before the first event of `trace` from the segments after the last one.
pub fn initial_state(
    settings: &AllocatorSettings,
    device: DeviceIndex,
    final_segments: &[SegmentState],
    trace: impl DoubleEndedIterator<Item = Event>,
) -> InitialState {
    let mut rewind = Rewind::from_end(settings, final_segments);
    let mut start_ns = 0;
    for event in trace.rev() {
        rewind.undo(&event);
        start_ns = event.time_ns;
    }
    rewind.finish(device, start_ns)
}

/// A block that is live at the current position of the backward pass.
#[derive(Clone, Copy, Debug)]
struct Live {
    requested: u64,
    /// The block's size; `None` as long as nothing shows it.
    true_size: Option<u64>,
    usage: BlockUse,
    stack: StackId,
    birth_epoch: u32,
    birth_step: u64,
    birth_phase: Option<Phase>,
}

struct Rewind<'a> {
    settings: &'a AllocatorSettings,
    rules: PlacementRules,
    ranges: Ranges,
    live: BTreeMap<u64, Live>,
    unknown_frees: u64,
    contradictions: u64,
    assumed_sizes: u64,
}

impl<'a> Rewind<'a> {
    fn from_end(settings: &'a AllocatorSettings, segments: &[SegmentState]) -> Self {
        let mut rewind = Self {
            settings,
            rules: PlacementRules::new(settings),
            ranges: Ranges::default(),
            live: BTreeMap::new(),
            unknown_frees: 0,
            contradictions: 0,
            assumed_sizes: 0,
        };
        for segment in segments {
            if !rewind.ranges.insert(segment.addr, Range::from(segment)) {
                rewind.contradictions += 1;
                continue;
            }
            for block in segment.blocks.iter().filter(|block| block.usage != BlockUse::Inactive) {
                if block.size == 0 {
                    rewind.contradictions += 1;
                    continue;
                }
                let &BlockState { addr, size, requested, usage, stack, birth_epoch, birth_step, birth_phase } = block;
                let live =
                    Live { requested, true_size: Some(size), usage, stack, birth_epoch, birth_step, birth_phase };
                rewind.live.insert(addr, live);
            }
        }
        rewind
    }

    /// Undoes one event.
    fn undo(&mut self, event: &Event) {
        let range_end = event.addr.checked_add(event.size).filter(|&end| end > event.addr);
        let possible = match (event.action, range_end) {
            (Action::Alloc, _) => {
                self.undo_alloc(event.addr);
                true
            }
            (Action::FreeRequested, _) => self.undo_free_requested(event),
            (Action::FreeCompleted, _) => self.undo_free_completed(event),
            (Action::SegmentAlloc, Some(end)) => {
                self.forget_live(event.addr, end);
                self.ranges.remove(event.addr, event.size)
            }
            (Action::SegmentMap, Some(end)) => {
                self.forget_live(event.addr, end);
                self.ranges.set_kind(event.addr, segment_kind(event.size));
                self.ranges.unmap(event.addr, end)
            }
            (Action::SegmentFree, Some(_)) => {
                self.ranges.insert(event.addr, Range::of_segment(event.size, event.stream, event.pool))
            }
            (Action::SegmentUnmap, Some(_)) => {
                let pages = Range::of_pages(event.size, event.stream, event.pool, self.settings);
                self.ranges.map(event.addr, pages)
            }
            (Action::Snapshot | Action::Oom | Action::Annotate, _) => true,
            (_, None) => false,
        };
        self.contradictions += u64::from(!possible);
    }

    /// Undoes an allocation: the block did not exist before it. A block directly below, if any, ended where this block
    /// begins.
    fn undo_alloc(&mut self, addr: u64) {
        if self.live.remove(&addr).is_none() {
            // Its free is missing from the trace, as in recordings that omit some actions.
            self.contradictions += 1;
            return;
        }
        let Some((&below_addr, below)) = self.live.range_mut(..addr).next_back() else { return };
        if below.true_size.is_some_and(|size| below_addr.checked_add(size) == Some(addr)) {
            return;
        }
        let Some((start, range)) = self.ranges.containing(addr) else { return };
        let distance = addr - below_addr;
        let rounded = self.rules.round_size(below.requested);
        if below_addr >= start
            && below.true_size.is_none()
            && distance >= rounded
            && !splits(&self.rules, range, rounded, distance - rounded)
        {
            below.true_size = Some(distance);
        }
    }

    /// Sets the kind of the pages that contain a block: the block's size shows their pool.
    fn learn_kind(&mut self, addr: u64, requested: u64) {
        self.ranges.set_kind(addr, pool_of(self.rules.round_size(requested)));
    }

    fn undo_free_completed(&mut self, event: &Event) -> bool {
        self.learn_kind(event.addr, event.size);
        self.live.insert(event.addr, freed_later(event.size, BlockUse::PendingFree)).is_none()
    }

    fn undo_free_requested(&mut self, event: &Event) -> bool {
        match self.live.get_mut(&event.addr) {
            Some(block) if block.usage == BlockUse::PendingFree => {
                block.usage = BlockUse::Allocated;
                true
            }
            Some(_) => false,
            None => {
                self.live.insert(event.addr, freed_later(event.size, BlockUse::Allocated));
                // The completion is missing: it is neither in the trace nor pending at the end.
                false
            }
        }
    }

    /// Removes all blocks of a segment: none was live before the driver provided the segment.
    fn forget_live(&mut self, start: u64, end: u64) {
        let inside: Vec<u64> = self.live.range(start..end).map(|(&addr, _)| addr).collect();
        self.unknown_frees += inside.len() as u64;
        for addr in inside {
            self.live.remove(&addr);
        }
    }

    fn finish(mut self, device: DeviceIndex, time_ns: u64) -> InitialState {
        let ranges = std::mem::take(&mut self.ranges);
        let segments: Vec<SegmentState> = ranges.iter().map(|(addr, range)| self.settle(addr, range)).collect();
        // The remaining blocks are outside every segment.
        self.unknown_frees += self.live.len() as u64;
        let keyframe =
            Keyframe { device, at_event: 0, time_ns, reason: KeyframeReason::Start, segments, loose: Vec::new() };
        InitialState {
            keyframe,
            unknown_frees: self.unknown_frees,
            contradictions: self.contradictions,
            assumed_sizes: self.assumed_sizes,
        }
    }

    /// One segment of the initial state with its blocks, which are removed from `live`.
    fn settle(&mut self, addr: u64, range: &Range) -> SegmentState {
        let end = addr + range.size;
        let inside: Vec<(u64, Live)> = self.live.range(addr..end).map(|(&addr, &live)| (addr, live)).collect();
        let mut blocks = Vec::with_capacity(inside.len() * 2 + 1);
        let mut reached = addr;
        for (position, &(block_addr, live)) in inside.iter().enumerate() {
            self.live.remove(&block_addr);
            let limit = inside.get(position + 1).map_or(end, |&(next, _)| next);
            if block_addr > reached {
                blocks.push(free_block(reached, block_addr - reached));
            }
            let size = self.true_size(&live, limit - block_addr, range);
            let Live { requested, true_size: _, usage, stack, birth_epoch, birth_step, birth_phase } = live;
            let requested = requested.min(size);
            blocks.push(BlockState {
                addr: block_addr,
                size,
                requested,
                usage,
                stack,
                birth_epoch,
                birth_step,
                birth_phase,
            });
            reached = block_addr + size;
        }
        if reached < end {
            blocks.push(free_block(reached, end - reached));
        }
        let &Range { size, stream, pool, kind, kind_is_guessed: _, expandable } = range;
        SegmentState { addr, size, stream, pool, kind, expandable, blocks }
    }

    /// Applies the module's rules to a block with `room` bytes up to the next live block or the segment's end.
    fn true_size(&mut self, live: &Live, room: u64, range: &Range) -> u64 {
        let size = live.true_size.unwrap_or_else(|| self.rules.round_size(live.requested));
        if size > room {
            self.contradictions += 1;
            return room;
        }
        if live.true_size.is_some() {
            return size;
        }
        if !splits(&self.rules, range, size, room - size) {
            return room;
        }
        let could_be_more = range.kind == SegmentKind::Large && !range.expandable && !self.settings.expandable_segments;
        self.assumed_sizes += u64::from(could_be_more);
        size
    }
}

fn splits(rules: &PlacementRules, range: &Range, rounded: u64, rest: u64) -> bool {
    rules.should_split(range.kind, range.expandable, rounded, rest)
}

/// A block of which only the free is known.
fn freed_later(requested: u64, usage: BlockUse) -> Live {
    Live { requested, true_size: None, usage, stack: StackId::NONE, birth_epoch: 0, birth_step: 0, birth_phase: None }
}

fn free_block(addr: u64, size: u64) -> BlockState {
    BlockState { addr, size, ..BlockState::default() }
}
