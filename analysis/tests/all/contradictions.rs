//! Tests of the block map's table of contradictions, row by row, and of its behaviour without segment events. Each
//! impossible event leaves the state that the table describes, and is counted once.

use crate::support;

use memctl_analysis::{Anomalies, Birth, BlockMap};
use memctl_model::{Action, AllocatorSettings, BlockUse, Event, StackId};
use support::{assert_consistent, keyframe_of};

const MIB: u64 = 1 << 20;
const SMALL: u64 = 0x7f00_0000_0000;
const LARGE: u64 = 0x7f10_0000_0000;

struct Fed(BlockMap);

impl Fed {
    /// A small segment of 2 MiB and a large one of 20 MiB, both free.
    fn new() -> Self {
        let mut fed = Self(BlockMap::new(&AllocatorSettings::default()));
        fed.say(Action::SegmentAlloc, SMALL, 2 * MIB).say(Action::SegmentAlloc, LARGE, 20 * MIB);
        fed
    }

    fn say(&mut self, action: Action, addr: u64, size: u64) -> &mut Self {
        let event = Event { addr, size, action, stack: StackId(1), ..Event::default() };
        self.0.apply(&event, Birth::default());
        assert_consistent(&self.0);
        self
    }

    fn alloc(&mut self, addr: u64, size: u64) -> &mut Self {
        self.say(Action::Alloc, addr, size)
    }

    fn free(&mut self, addr: u64) -> &mut Self {
        self.say(Action::FreeRequested, addr, 0).say(Action::FreeCompleted, addr, 0)
    }

    /// Offset and size of every block of the segment at `addr`; live ones are positive.
    fn blocks(&self, addr: u64) -> Vec<(u64, i64)> {
        let keyframe = keyframe_of(&self.0);
        let segment = keyframe.segments.iter().find(|segment| segment.addr == addr);
        let sign = |usage| if usage == BlockUse::Inactive { -1 } else { 1 };
        segment.map_or_else(Vec::new, |segment| {
            segment.blocks.iter().map(|b| (b.addr - addr, b.size as i64 * sign(b.usage))).collect()
        })
    }

    fn contradictions(&self) -> u64 {
        let Anomalies { unknown_frees, unknown_completions, unknown_segments, contradictions } = self.0.anomalies();
        assert_eq!((unknown_frees, unknown_completions, unknown_segments), (0, 0, 0));
        contradictions
    }
}

#[test]
fn an_allocation_where_a_block_lives_replaces_it() {
    let mut fed = Fed::new();
    fed.alloc(SMALL, 512).alloc(SMALL + 512, 512).alloc(SMALL, 512);
    assert_eq!(fed.blocks(SMALL), [(0, 512), (512, 512), (1024, 1024 - 2 * MIB as i64)]);
    assert_eq!(fed.contradictions(), 1);
    assert_eq!(fed.0.counters().allocated_blocks, 2);
}

#[test]
fn an_allocation_behind_the_requested_bytes_shortens_the_block() {
    let mut fed = Fed::new();
    // 19.5 MiB of 20 are not split, so the block holds all 20 MiB until an event shows otherwise.
    fed.alloc(LARGE, 19 * MIB + MIB / 2);
    assert_eq!(fed.0.counters().allocated_bytes, 20 * MIB);
    fed.alloc(LARGE + 19 * MIB + MIB / 2, 512);
    assert_eq!(fed.blocks(LARGE), [(0, 39 * MIB as i64 / 2), (39 * MIB / 2, MIB as i64 / 2)]);
    assert_eq!(fed.contradictions(), 1);
}

#[test]
fn an_allocation_inside_the_requested_bytes_ends_the_block() {
    let mut fed = Fed::new();
    fed.alloc(SMALL, 4096).alloc(SMALL + 1024, 512);
    assert_eq!(fed.blocks(SMALL), [(0, -1024), (1024, 512), (1536, 1536 - 2 * MIB as i64)]);
    assert_eq!(fed.contradictions(), 1);
    assert_eq!(fed.0.counters().requested_bytes, 512);
}

#[test]
fn an_allocation_inside_a_free_block_leaves_the_part_below_free() {
    let mut fed = Fed::new();
    fed.alloc(SMALL + 8192, 512).alloc(LARGE + 4 * MIB, 2 * MIB);
    assert_eq!(fed.blocks(SMALL)[..2], [(0, -8192), (8192, 512)]);
    assert_eq!(fed.blocks(LARGE), [(0, -4 * MIB as i64), (4 * MIB, 2 * MIB as i64), (6 * MIB, -14 * MIB as i64)]);
    assert_eq!(fed.contradictions(), 2);
}

