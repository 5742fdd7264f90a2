//! Recordings that contradict themselves: no input causes a panic, and memory is proportional to the live blocks.

use memctl_model::{Action, AllocatorSettings, BlockState, BlockUse, Event, PoolId, SegmentKind, SegmentState};
use memctl_replay::{Conf, Follow, Limit, SideBySide, Start, Trial, Version};
use proptest::prelude::*;

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..5000, (0_u64..64).prop_map(|n| n << 20), Just(1 << 45), any::<u64>()]
}

fn addresses() -> impl Strategy<Value = u64> {
    prop_oneof![(0_u64..64).prop_map(|n| n << 21), (0_u64..64).prop_map(|n| n << 9), any::<u64>()]
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = (0_u8..10, addresses(), sizes(), 0_u64..2, 0_u32..2).prop_map(|(action, addr, size, stream, pool)| {
        let action = Action::from_number(action).unwrap_or_default();
        Event { addr, size, stream, action, pool: PoolId { first: pool, second: 0 }, ..Event::default() }
    });
    proptest::collection::vec(event, 0..200)
}

fn segments() -> impl Strategy<Value = Vec<SegmentState>> {
    let block = (addresses(), sizes(), sizes(), 0_u8..3).prop_map(|(addr, size, requested, usage)| {
        let usage = [BlockUse::Inactive, BlockUse::Allocated, BlockUse::PendingFree][usize::from(usage)];
        BlockState { addr, size, requested, usage, ..BlockState::default() }
    });
    let segment = (addresses(), sizes(), any::<bool>(), any::<bool>(), proptest::collection::vec(block, 0..4))
        .prop_map(|(addr, size, small, expandable, blocks)| {
            let kind = if small { SegmentKind::Small } else { SegmentKind::Large };
            SegmentState { addr, size, kind, expandable, blocks, ..SegmentState::default() }
        });
    // Some segments are valid, too: one block covers the whole segment.
    let whole = (addresses(), sizes(), any::<bool>()).prop_map(|(addr, size, expandable)| {
        let block = BlockState { addr, size, requested: size, usage: BlockUse::Allocated, ..BlockState::default() };
        SegmentState { addr, size, expandable, blocks: vec![block], ..SegmentState::default() }
    });
    proptest::collection::vec(prop_oneof![segment, whole], 0..4)
}

#[test]
fn a_part_of_a_segment_is_never_released_as_oversize() {
    // PyTorch rejects such a small `max_split_size`, but a recording may claim it.
    let settings = AllocatorSettings { max_split_size: Some(513), ..AllocatorSettings::default() };
    let event = |action, addr, first| Event { action, addr, pool: PoolId { first, second: 0 }, ..Event::default() };
    let events = [
        event(Action::Alloc, 1024, 1),
        event(Action::Alloc, 0, 1),
        event(Action::FreeRequested, 1024, 0),
        event(Action::Alloc, 0, 0),
        event(Action::SegmentFree, 0, 1),
    ];
    let follow = Follow::new(Conf::recorded(&settings, Version::NEWEST), Limit::Share(2 << 20), &[]);
    let mut alone = SideBySide::new(follow, Vec::new());
    events.iter().for_each(|event| alone.event(event));
    let (follow, _) = alone.finish();
    assert_eq!(follow.agreement().events, events.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn no_recording_makes_a_replay_panic(
        events in events(),
        segments in segments(),
        expandable in any::<bool>(),
        large in sizes(),
        split in sizes(),
        limit in sizes(),
    ) {
        let settings = AllocatorSettings {
            expandable_segments: expandable,
            large_segment_size: large,
            max_split_size: Some(split),
            garbage_collection_permille: 500,
            ..AllocatorSettings::default()
        };
        let recorded = Conf::recorded(&settings, Version::NEWEST);
        let other = Conf { expandable_segments: !expandable, max_split_bytes: None, ..recorded.clone() };
        let trials = [Limit::None, Limit::Share(limit), Limit::Device(limit)].into_iter().flat_map(|limit| {
            [(recorded.clone(), Start::AsFound), (other.clone(), Start::Afresh)]
                .map(|(conf, start)| Trial::new(conf, limit, &segments, start))
        });
        let follow = Follow::new(recorded.clone(), Limit::Share(limit), &segments);
        let mut both = SideBySide::new(follow, trials.collect());
        events.iter().for_each(|event| both.event(event));
        let (follow, _) = both.finish();
        prop_assert_eq!(follow.agreement().events, events.len() as u64);
    }

    #[test]
    fn no_text_makes_the_settings_panic(text in "[a-z_:,\\[\\]0-9.> ]{0,40}", key in 0..4_usize) {
        let keys = ["roundup_power2_divisions:[", "max_split_size_mb:", "large_segment_size_mb:", ""];
        let _ = Conf::parse(&format!("{}{text}", keys[key]), Version::NEWEST);
    }
}
