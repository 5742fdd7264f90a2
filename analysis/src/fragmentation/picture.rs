//! One moment of one device's allocator: reserved, live and free bytes, and the blocks that keep free bytes from being
//! released.
//!
//! Guarantees, for every keyframe whose blocks tile their segments: `reserved = active in segments + free`, `free =
//! empty + stranded`, and the pins' stranded bytes (with `other_pins_bytes`) sum to `stranded`. Lists are bounded.
//! Blocks without a stack form a pin without a stack.

use std::collections::{BTreeMap, BTreeSet};

use memctl_model::allocator::{SEGMENT_STEP_BYTES, pool_of};
use memctl_model::{BlockState, BlockUse, Keyframe, Phase, PoolId, SegmentKind, SegmentState, StackId};

use super::space::FreeSpace;
use crate::block_map::FreeBlock;

/// Maximum number of pins, those that strand most first. Longer lists are not useful to a reader.
pub const PINS_MAX: usize = 20;
/// Maximum number of free lists, those with most free bytes first. A process has only a handful of streams and pools.
pub const LISTS_MAX: usize = 64;

/// The free blocks that one stream can use for one kind of request in one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeList {
    /// Stream.
    pub stream: u64,
    /// Pool.
    pub pool: PoolId,
    /// Small or large requests.
    pub kind: SegmentKind,
    /// Bytes of its segments.
    pub reserved_bytes: u64,
    /// Its segments.
    pub segments: u64,
    /// Its free blocks.
    pub blocks: u64,
    /// Its free blocks by size.
    pub space: FreeSpace,
}

/// Live blocks of one site beside free memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The stack that allocated them.
    pub stack: StackId,
    /// Blocks in partly used segments.
    pub blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// Number of segments that contain them.
    pub segments: u64,
    /// Free bytes of these segments, shared evenly by the segments' live blocks.
    pub stranded_bytes: u64,
    /// Earliest birth: epoch.
    pub birth_epoch: u32,
    /// Earliest birth: step.
    pub birth_step: u64,
    /// Phase of the earliest birth.
    pub birth_phase: Option<Phase>,
}

/// A moment of one device's allocator; see the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    /// Reserved from the driver.
    pub reserved_bytes: u64,
    /// Allocated, or freed and waiting for another stream; block sizes, including blocks outside segments.
    pub active_bytes: u64,
    /// Allocated; block sizes, including blocks outside segments.
    pub allocated_bytes: u64,
    /// Requested bytes of the active blocks.
    pub requested_bytes: u64,
    /// Active blocks outside every known segment.
    pub loose_bytes: u64,
    /// Free in segments.
    pub free_bytes: u64,
    /// Free bytes in segments without a live block. The allocator releases these by itself before a request fails.
    pub empty_bytes: u64,
    /// Free bytes in segments with live blocks.
    pub stranded_bytes: u64,
    /// Stranded bytes of holes of less than 2 MiB behind the only block of a segment that was reserved for this block.
    /// No request for large blocks fits into them.
    pub rounded_away_bytes: u64,
    /// Whole pages within the holes: expandable segments could have unmapped them from beside the live blocks.
    pub stranded_page_bytes: u64,
    /// The largest hole beside live blocks.
    pub largest_hole_bytes: u64,
    /// Holes beside live blocks.
    pub holes: u64,
    /// The largest free block.
    pub largest_free_bytes: u64,
    /// Number of segments.
    pub segments: u64,
    /// Number of segments with live and free bytes.
    pub partly_used_segments: u64,
    /// Free lists, most free bytes first.
    pub lists: Vec<FreeList>,
    /// Pins, most stranded bytes first.
    pub pins: Vec<Pin>,
    /// Bytes that blocks of unlisted sites strand.
    pub other_pins_bytes: u64,
}

/// Running sums of a pin.
#[derive(Default)]
struct Pinning {
    pin: Option<Pin>,
    last_segment: Option<u64>,
}

