//! The block map: an allocator's segments and blocks, followed event by event at the recorded addresses.
//!
//! Guarantees: after every event `allocated`, `active`, `reserved`, `requested` and `inactive_split` bytes equal those
//! of PyTorch's `memory_stats()` at that moment. This holds if the initial state was known and no event was dropped.
//! Live bytes are never negative. An event costs a few tens of nanoseconds and, except for loose blocks, no
//! allocation. The map never fails: if an event contradicts the map, the event is counted and the map follows it,
//! because the recording is an observation and the map is only derived from it.
//!
//! Invariants, each covered by a test: the blocks of a segment follow each other without gap or overlap; two
//! neighbours are never both free; segments do not overlap; loose blocks overlap nothing.
//!
//! How the map resolves each contradiction:
//!
//! | event | rule |
//! |---|---|
//! | allocation where a block lives | the old block is removed |
//! | allocation inside a live block, behind its requested bytes | the old block ends there |
//! | allocation inside a live block otherwise | the old block is removed |
//! | allocation inside a free block | a rest below it up to 1 MiB joins a large block, a larger one stays free |
//! | allocation larger than its place | live blocks in its way are removed; it is cut at the segment's end |
//! | completion without a request | both happen |
//! | request on a block already freed | nothing |
//! | free of a block that is not live | nothing; counted as unknown |
//! | segment freed or unmapped with live blocks | the blocks are removed |
//! | new segment over an old one or over loose blocks | the old ones are removed |
//! | the 32 millionth step of such searches since the last keyframe | the searched segment's blocks are removed |
//! | address range beyond 2^64, segment of zero bytes | nothing |

mod alloc;
mod free;
mod index;
mod keyframe;
mod largest;
mod oldest;
mod pools;
mod read;
mod segments;
mod sites;
mod slab;

use std::collections::BTreeMap;

use memctl_model::{Action, AllocatorSettings, Event, Levels, Peaks, Phase, PoolId, SegmentKind, StackId};

use crate::rules::PlacementRules;
use index::AddressIndex;
use largest::Largest;
pub use oldest::{LiveBlock, LiveSample};
use pools::Pools;
pub use read::{FreeBlock, SegmentUse};
pub use sites::SITES_MAX;
use sites::Sites;
use slab::{NIL, Slab, Slot};

/// The epoch, step and phase in which a block was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Birth {
    /// The current epoch.
    pub epoch: u32,
    /// The current step.
    pub step: u64,
    /// The current phase.
    pub phase: Option<Phase>,
}

/// Events that did not agree with the map. All zero for a complete recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Anomalies {
    /// Frees of blocks that were not seen allocated (or are free already).
    pub unknown_frees: u64,
    /// Completions of such frees.
    pub unknown_completions: u64,
    /// Segments freed, or pages unmapped, that were not known.
    pub unknown_segments: u64,
    /// Events that contradicted the map. The map was corrected by the rules in the module's table.
    pub contradictions: u64,
}

/// A segment, or one contiguous mapped range of an expandable segment.
#[derive(Clone, Copy, Debug)]
struct Segment {
    size: u64,
    stream: u64,
    pool: PoolId,
    /// The stack that requested it, if known; for an expandable segment, the stack of its first range.
    stack: StackId,
    kind: SegmentKind,
    expandable: bool,
    /// The block at the segment's address. It keeps its slot as long as the segment exists: splits hand out the low
    /// part and merges keep the low block.
    first: Slot,
    /// A block near the segment's end, used to find the end quickly when the segment grows.
    near_end: Slot,
}

/// The running sums.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    allocated_bytes: u64,
    active_bytes: u64,
    reserved_bytes: u64,
    requested_bytes: u64,
    inactive_split_bytes: u64,
    allocated_blocks: u64,
}

/// Maximum steps that searches after contradictions may walk between two keyframes; this many take a fraction of a
/// second. Without it, a damaged or malicious recording could make every event walk its whole segment.
const WALK_STEPS_MAX: u64 = 32 << 20;
/// Steps that every search may take, so that short walks stay exact.
const WALK_STEPS_FREE: u64 = 256;

/// The block map; see the module's documentation.
#[derive(Clone, Debug)]
pub struct BlockMap {
    rules: PlacementRules,
    slab: Slab,
    index: AddressIndex,
    segments: BTreeMap<u64, Segment>,
    /// Live blocks outside every segment, by address. The order lets overlaps be found.
    loose: BTreeMap<u64, Slot>,
    sites: Sites,
    pools: Pools,
    largest: Largest,
    sums: Sums,
    peaks: Peaks,
    peaks_within: Peaks,
    anomalies: Anomalies,
    /// The block whose free was requested last. Its completion nearly always follows at once.
    last_freed: Slot,
    /// The steps left of [`WALK_STEPS_MAX`].
    walk_steps_left: u64,
}