#[test]
fn up_to_a_mebibyte_below_it_belongs_to_the_large_block_there() {
    let mut fed = Fed::new();
    fed.alloc(LARGE, 2 * MIB).alloc(LARGE + 3 * MIB, 2 * MIB);
    let rest = (5 * MIB, -15 * MIB as i64);
    assert_eq!(fed.blocks(LARGE), [(0, 3 * MIB as i64), (3 * MIB, 2 * MIB as i64), rest]);
    assert_eq!(fed.0.counters().allocated_bytes, 5 * MIB);
    assert_eq!(fed.0.peaks().allocated_bytes, 5 * MIB);
    assert_eq!(fed.contradictions(), 1);
}

#[test]
fn an_allocation_larger_than_its_room_ends_what_is_in_its_way() {
    let mut fed = Fed::new();
    fed.alloc(SMALL, 512).alloc(SMALL + 512, 512).alloc(SMALL + 1024, 512).free(SMALL).alloc(SMALL, 1024);
    assert_eq!(fed.blocks(SMALL)[..2], [(0, 1024), (1024, 512)]);
    assert_eq!(fed.contradictions(), 1);
    fed.free(SMALL).free(SMALL + 1024).alloc(SMALL, 4 * MIB);
    assert_eq!(fed.blocks(SMALL), [(0, 2 * MIB as i64)], "cut at the segment's end");
    assert_eq!(fed.0.counters().requested_bytes, 2 * MIB);
    assert_eq!(fed.contradictions(), 2);
}

#[test]
fn a_completion_without_its_request_does_both() {
    let mut fed = Fed::new();
    fed.alloc(SMALL, 512).say(Action::FreeCompleted, SMALL, 512);
    assert_eq!(fed.0.counters().active_bytes, 0);
    assert_eq!(fed.blocks(SMALL), [(0, -2 * MIB as i64)]);
    assert_eq!(fed.contradictions(), 1);
}

#[test]
fn a_second_request_changes_nothing() {
    let mut fed = Fed::new();
    fed.alloc(SMALL, 512).say(Action::FreeRequested, SMALL, 512).say(Action::FreeRequested, SMALL, 512);
    assert_eq!((fed.0.counters().allocated_bytes, fed.0.counters().active_bytes), (0, 512));
    assert_eq!(fed.contradictions(), 1);
}

#[test]
fn frees_of_what_does_not_live_are_counted_apart() {
    let mut fed = Fed::new();
    let before = keyframe_of(&fed.0);
    fed.free(SMALL).free(0x1234);
    assert_eq!(keyframe_of(&fed.0), before);
    let expected = Anomalies { unknown_frees: 2, unknown_completions: 2, ..Anomalies::default() };
    assert_eq!(fed.0.anomalies(), expected);
}

#[test]
fn a_segment_that_goes_takes_its_blocks_along() {
    let mut fed = Fed::new();
    fed.alloc(SMALL, 512).say(Action::SegmentFree, SMALL, 2 * MIB);
    assert_eq!((fed.0.counters().allocated_bytes, fed.0.counters().reserved_bytes), (0, 20 * MIB));
    assert_eq!(fed.contradictions(), 1);
    fed.say(Action::SegmentFree, LARGE + MIB, MIB);
    assert_eq!((fed.contradictions(), fed.0.counters().segments), (2, 1), "not a segment's address");
    fed.say(Action::SegmentFree, 0x5000, MIB);
    assert_eq!(fed.0.anomalies().unknown_segments, 1);
}

#[test]
fn unmapping_takes_what_lives_there_and_leaves_both_sides() {
    let mut fed = Fed(BlockMap::new(&AllocatorSettings { expandable_segments: true, ..Default::default() }));
    fed.say(Action::SegmentMap, LARGE, 20 * MIB).say(Action::SegmentMap, LARGE + 20 * MIB, 40 * MIB);
    assert_eq!(fed.0.counters().segments, 1, "mapped ranges that touch are one segment");
    fed.alloc(LARGE, 10 * MIB).alloc(LARGE + 10 * MIB, 20 * MIB).alloc(LARGE + 30 * MIB, 20 * MIB);
    assert_eq!(fed.contradictions(), 0);
    fed.say(Action::SegmentUnmap, LARGE + 20 * MIB, 20 * MIB);
    assert_eq!(fed.contradictions(), 1);
    assert_eq!(fed.blocks(LARGE), [(0, 10 * MIB as i64), (10 * MIB, -10 * MIB as i64)]);
    assert_eq!(fed.blocks(LARGE + 40 * MIB), [(0, -20 * MIB as i64)]);
    assert_eq!(fed.0.counters().reserved_bytes, 40 * MIB);
    fed.say(Action::SegmentMap, LARGE + 20 * MIB, 20 * MIB);
    assert_eq!(fed.blocks(LARGE), [(0, 10 * MIB as i64), (10 * MIB, -50 * MIB as i64)]);
    fed.say(Action::SegmentUnmap, LARGE + 40 * MIB, 40 * MIB);
    assert_eq!(fed.contradictions(), 2, "only half of it was mapped");
    assert_eq!(fed.0.counters().reserved_bytes, 40 * MIB);
    fed.say(Action::SegmentUnmap, SMALL, 2 * MIB);
    assert_eq!(fed.0.anomalies().unknown_segments, 1);
}