impl Picture {
    /// Derives the picture of a state. `page_bytes` is the size of a page of an expandable large segment
    /// (`large_segment_size`).
    #[must_use]
    pub fn of(keyframe: &Keyframe, page_bytes: u64) -> Self {
        let mut picture = Self::default();
        let mut lists: BTreeMap<(u64, PoolId, bool), (FreeList, Vec<FreeBlock>)> = BTreeMap::new();
        let mut pins: BTreeMap<StackId, Pinning> = BTreeMap::new();
        for block in &keyframe.loose {
            picture.add_live(block);
            picture.loose_bytes = picture.loose_bytes.saturating_add(block.size);
        }
        for segment in &keyframe.segments {
            picture.add_segment(segment, page_bytes, &mut pins);
            let small = segment.kind == SegmentKind::Small;
            let (list, free) = lists.entry((segment.stream, segment.pool, small)).or_insert_with(|| {
                let &SegmentState { stream, pool, kind, .. } = segment;
                let space = FreeSpace::default();
                (FreeList { stream, pool, kind, reserved_bytes: 0, segments: 0, blocks: 0, space }, Vec::new())
            });
            list.reserved_bytes = list.reserved_bytes.saturating_add(segment.size);
            list.segments += 1;
            free.extend(free_blocks(segment));
        }
        picture.lists = lists
            .into_values()
            .map(|(list, free)| FreeList { blocks: free.len() as u64, space: FreeSpace::of(free), ..list })
            .collect();
        picture.lists.sort_by_key(|list| std::cmp::Reverse(list.space.free_bytes()));
        picture.lists.truncate(LISTS_MAX);
        picture.rank_pins(pins);
        picture
    }

    fn add_live(&mut self, block: &BlockState) {
        // The sums saturate because a keyframe may come from the wire.
        self.active_bytes = self.active_bytes.saturating_add(block.size);
        self.requested_bytes = self.requested_bytes.saturating_add(block.requested);
        if block.usage == BlockUse::Allocated {
            self.allocated_bytes = self.allocated_bytes.saturating_add(block.size);
        }
    }

    fn add_segment(&mut self, segment: &SegmentState, page_bytes: u64, pins: &mut BTreeMap<StackId, Pinning>) {
        self.reserved_bytes = self.reserved_bytes.saturating_add(segment.size);
        self.segments += 1;
        let live: Vec<&BlockState> = segment.blocks.iter().filter(|block| block.usage != BlockUse::Inactive).collect();
        live.iter().for_each(|block| self.add_live(block));
        let live_bytes = live.iter().fold(0_u64, |sum, block| sum.saturating_add(block.size));
        let free = segment.size.saturating_sub(live_bytes);
        self.free_bytes = self.free_bytes.saturating_add(free);
        let largest = free_blocks(segment).map(|block| block.size).max().unwrap_or(0);
        self.largest_free_bytes = self.largest_free_bytes.max(largest);
        if live.is_empty() {
            self.empty_bytes = self.empty_bytes.saturating_add(free);
            return;
        }
        if free == 0 {
            return;
        }
        self.partly_used_segments += 1;
        self.stranded_bytes = self.stranded_bytes.saturating_add(free);
        self.largest_hole_bytes = self.largest_hole_bytes.max(largest);
        if live.len() == 1 && segment.kind == SegmentKind::Large && free < SEGMENT_STEP_BYTES {
            self.rounded_away_bytes = self.rounded_away_bytes.saturating_add(free);
        }
        for hole in free_blocks(segment) {
            self.holes += 1;
            // A hole that begins or ends inside a page has one whole page fewer than its size suggests.
            let is_cut = |pages: &u64| pages * page_bytes != hole.size || !hole.addr.is_multiple_of(page_bytes);
            let pages =
                hole.size.checked_div(page_bytes).map_or(0, |pages| pages.saturating_sub(u64::from(is_cut(&pages))));
            self.stranded_page_bytes = self.stranded_page_bytes.saturating_add(pages * page_bytes);
        }
        pin(segment.addr, &live, free, pins);
    }

