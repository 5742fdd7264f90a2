//! A simulated caching allocator, written from the rules and independent of the block map. It uses plain vectors and
//! recomputes every sum. It serves random requests, records the events that PyTorch would record, and knows the state
//! after each of them.

#![allow(dead_code, reason = "each test program uses its part of this module")]

pub mod allocator;
pub mod expandable;
pub mod hostile;
pub mod requests;
pub mod watched;

use std::collections::BTreeMap;

use memctl_analysis::BlockMap;
use memctl_model::{
    BlockUse, Counters, DeviceIndex, Keyframe, KeyframeReason, Phase, PoolId, SegmentState, SiteRow, StackId,
};

/// The keyframe of a map with fixed values for everything that does not come from the map.
pub fn keyframe_of(map: &BlockMap) -> Keyframe {
    map.keyframe(DeviceIndex(0), 0, 0, KeyframeReason::Periodic)
}

/// The counters of a list of segments.
pub fn counters_of(segments: &[SegmentState]) -> Counters {
    let mut counters = Counters { segments: segments.len() as u64, ..Counters::default() };
    for segment in segments {
        counters.reserved_bytes += segment.size;
        for block in &segment.blocks {
            match block.usage {
                BlockUse::Allocated => {
                    counters.allocated_bytes += block.size;
                    counters.allocated_blocks += 1;
                }
                BlockUse::PendingFree => {}
                BlockUse::Inactive => {
                    counters.largest_free_bytes = counters.largest_free_bytes.max(block.size);
                    if segment.blocks.len() > 1 && !segment.expandable {
                        counters.inactive_split_bytes += block.size;
                    }
                }
            }
            if block.usage != BlockUse::Inactive {
                counters.active_bytes += block.size;
                counters.requested_bytes += block.requested;
            }
        }
    }
    counters
}

/// The site rows of a state, by a scan of all blocks.
pub fn scanned_rows(keyframe: &Keyframe) -> Vec<SiteRow> {
    let mut rows: BTreeMap<(StackId, u32, Option<Phase>), (u64, u64)> = BTreeMap::new();
    let blocks = keyframe.segments.iter().flat_map(|segment| &segment.blocks).chain(&keyframe.loose);
    for block in blocks.filter(|block| block.usage == BlockUse::Allocated) {
        let row = rows.entry((block.stack, block.birth_epoch, block.birth_phase)).or_default();
        *row = (row.0 + 1, row.1 + block.size);
    }
    let rows = rows.into_iter().map(|((stack, birth_epoch, birth_phase), (blocks, bytes))| SiteRow {
        stack,
        birth_epoch,
        birth_phase,
        blocks,
        bytes,
    });
    rows.collect()
}

/// The invariants of every map, for any input.
pub fn assert_consistent(map: &BlockMap) {
    let keyframe = keyframe_of(map);
    let mut counters = counters_of(&keyframe.segments);
    let mut reached = 0;
    for segment in &keyframe.segments {
        assert!(segment.addr >= reached, "segments overlap");
        reached = segment.addr;
        for block in &segment.blocks {
            assert_eq!(block.addr, reached, "a gap or an overlap");
            assert!(block.size > 0 && block.requested <= block.size, "{block:x?}");
            reached += block.size;
        }
        assert_eq!(reached, segment.addr + segment.size, "the blocks do not fill the segment");
        let free = |block: &memctl_model::BlockState| block.usage == BlockUse::Inactive;
        assert!(!segment.blocks.windows(2).any(|pair| free(&pair[0]) && free(&pair[1])), "free neighbours");
    }
    let mut loose_end = 0;
    for block in &keyframe.loose {
        assert!(block.addr >= loose_end && block.usage != BlockUse::Inactive, "{block:x?}");
        loose_end = block.addr + block.size;
        let overlaps = |segment: &SegmentState| segment.addr < loose_end && block.addr < segment.addr + segment.size;
        assert!(!keyframe.segments.iter().any(overlaps), "a loose block inside a segment");
        counters.active_bytes += block.size;
        counters.requested_bytes += block.requested;
        if block.usage == BlockUse::Allocated {
            counters.allocated_bytes += block.size;
            counters.allocated_blocks += 1;
        }
    }
    assert_eq!(map.counters(), counters);
    let rows = map.site_rows();
    let key = |row: &memctl_model::SiteRow| (row.stack, row.birth_epoch, row.birth_phase);
    assert!(rows.windows(2).all(|pair| key(&pair[0]) < key(&pair[1])));
    assert_eq!(rows.iter().map(|row| row.bytes).sum::<u64>(), counters.allocated_bytes);
    assert_eq!(rows.iter().map(|row| row.blocks).sum::<u64>(), counters.allocated_blocks);
    assert_eq!(rows, scanned_rows(&keyframe));
    assert_eq!(map.site_count(), rows.len());
    let private: u64 =
        map.segments().filter(|segment| segment.pool != PoolId::DEFAULT).map(|segment| segment.size).sum();
    assert_eq!(map.private_pools().iter().map(|row| row.bytes).sum::<u64>(), private);
    let free: u64 = map.free_blocks().map(|block| block.size).sum();
    assert_eq!(free, map.segments().map(|segment| segment.free_bytes).sum::<u64>());
    for used in map.segments() {
        assert_eq!(used.allocated_bytes + used.pending_bytes + used.free_bytes, used.size);
    }
}