#[test]
fn a_segment_over_another_replaces_it() {
    let mut fed = Fed::new();
    fed.alloc(LARGE, 2 * MIB).say(Action::SegmentAlloc, LARGE + 10 * MIB, 20 * MIB);
    assert_eq!((fed.0.counters().allocated_bytes, fed.0.counters().reserved_bytes), (0, 22 * MIB));
    assert_eq!(fed.contradictions(), 1);
    fed.say(Action::SegmentMap, LARGE + 20 * MIB, 20 * MIB);
    assert_eq!((fed.0.counters().segments, fed.0.counters().reserved_bytes), (2, 22 * MIB));
    assert_eq!(fed.contradictions(), 2);
}

#[test]
fn ranges_that_cannot_be_change_nothing() {
    let mut fed = Fed::new();
    let before = keyframe_of(&fed.0);
    for action in [Action::SegmentAlloc, Action::SegmentMap, Action::SegmentUnmap] {
        fed.say(action, u64::MAX - 5, 4096).say(action, LARGE, 0);
    }
    fed.alloc(u64::MAX - 5, 4096).alloc(LARGE, u64::MAX).alloc(LARGE, (1 << 62) + 1);
    assert_eq!(keyframe_of(&fed.0), before);
    assert_eq!(fed.contradictions(), 9);
}

#[test]
fn without_segment_events_blocks_are_loose() {
    let mut fed = Fed(BlockMap::new(&AllocatorSettings::default()));
    fed.alloc(0x1000, 700).alloc(0x2000, 512);
    let counters = fed.0.counters();
    assert_eq!((counters.allocated_bytes, counters.requested_bytes, counters.reserved_bytes), (1536, 1212, 0));
    fed.say(Action::FreeRequested, 0x1000, 700);
    assert_eq!((fed.0.counters().allocated_bytes, fed.0.counters().active_bytes), (512, 1536));
    fed.say(Action::FreeCompleted, 0x1000, 700);
    assert_eq!((fed.contradictions(), keyframe_of(&fed.0).loose.len()), (0, 1));
    // Overlapping blocks: from below, from above, and at the same address.
    fed.alloc(0x1f00, 512).alloc(0x1e00, 512).alloc(0x1e00, 1024);
    assert_eq!((fed.contradictions(), fed.0.counters().allocated_bytes), (3, 1024));
    fed.say(Action::SegmentAlloc, 0, 2 * MIB);
    assert_eq!((fed.contradictions(), fed.0.counters().allocated_bytes), (4, 0));
}

#[test]
fn a_loose_block_ends_where_a_segment_begins() {
    let mut fed = Fed::new();
    fed.alloc(SMALL - 512, 4096);
    assert_eq!(fed.0.counters().allocated_bytes, 512);
    assert_eq!(fed.contradictions(), 1);
}

#[test]
fn a_lost_completion_is_made_up_for_by_the_next_allocation() {
    let mut fed = Fed::new();
    fed.alloc(SMALL, 512).say(Action::FreeRequested, SMALL, 512).alloc(SMALL, 1024);
    assert_eq!(fed.blocks(SMALL)[0], (0, 1024));
    assert_eq!((fed.contradictions(), fed.0.counters().active_bytes), (1, 1024));
}

#[test]
fn peaks_within_begin_again() {
    let mut fed = Fed::new();
    fed.alloc(LARGE, 4 * MIB).free(LARGE);
    fed.0.reset_peaks_within();
    assert_eq!(fed.0.peaks_within().allocated_bytes, 0);
    assert_eq!(fed.0.peaks_within().reserved_bytes, 22 * MIB);
    fed.alloc(LARGE, 2 * MIB);
    assert_eq!((fed.0.peaks_within().allocated_bytes, fed.0.peaks().allocated_bytes), (2 * MIB, 4 * MIB));
}

/// Each of these allocations would walk over all blocks before it: 32 Ki blocks, 1 Ki times.
#[test]
fn searching_has_an_end() {
    let mut map = BlockMap::new(&AllocatorSettings::default());
    let mut say = |action, addr, size| {
        map.apply(&Event { addr, size, action, ..Event::default() }, Birth::default());
        map.anomalies().contradictions
    };
    say(Action::SegmentAlloc, LARGE, 1 << 40);
    let blocks = 32 << 10;
    for block in 0..blocks {
        assert_eq!(say(Action::Alloc, LARGE + block * 1024, 1024), 0);
    }
    for block in (blocks - 1100..blocks).rev() {
        say(Action::Alloc, LARGE + block * 1024 + 512, 512);
    }
    assert_consistent(&map);
    let live = map.counters().allocated_blocks;
    assert!(live < 1100, "{live} blocks are left: the segment was searched to no end");
    assert_eq!(map.counters().reserved_bytes, 1 << 40);
}
