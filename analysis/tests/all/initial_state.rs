//! Compares the derived state before a trace with a simulated allocator that knows the true state. Replaying the trace
//! from the derived state ends exactly where the recording ended, and figures that are called exact are exact.

use crate::support;

use memctl_analysis::{Anomalies, Birth, BlockMap, InitialState, initial_state};
use memctl_model::{
    Action, AllocatorSettings, BlockState, BlockUse, DeviceIndex, Event, KeyframeReason, SegmentKind, SegmentState,
    StackId,
};
use proptest::prelude::*;
use support::allocator::Recorded;
use support::hostile::{hostile_event, hostile_keyframe};
use support::keyframe_of;
use support::requests::{recording, requests, settings};

/// The segments without the facts that can be unknown: the stack of a block that the trace only frees, and the kind and
/// the pool of a segment on whose pages nothing was ever placed.
fn placed(segments: &[SegmentState]) -> Vec<SegmentState> {
    let mut segments = segments.to_vec();
    for segment in &mut segments {
        (segment.kind, segment.pool) = Default::default();
        for block in &mut segment.blocks {
            block.stack = StackId::NONE;
        }
    }
    segments
}

fn state_before(recorded: &[Recorded], cut: usize) -> Vec<SegmentState> {
    cut.checked_sub(1).map_or_else(Vec::new, |last| recorded[last].segments.clone())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn replaying_the_trace_ends_in_the_snapshot(
        settings in settings(),
        requests in requests(300),
        cut in any::<usize>(),
        names_pools in any::<bool>(),
    ) {
        let recorded = recording(&settings, &requests, names_pools);
        let cut = cut % (recorded.len() + 1);
        let end = state_before(&recorded, recorded.len());
        let trace = recorded[cut..].iter().map(|r| r.event);
        let start = initial_state(&settings, DeviceIndex(0), &end, trace.clone());
        prop_assert_eq!((start.unknown_frees, start.contradictions), (0, 0));

        let mut map = BlockMap::new(&settings);
        map.restore(&start.keyframe);
        let true_start = state_before(&recorded, cut);
        if start.assumed_sizes == 0 {
            prop_assert_eq!(placed(&keyframe_of(&map).segments), placed(&true_start), "before the trace");
        }
        for event in trace {
            map.apply(&event, Birth::default());
        }
        prop_assert_eq!(map.anomalies(), Anomalies::default());
        let replayed = keyframe_of(&map);
        prop_assert_eq!(placed(&replayed.segments), placed(&end), "after the trace");
        if names_pools {
            // Every block that is live at the end was allocated in the trace or is in the snapshot, so all stacks are
            // known.
            prop_assert_eq!(replayed.segments, end);
        }
    }

    /// A trace that does not belong to the snapshot never causes a failure, and the result is a usable keyframe.
    #[test]
    fn a_foreign_trace_is_survived(
        settings in settings(),
        requests_of_end in requests(80),
        requests_of_trace in requests(80),
    ) {
        let end = recording(&settings, &requests_of_end, true).pop().map(|last| last.segments).unwrap_or_default();
        let trace: Vec<Event> = recording(&settings, &requests_of_trace, true).iter().map(|r| r.event).collect();
        let start = initial_state(&settings, DeviceIndex(0), &end, trace.iter().copied());
        let mut map = BlockMap::new(&settings);
        map.restore(&start.keyframe);
        prop_assert_eq!(keyframe_of(&map).segments, start.keyframe.segments);
        for event in &trace {
            map.apply(event, Birth::default());
        }
        support::assert_consistent(&map);
    }

    #[test]
    fn a_hostile_trace_and_snapshot_are_survived(
        settings in settings(),
        end in hostile_keyframe(),
        trace in prop::collection::vec(hostile_event(), 0..200),
    ) {
        let start = initial_state(&settings, DeviceIndex(0), &end.segments, trace.iter().copied());
        let mut map = BlockMap::new(&settings);
        map.restore(&start.keyframe);
        prop_assert_eq!(map.anomalies(), Anomalies::default(), "the conclusion contradicts nothing");
        prop_assert_eq!(keyframe_of(&map).segments, start.keyframe.segments);
    }
}

#[test]
fn an_empty_trace_begins_as_it_ends() {
    let start = initial_state(&AllocatorSettings::default(), DeviceIndex(3), &[], std::iter::empty());
    assert_eq!((start.keyframe.device, start.keyframe.segments.len()), (DeviceIndex(3), 0));
}

const MIB: u64 = 1 << 20;
const BASE: u64 = 0x7f00_0000_0000;

fn event(action: Action, offset: u64, size: u64) -> Event {
    Event { addr: BASE + offset, size, action, stack: StackId(9), ..Event::default() }
}

/// A segment at `BASE` that is free at the end.
fn free_at_end(size: u64) -> SegmentState {
    let block = BlockState { addr: BASE, size, ..BlockState::default() };
    SegmentState { addr: BASE, size, blocks: vec![block], ..SegmentState::default() }
}

fn concluded(end: &[SegmentState], trace: &[Event]) -> InitialState {
    initial_state(&AllocatorSettings::default(), DeviceIndex(0), end, trace.iter().copied())
}

