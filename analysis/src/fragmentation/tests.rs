//! Tests of pictures, steps and judgements of small allocators, and of the sentences.

use memctl_model::{
    Action, AllocatorSettings, BlockState, BlockUse, DeviceIndex, Event, Frame, Keyframe, KeyframeReason, Levels,
    PoolId, SegmentKind, SegmentState, Severity, Stack, StackId,
};
use proptest::prelude::*;

use super::finding::finding;
use super::judge::{Facts, holders, judge};
use super::{FragmentationCause, Picture, RankFragmentation};
use crate::rules::PlacementRules;
use crate::steady::Steady;

const MIB: u64 = 1 << 20;

/// A segment on a stream. Sizes are in MiB, negative for free blocks; live blocks are allocated by `stack` in `step`.
fn segment(addr: u64, stream: u64, sizes: &[i64], stack: u32, step: u64) -> SegmentState {
    let mut at = addr;
    let blocks: Vec<BlockState> = sizes
        .iter()
        .map(|&size| {
            let (bytes, live) = (size.unsigned_abs() * MIB, size > 0);
            let block = BlockState {
                addr: at,
                size: bytes,
                requested: if live { bytes - 512 } else { 0 },
                usage: if live { BlockUse::Allocated } else { BlockUse::Inactive },
                stack: if live { StackId(stack) } else { StackId::NONE },
                birth_step: step,
                ..BlockState::default()
            };
            at += bytes;
            block
        })
        .collect();
    SegmentState { addr, size: at - addr, stream, kind: SegmentKind::Large, blocks, ..SegmentState::default() }
}

fn picture(segments: Vec<SegmentState>) -> Picture {
    let state = Keyframe {
        device: DeviceIndex(0),
        at_event: 0,
        time_ns: 0,
        reason: KeyframeReason::Periodic,
        segments,
        loose: Vec::new(),
    };
    Picture::of(&state, 20 * MIB)
}

/// Steps that each make one request on top of 100 MiB, with this much reserved (both in MiB).
fn steady(requests: &[u64], reserved: u64) -> Steady {
    let mut steady = Steady::new(PlacementRules::new(&AllocatorSettings::default()), true);
    let levels = |allocated: u64| Levels {
        allocated_bytes: allocated * MIB,
        active_bytes: allocated * MIB,
        reserved_bytes: reserved * MIB,
    };
    for (step, &request) in requests.iter().enumerate() {
        steady.step_begins(step as u64, levels(100));
        let event = Event { action: Action::Alloc, size: request * MIB, stack: StackId(1), ..Event::default() };
        steady.event(step as u64 + 1, &event, levels(100 + request));
        steady.step_ends(levels(100));
    }
    steady
}

fn resolve(stack: StackId) -> Stack {
    let frame = |function: &str, line| Frame { function: function.into(), file: "/home/me/train.py".into(), line };
    let frames = match stack.0 {
        1 => vec![frame("forward", 12)],
        2 => vec![frame("remember", 57)],
        _ => Vec::new(),
    };
    Stack { frames }
}

fn judged(rank: u32, picture: &Picture, steady: &Steady, room_bytes: Option<u64>) -> RankFragmentation {
    judged_below(rank, picture, steady, room_bytes, None)
}

fn judged_below(
    rank: u32,
    picture: &Picture,
    steady: &Steady,
    room_bytes: Option<u64>,
    peak_bytes: Option<u64>,
) -> RankFragmentation {
    let settings = AllocatorSettings::default();
    let facts = Facts {
        rank,
        device: 0,
        picture,
        step: Some(9),
        epoch: Some(1),
        steady,
        peak_bytes,
        settings: &settings,
        room_bytes,
        failed: None,
    };
    judge(&facts, &resolve)
}

const VARYING: [u64; 8] = [300, 100, 400, 200, 350, 120, 380, 90];

#[test]
fn sizes_that_go_up_and_down_are_the_cause_and_sizes_that_grow_are_not() {
    let idle = picture(vec![segment(1 << 40, 0, &[100], 2, 0), segment(2 << 40, 0, &[-2000], 0, 0)]);
    let report = judged(0, &idle, &steady(&VARYING, 2100), None);
    assert_eq!(
        (report.cause, report.severity),
        (Some((FragmentationCause::VaryingSizes, 1600 * MIB)), Some(Severity::Info))
    );
    assert_eq!((report.typical_bytes, report.highest_bytes), (Some(300 * MIB), 500 * MIB));
    // The same sizes in ascending order, as in a curriculum.
    let mut grown = VARYING;
    grown.sort_unstable();
    assert_eq!(judged(0, &idle, &steady(&grown, 2100), None).severity, None);
    // Two alternating sizes are not variety, however different they are.
    assert_eq!(judged(0, &idle, &steady(&[300, 90, 300, 90, 300, 90], 2100), None).severity, None);
    // The idle memory is smaller than the largest request, so it could not serve it even in one piece.
    let little = picture(vec![segment(1 << 40, 0, &[100], 2, 0), segment(2 << 40, 0, &[-700], 0, 0)]);
    assert_eq!(judged(0, &little, &steady(&VARYING, 800), None).severity, None);
}