impl BlockMap {
    /// An empty map: nothing reserved, nothing allocated.
    #[must_use]
    pub fn new(settings: &AllocatorSettings) -> Self {
        Self {
            rules: PlacementRules::new(settings),
            slab: Slab::default(),
            index: AddressIndex::default(),
            segments: BTreeMap::new(),
            loose: BTreeMap::new(),
            sites: Sites::default(),
            pools: Pools::default(),
            largest: Largest::default(),
            sums: Sums::default(),
            peaks: Peaks::default(),
            peaks_within: Peaks::default(),
            anomalies: Anomalies::default(),
            last_freed: NIL,
            walk_steps_left: WALK_STEPS_MAX,
        }
    }

    /// Applies one event. `birth` is the birth of the block that the event allocates, if it allocates one.
    #[inline]
    pub fn apply(&mut self, event: &Event, birth: Birth) {
        match event.action {
            Action::Alloc => self.alloc(event, birth),
            Action::FreeRequested => self.free_requested(event.addr),
            Action::FreeCompleted => self.free_completed(event.addr),
            Action::SegmentAlloc => self.segment_alloc(event),
            Action::SegmentFree => self.segment_free(event),
            Action::SegmentMap => self.segment_map(event),
            Action::SegmentUnmap => self.segment_unmap(event),
            // A failed request changes nothing: blocks that were flushed before it have events of their own.
            Action::Snapshot | Action::Oom => {}
            Action::Annotate => self.rename(event),
        }
    }

    /// The three levels that a timeline shows. O(1).
    #[inline]
    #[must_use]
    pub fn levels(&self) -> Levels {
        Levels {
            allocated_bytes: self.sums.allocated_bytes,
            active_bytes: self.sums.active_bytes,
            reserved_bytes: self.sums.reserved_bytes,
        }
    }

    /// Highest levels since the map was made. A [`restore`](Self::restore) can raise them, never lower them.
    #[must_use]
    pub fn peaks(&self) -> Peaks {
        self.peaks
    }

    /// Highest levels since [`reset_peaks_within`](Self::reset_peaks_within) was last called.
    #[must_use]
    pub fn peaks_within(&self) -> Peaks {
        self.peaks_within
    }

    /// Restarts the second set of peaks at the present levels.
    pub fn reset_peaks_within(&mut self) {
        self.peaks_within =
            Peaks { allocated_bytes: self.sums.allocated_bytes, reserved_bytes: self.sums.reserved_bytes };
    }

    /// The contradictions that were corrected so far. The counts survive a [`restore`](Self::restore).
    #[must_use]
    pub fn anomalies(&self) -> Anomalies {
        self.anomalies
    }

    #[inline]
    fn raise_allocated_peaks(&mut self) {
        let allocated = self.sums.allocated_bytes;
        self.peaks.allocated_bytes = self.peaks.allocated_bytes.max(allocated);
        self.peaks_within.allocated_bytes = self.peaks_within.allocated_bytes.max(allocated);
    }

    fn raise_reserved_peaks(&mut self) {
        let reserved = self.sums.reserved_bytes;
        self.peaks.reserved_bytes = self.peaks.reserved_bytes.max(reserved);
        self.peaks_within.reserved_bytes = self.peaks_within.reserved_bytes.max(reserved);
    }

    /// The address of the segment that contains `addr`.
    fn segment_of(&self, addr: u64) -> Option<u64> {
        let (&start, segment) = self.segments.range(..=addr).next_back()?;
        // `addr - start` cannot underflow, and the end of a segment never exceeds 2^64 - 1.
        (addr - start < segment.size).then_some(start)
    }

    /// The block of a segment that contains `addr`. O(1) if the block starts there. Otherwise the segment is walked,
    /// which happens only after contradictions.
    fn block_at(&mut self, segment: u64, addr: u64) -> Slot {
        if let Some(slot) = self.index.find(&self.slab, addr) {
            return slot;
        }
        let first = self.segments[&segment].first;
        let (mut slot, mut steps) = (first, 0);
        while self.slab.get(slot).end() <= addr {
            slot = self.slab.get(slot).next;
            steps += 1;
            if steps > WALK_STEPS_FREE && self.walk_steps_left == 0 {
                self.anomalies.contradictions += 1;
                return self.forget_blocks(first);
            }
            self.walk_steps_left = self.walk_steps_left.saturating_sub(1);
        }
        slot
    }

    /// Inserts a block behind `prev` into the slab and the index. If `prev` is `NIL`, the block has no neighbours.
    fn link_after(&mut self, prev: Slot, mut block: slab::Block) -> Slot {
        block.prev = prev;
        block.next = if prev == NIL { NIL } else { self.slab.get(prev).next };
        let next = block.next;
        let slot = self.slab.insert(block);
        if prev != NIL {
            self.slab.get_mut(prev).next = slot;
        }
        if next != NIL {
            self.slab.get_mut(next).prev = slot;
        }
        self.index.insert(block.addr, slot);
        slot
    }
}