/// Offset, size and use of the blocks of the first segment.
fn blocks(start: &InitialState) -> Vec<(u64, u64, BlockUse)> {
    start.keyframe.segments[0].blocks.iter().map(|b| (b.addr - BASE, b.size, b.usage)).collect()
}

fn free(offset: u64, size: u64) -> [Event; 2] {
    [event(Action::FreeRequested, offset, size), event(Action::FreeCompleted, offset, size)]
}

#[test]
fn an_allocation_behind_a_block_shows_where_it_ends() {
    let (half, end) = (MIB / 2, [free_at_end(20 * MIB)]);
    let mut trace = vec![event(Action::Alloc, 2 * MIB + half, 3 * MIB)];
    trace.extend(free(0, 2 * MIB));
    trace.extend(free(2 * MIB + half, 3 * MIB));
    let start = concluded(&end, &trace);
    let expected = [(0, 2 * MIB + half, BlockUse::Allocated), (2 * MIB + half, 17 * MIB + half, BlockUse::Inactive)];
    assert_eq!((blocks(&start), start.assumed_sizes), (expected.to_vec(), 0));
    // Without this allocation, the block's size is assumed to be the rounded request. The same holds if the allocation
    // is so far away that the gap before it cannot belong to the block.
    for trace in [&trace[1..3], &[event(Action::Alloc, 9 * MIB, 2 * MIB), trace[1], trace[2]]] {
        let start = concluded(&end, trace);
        assert_eq!((blocks(&start)[0], start.assumed_sizes), ((0, 2 * MIB, BlockUse::Allocated), 1));
    }
}

#[test]
fn a_gap_too_small_to_be_free_belongs_to_the_block_below() {
    let mut trace = free(0, 2 * MIB).to_vec();
    trace.extend(free(3 * MIB, 16 * MIB + 1));
    let start = concluded(&[free_at_end(20 * MIB)], &trace);
    let expected = [(0, 3 * MIB, BlockUse::Allocated), (3 * MIB, 17 * MIB, BlockUse::Allocated)];
    assert_eq!((blocks(&start), start.assumed_sizes), (expected.to_vec(), 0));
    assert!(start.keyframe.segments[0].blocks.iter().all(|block| block.stack == StackId::NONE));
}

#[test]
fn blocks_that_live_at_the_end_keep_their_size_and_stack() {
    let mut end = free_at_end(20 * MIB);
    let alive = BlockState { size: 20 * MIB, requested: 19 * MIB + 1, stack: StackId(4), ..end.blocks[0] };
    end.blocks = vec![BlockState { usage: BlockUse::PendingFree, ..alive }];
    let trace = [event(Action::FreeRequested, 0, 19 * MIB + 1)];
    let start = concluded(&[end], &trace);
    assert_eq!(start.keyframe.segments[0].blocks, [BlockState { usage: BlockUse::Allocated, ..alive }]);
}

#[test]
fn a_completion_alone_ends_a_block_that_was_pending() {
    let start = concluded(&[free_at_end(20 * MIB)], &[event(Action::FreeCompleted, 0, 20 * MIB)]);
    assert_eq!(blocks(&start), [(0, 20 * MIB, BlockUse::PendingFree)]);
    assert_eq!(start.contradictions, 0);
}

#[test]
fn frees_outside_every_segment_of_their_time_are_unknown() {
    let mut trace = free(0, 2 * MIB).to_vec();
    trace.push(event(Action::SegmentAlloc, 0, 20 * MIB));
    trace.extend(free(40 * MIB, 512));
    let start = concluded(&[free_at_end(20 * MIB)], &trace);
    assert_eq!((start.keyframe.segments.len(), start.unknown_frees, start.contradictions), (0, 2, 0));
}

#[test]
fn segments_freed_in_the_trace_were_there_before() {
    let mut trace = free(0, 2 * MIB).to_vec();
    trace.push(Event { time_ns: 7, ..event(Action::SegmentFree, 0, 20 * MIB) });
    trace[0].time_ns = 5;
    let start = concluded(&[], &trace);
    assert_eq!(blocks(&start), [(0, 2 * MIB, BlockUse::Allocated), (2 * MIB, 18 * MIB, BlockUse::Inactive)]);
    assert_eq!((start.keyframe.time_ns, start.keyframe.reason), (5, KeyframeReason::Start));
}

/// Ten small pages that are unmapped together look like one large page; the events on them show the difference.
#[test]
fn pages_unmapped_together_are_known_by_what_was_on_them() {
    let unmapped = event(Action::SegmentUnmap, 0, 20 * MIB);
    let kind = |trace: &[Event]| concluded(&[], trace).keyframe.segments[0].kind;
    assert_eq!(kind(&[unmapped]), SegmentKind::Large);
    assert_eq!(kind(&[event(Action::SegmentMap, 18 * MIB, 2 * MIB), unmapped]), SegmentKind::Small);
    let [requested, completed] = free(512, 512);
    assert_eq!(kind(&[requested, completed, unmapped]), SegmentKind::Small);
    assert_eq!(kind(&[event(Action::SegmentUnmap, 0, 6 * MIB)]), SegmentKind::Small);
    let large = event(Action::SegmentUnmap, 0, 42 * MIB);
    let [requested, completed] = free(0, 3 * MIB);
    assert_eq!(kind(&[requested, completed, large]), SegmentKind::Large);
}
