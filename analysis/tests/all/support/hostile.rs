//! Events and keyframes that no real program would send. They use few addresses, so that they collide, and some at the
//! end of the address space.

use memctl_model::{
    Action, BlockState, BlockUse, DeviceIndex, Event, Keyframe, KeyframeReason, PoolId, SegmentKind, SegmentState,
    StackId,
};
use proptest::prelude::*;

const BASE: u64 = 0x7f00_0000_0000;
const UNIT: u64 = 256 << 10;

/// An event that no allocator made, at an address that other events often used.
pub fn hostile_event() -> impl Strategy<Value = Event> {
    let addr = prop_oneof![
        12 => (0..120_u64).prop_map(|units| BASE + units * UNIT),
        3 => (0..40_u64).prop_map(|units| BASE + units * 512),
        1 => (0..8_u64).prop_map(|units| u64::MAX - units * UNIT),
        1 => any::<u64>(),
    ];
    let size = prop_oneof![
        6 => (0..40_u64).prop_map(|units| units * UNIT),
        3 => 0..5000_u64,
        3 => prop::sample::select(vec![2 << 20, 20 << 20, 4 << 20]),
        1 => any::<u64>(),
    ];
    let action = prop::sample::select(Action::ALL.to_vec());
    (addr, size, action, 0..2_u64, 0..2_u32).prop_map(|(addr, size, action, stream, pool)| Event {
        time_ns: 1,
        addr,
        size,
        stream,
        pool: PoolId { first: 0, second: pool },
        stack: StackId(pool),
        action,
    })
}

/// A keyframe whose parts may overlap, exceed their segment or exceed the address space.
pub fn hostile_keyframe() -> impl Strategy<Value = Keyframe> {
    let place = || {
        let addr = prop_oneof![
            8 => (0..64_u64).prop_map(|a| BASE + a * 512),
            8 => (0..64_u64).prop_map(|a| BASE + a * UNIT),
            1 => any::<u64>(),
        ];
        let size = prop_oneof![
            8 => (0..16_u64).prop_map(|s| s * 512),
            8 => (0..40_u64).prop_map(|s| s * UNIT),
            1 => any::<u64>(),
        ];
        (addr, size)
    };
    let usage = prop::sample::select(vec![BlockUse::Inactive, BlockUse::Allocated, BlockUse::PendingFree]);
    let block = (place(), usage, any::<u64>()).prop_map(|((addr, size), usage, requested)| BlockState {
        addr,
        size,
        requested,
        usage,
        ..BlockState::default()
    });
    let blocks = || prop::collection::vec(block.clone(), 0..8);
    let segment = (place(), blocks(), any::<bool>()).prop_map(|((addr, size), blocks, expandable)| SegmentState {
        addr,
        size,
        blocks,
        expandable,
        kind: SegmentKind::Small,
        ..SegmentState::default()
    });
    (prop::collection::vec(segment, 0..6), blocks()).prop_map(|(segments, loose)| Keyframe {
        device: DeviceIndex(0),
        at_event: 0,
        time_ns: 0,
        reason: KeyframeReason::AfterDrop,
        segments,
        loose,
    })
}