#[test]
fn a_peak_that_the_stretch_did_not_see_is_what_the_job_needs() {
    let idle = picture(vec![segment(1 << 40, 0, &[100], 2, 0), segment(2 << 40, 0, &[-2000], 0, 0)]);
    let report = judged_below(0, &idle, &steady(&VARYING, 2100), None, Some(900 * MIB));
    assert_eq!((report.cause, report.highest_bytes), (Some((FragmentationCause::VaryingSizes, 1200 * MIB)), 900 * MIB));
    assert!(finding(&[report], 1).unwrap().title.contains("and at most 900 MiB"));
    // Reserved memory of 103 % of the peak is not waste, regardless of the layout.
    assert_eq!(judged_below(0, &idle, &steady(&VARYING, 2100), None, Some(2040 * MIB)).severity, None);
    let segments: Vec<SegmentState> = (1..11).map(|at| segment(at << 40, 0, &[2, -98], 2, at.min(3))).collect();
    let pinned = picture(segments);
    assert_eq!(judged_below(0, &pinned, &steady(&[150; 8], 1000), None, Some(970 * MIB)).severity, None);
}

#[test]
fn a_cache_out_of_all_proportion_is_told_even_where_nothing_explains_it() {
    let idle = picture(vec![segment(1 << 40, 0, &[100], 2, 0), segment(2 << 40, 0, &[-7300], 0, 0)]);
    let report = judged_below(0, &idle, &steady(&[150; 8], 7400), None, Some(2200 * MIB));
    assert_eq!(
        (report.cause, report.severity),
        (Some((FragmentationCause::Outgrown, 5200 * MIB)), Some(Severity::Info))
    );
    assert_eq!(
        finding(&[report], 1).unwrap().title,
        "Rank 0 holds 7.23 GiB although never more than 2.15 GiB were allocated at a time: 5.08 GiB of cache are idle"
    );
}

#[test]
fn without_steps_the_fullest_moment_is_the_fullest_of_all() {
    let mut steady = Steady::new(PlacementRules::new(&AllocatorSettings::default()), false);
    for (number, allocated_bytes) in [5, 900, 0].into_iter().enumerate() {
        let levels = Levels { allocated_bytes, active_bytes: allocated_bytes, reserved_bytes: 900 };
        steady.event(number as u64 + 1, &Event::default(), levels);
    }
    assert_eq!((steady.highest().bytes, steady.highest().at), (900, Some(2)));
}

#[test]
fn one_place_is_one_holder() {
    let beside = |at: u64, stack| segment(at << 40, 0, &[2, -98], stack, 1);
    let picture = picture(vec![beside(1, 2), beside(2, 3), beside(3, 4), beside(4, 1)]);
    let same = |stack: StackId| resolve(if stack == StackId(1) { stack } else { StackId(2) });
    let found = holders(&picture, 10, &same);
    let of: Vec<(u64, u64)> = found.iter().map(|holder| (holder.pin.blocks, holder.pin.stranded_bytes / MIB)).collect();
    assert_eq!(of, [(3, 294), (1, 98)]);
}

#[test]
fn a_request_that_would_fail_makes_it_a_warning() {
    let full = picture(vec![segment(1 << 40, 0, &[100, -200, 100, -200, 100], 2, 0)]);
    let report = judged(0, &full, &steady(&VARYING, 2100), Some(50 * MIB));
    assert_eq!((report.would_fit, report.severity), (Some(false), Some(Severity::Warning)));
    let report = judged(0, &full, &steady(&VARYING, 2100), Some(400 * MIB));
    assert_eq!((report.would_fit, report.severity), (Some(true), Some(Severity::Info)));
    // If the room is not measured, no request is said to fail.
    assert_eq!(judged(0, &full, &steady(&VARYING, 2100), None).would_fit, None);
}

#[test]
fn old_blocks_strand_what_lies_beside_them() {
    let segments: Vec<SegmentState> = (1..11).map(|at| segment(at << 40, 0, &[2, -98], 2, at.min(3))).collect();
    let pinned = picture(segments);
    assert_eq!((pinned.stranded_bytes, pinned.pins[0].blocks, pinned.pins[0].segments), (980 * MIB, 10, 10));
    let report = judged(0, &pinned, &steady(&[150; 8], 1000), None);
    // One partly used segment of 20 MiB per free list is how the allocator works.
    assert_eq!(report.cause, Some((FragmentationCause::LongLivedBlocks, 960 * MIB)));
    let found = finding(&[report], 4).unwrap();
    assert_eq!(
        found.title,
        "Rank 0 holds 0.98 GiB of which 960 MiB are idle beside 10 live blocks of remember (train.py:57)"
    );
    assert_eq!(
        found.advice,
        "Allocate what lives long (remember (train.py:57)) before short-lived tensors, or in one tensor; `memctl what-if --job JOB` replays the job under other allocator settings."
    );
    // Blocks of the step under way are freed with it.
    let young: Vec<SegmentState> = (1..11).map(|at| segment(at << 40, 0, &[2, -98], 2, 9)).collect();
    assert_eq!(judged(0, &picture(young), &steady(&[150; 8], 1000), None).cause, None);
}