    fn rank_pins(&mut self, pins: BTreeMap<StackId, Pinning>) {
        let mut pins: Vec<Pin> = pins.into_values().filter_map(|pinning| pinning.pin).collect();
        pins.sort_by_key(|pin| (std::cmp::Reverse(pin.stranded_bytes), pin.stack));
        let others = pins.split_off(pins.len().min(PINS_MAX));
        self.other_pins_bytes = others.iter().fold(0, |sum, pin| pin.stranded_bytes.saturating_add(sum));
        self.pins = pins;
    }

    /// The free blocks that a request of `rounded` bytes on a stream could use.
    #[must_use]
    pub fn list_for(&self, rounded: u64, stream: u64, pool: PoolId) -> Option<&FreeList> {
        let kind = pool_of(rounded);
        self.lists.iter().find(|list| list.stream == stream && list.pool == pool && list.kind == kind)
    }

    /// The largest free block that a request on this stream could use.
    #[must_use]
    pub fn largest_for(&self, rounded: u64, stream: u64, pool: PoolId) -> u64 {
        self.list_for(rounded, stream, pool).map_or(0, |list| list.space.largest_free_bytes())
    }

    /// Bytes of live blocks beyond the requested bytes: rounding, and rests that may not be split off.
    #[must_use]
    pub fn unsplit_bytes(&self) -> u64 {
        self.active_bytes.saturating_sub(self.requested_bytes)
    }

    /// Distinct streams that own segments.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.lists.iter().map(|list| list.stream).collect::<BTreeSet<_>>().len()
    }

    /// The curve of all lists together: for each request size, the share of the free bytes that cannot serve it.
    #[must_use]
    pub fn unusable_free_curve(&self) -> Vec<(u64, f64)> {
        let free = self.lists.iter().fold(0_u64, |sum, list| sum.saturating_add(list.space.free_bytes()));
        let largest = self.lists.iter().map(|list| list.space.largest_free_bytes()).max().unwrap_or(0);
        if free == 0 {
            return Vec::new();
        }
        let mut curve = Vec::new();
        for exponent in 9..64 {
            let size = 1_u64 << exponent;
            let serving = self.lists.iter().fold(0_u64, |sum, list| sum.saturating_add(list.space.serving(size).1));
            curve.push((size, free.saturating_sub(serving) as f64 / free as f64));
            if size > largest {
                break;
            }
        }
        curve
    }
}

fn free_blocks(segment: &SegmentState) -> impl Iterator<Item = FreeBlock> {
    let &SegmentState { addr: start, size, stream, pool, kind, expandable, .. } = segment;
    // A segment without any block is shorthand for a free segment.
    let whole = segment.blocks.is_empty().then_some((start, size));
    let free = segment.blocks.iter().filter(|block| block.usage == BlockUse::Inactive);
    let free = free.map(|block| (block.addr, block.size)).chain(whole);
    free.map(move |(addr, size)| FreeBlock { addr, size, stream, pool, kind, expandable })
}

/// Distributes a segment's free bytes evenly over its live blocks.
fn pin(segment: u64, live: &[&BlockState], free: u64, pins: &mut BTreeMap<StackId, Pinning>) {
    let (each, mut rest) = (free / live.len() as u64, free % live.len() as u64);
    for block in live {
        let share = each + u64::from(rest > 0);
        rest = rest.saturating_sub(1);
        let pinning = pins.entry(block.stack).or_default();
        let pin = pinning.pin.get_or_insert(Pin {
            stack: block.stack,
            blocks: 0,
            live_bytes: 0,
            segments: 0,
            stranded_bytes: 0,
            birth_epoch: block.birth_epoch,
            birth_step: block.birth_step,
            birth_phase: block.birth_phase,
        });
        pin.blocks += 1;
        pin.live_bytes = pin.live_bytes.saturating_add(block.size);
        pin.stranded_bytes = pin.stranded_bytes.saturating_add(share);
        if pinning.last_segment != Some(segment) {
            pinning.last_segment = Some(segment);
            pin.segments += 1;
        }
        if (block.birth_epoch, block.birth_step) < (pin.birth_epoch, pin.birth_step) {
            (pin.birth_epoch, pin.birth_step, pin.birth_phase) =
                (block.birth_epoch, block.birth_step, block.birth_phase);
        }
    }
}