#[test]
fn memory_of_another_stream_serves_no_other() {
    let split = picture(vec![segment(1 << 40, 0, &[300], 2, 9), segment(2 << 40, 7, &[-600], 0, 0)]);
    assert_eq!(split.streams(), 2);
    let report = judged(0, &split, &steady(&[150; 8], 900), None);
    assert_eq!(report.cause, Some((FragmentationCause::Streams, 600 * MIB)));
    assert!(finding(&[report], 1).unwrap().advice.contains("stream"));
}

#[test]
fn ranks_become_one_sentence() {
    let idle = picture(vec![segment(1 << 40, 0, &[100], 2, 0), segment(2 << 40, 0, &[-2000], 0, 0)]);
    let reports: Vec<RankFragmentation> =
        (0..4).map(|rank| judged(rank, &idle, &steady(&VARYING, 2100 + 100 * u64::from(rank)), None)).collect();
    let found = finding(&reports, 4).unwrap();
    assert!(found.all_ranks);
    assert_eq!(
        found.title,
        "All 4 ranks hold 2.05 to 2.34 GiB each for steps of typically 300 MiB and at most 500 MiB: request sizes vary from step to step, mostly in forward (train.py:12)"
    );
    assert_eq!(
        found.explanation,
        "On rank 3, 2.05 GiB were reserved and 100 MiB allocated; 1.95 GiB were free in empty segments, 0 B in 0 holes beside live blocks (the largest 0 B). Over 8 steps, a typical step reached 300 MiB, the highest 500 MiB; 100 % of the requested bytes came from sites whose sizes vary (90.0 to 400 MiB at the one that requests most). A request as large as the largest of the last steps, 400 MiB, would be served."
    );
    assert!(found.advice.contains("buckets") && !found.advice.contains("expandable_segments"));
    assert_eq!(finding(&[], 0), None);
}

#[test]
fn warm_up_does_not_count() {
    let mut steady = Steady::new(PlacementRules::new(&AllocatorSettings::default()), false);
    let levels = |allocated_bytes| Levels { allocated_bytes, active_bytes: allocated_bytes, reserved_bytes: 0 };
    for step in 0..12 {
        steady.step_begins(step, levels(5));
        let take = Event { action: Action::SegmentAlloc, size: 7, ..Event::default() };
        steady.event(step, &take, levels(1000 - step));
        steady.step_ends(levels(5));
    }
    assert_eq!((steady.steps_seen, steady.steps, steady.steps_taking, steady.calls.taken_bytes), (12, 2, 2, 14));
    assert_eq!(steady.highest().bytes, 990);
    assert_eq!(steady.typical_height_bytes(), Some(989));
}

proptest! {
    #[test]
    fn bytes_add_up(
        sizes in prop::collection::vec(prop::collection::vec((-30_i64..30).prop_filter("not empty", |size| *size != 0), 1..8), 0..20),
        page in 0_u64..4,
    ) {
        let segments: Vec<SegmentState> = sizes
            .iter()
            .enumerate()
            .map(|(at, sizes)| segment((at as u64 + 1) << 30, at as u64 % 3, sizes, at as u32 % 40, at as u64))
            .collect();
        let state = Keyframe {
            device: DeviceIndex(0), at_event: 0, time_ns: 0, reason: KeyframeReason::Periodic, segments, loose: Vec::new(),
        };
        let picture = Picture::of(&state, page * 2 * MIB);
        prop_assert_eq!(picture.reserved_bytes, picture.active_bytes + picture.free_bytes);
        prop_assert_eq!(picture.free_bytes, picture.empty_bytes + picture.stranded_bytes);
        let pinned: u64 = picture.pins.iter().map(|pin| pin.stranded_bytes).sum();
        prop_assert_eq!(pinned + picture.other_pins_bytes, picture.stranded_bytes);
        let listed: u64 = picture.lists.iter().map(|list| list.space.free_bytes()).sum();
        prop_assert_eq!(listed, picture.free_bytes);
        prop_assert!(picture.stranded_page_bytes <= picture.stranded_bytes);
        prop_assert!(picture.requested_bytes <= picture.active_bytes);
        let shares: Vec<f64> = picture.unusable_free_curve().into_iter().map(|(_, share)| share).collect();
        prop_assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)));
        prop_assert_eq!(shares.last().copied().unwrap_or(1.0), 1.0);
        prop_assert_eq!(picture.list_for(4 * MIB, 99, PoolId::DEFAULT), None);
    }
}
