//! Converts keyframes. Segments are rows, and the blocks of all segments are columns.

use memctl_model::{BlockState, BlockUse, Keyframe, KeyframeReason, PoolId, SegmentKind, SegmentState, StackId};

use super::session::device_index;
use super::{WireError, at_most, even, fill_zeros, leave_out_zeros, phase};
use crate::v1;

/// Maximum number of segments of one keyframe.
pub const SEGMENTS_MAX: usize = 1 << 20;
/// Maximum number of blocks of one keyframe.
pub const BLOCKS_MAX: usize = 4 << 20;

impl From<&Keyframe> for v1::Keyframe {
    fn from(keyframe: &Keyframe) -> Self {
        let Keyframe { device, at_event, time_ns, reason, segments, loose } = keyframe;
        let mut columns = v1::BlockColumns::default();
        let mut end = 0;
        for block in segments.iter().flat_map(|segment| &segment.blocks).chain(loose) {
            let BlockState { addr, size, requested, usage, stack, birth_epoch, birth_step, birth_phase } = *block;
            columns.addrs.push(addr.wrapping_sub(end));
            end = addr.wrapping_add(size);
            columns.sizes.push(size);
            columns.requested.push(requested);
            columns.usages.push(usage as u32);
            columns.stacks.push(stack.0);
            columns.birth_epochs.push(birth_epoch);
            columns.birth_steps.push(birth_step);
            columns.birth_phases.push(birth_phase.map_or(0, |phase| phase as u32));
        }
        leave_out_zeros(&mut columns.birth_phases);
        Self {
            device: u32::from(device.0),
            at_event: *at_event,
            time_ns: *time_ns,
            reason: *reason as i32,
            segments: segments.iter().map(segment_to_wire).collect(),
            blocks: Some(columns),
            loose_blocks: loose.len() as u32,
        }
    }
}

fn segment_to_wire(segment: &SegmentState) -> v1::SegmentState {
    let SegmentState { addr, size, stream, pool, kind, expandable, blocks } = segment;
    v1::SegmentState {
        addr: *addr,
        size: *size,
        stream: *stream,
        pool_first: pool.first,
        pool_second: pool.second,
        small: *kind == SegmentKind::Small,
        expandable: *expandable,
        blocks: blocks.len() as u32,
    }
}

impl TryFrom<v1::Keyframe> for Keyframe {
    type Error = WireError;

    fn try_from(wire: v1::Keyframe) -> Result<Self, WireError> {
        let mut columns = wire.blocks.unwrap_or_default();
        let rows = columns.addrs.len();
        at_most("segments of a keyframe", wire.segments.len(), SEGMENTS_MAX)?;
        at_most("blocks of a keyframe", rows, BLOCKS_MAX)?;
        even(
            "keyframe.blocks",
            rows,
            &[
                columns.sizes.len(),
                columns.requested.len(),
                columns.usages.len(),
                columns.stacks.len(),
                columns.birth_epochs.len(),
                columns.birth_steps.len(),
            ],
        )?;
        fill_zeros(&mut columns.birth_phases, rows);
        even("keyframe.birth_phases", rows, &[columns.birth_phases.len()])?;
        let counted: u64 =
            wire.segments.iter().map(|segment| u64::from(segment.blocks)).sum::<u64>() + u64::from(wire.loose_blocks);
        if counted != rows as u64 {
            return Err(WireError::Uneven { table: "keyframe.segments", left: counted as usize, right: rows });
        }
        let mut blocks = blocks_from_wire(&columns)?.into_iter();
        let segments = wire
            .segments
            .iter()
            .map(|segment| SegmentState {
                addr: segment.addr,
                size: segment.size,
                stream: segment.stream,
                pool: PoolId { first: segment.pool_first, second: segment.pool_second },
                kind: if segment.small { SegmentKind::Small } else { SegmentKind::Large },
                expandable: segment.expandable,
                blocks: blocks.by_ref().take(segment.blocks as usize).collect(),
            })
            .collect();
        Ok(Self {
            device: device_index(wire.device)?,
            at_event: wire.at_event,
            time_ns: wire.time_ns,
            reason: match v1::KeyframeReason::try_from(wire.reason) {
                Ok(v1::KeyframeReason::Start) => KeyframeReason::Start,
                Ok(v1::KeyframeReason::Periodic) => KeyframeReason::Periodic,
                Ok(v1::KeyframeReason::AfterDrop) => KeyframeReason::AfterDrop,
                Ok(v1::KeyframeReason::OutOfMemory) => KeyframeReason::OutOfMemory,
                Ok(v1::KeyframeReason::Failure) => KeyframeReason::Failure,
                _ => return Err(WireError::invalid("keyframe.reason", wire.reason, "1 to 3")),
            },
            segments,
            loose: blocks.collect(),
        })
    }
}

fn blocks_from_wire(columns: &v1::BlockColumns) -> Result<Vec<BlockState>, WireError> {
    let mut end = 0_u64;
    (0..columns.addrs.len())
        .map(|row| {
            let addr = end.wrapping_add(columns.addrs[row]);
            end = addr.wrapping_add(columns.sizes[row]);
            Ok(BlockState {
                addr,
                size: columns.sizes[row],
                requested: columns.requested[row],
                usage: match columns.usages[row] {
                    0 => BlockUse::Inactive,
                    1 => BlockUse::Allocated,
                    2 => BlockUse::PendingFree,
                    other => return Err(WireError::invalid("block.usage", other, "0 to 2")),
                },
                stack: StackId(columns.stacks[row]),
                birth_epoch: columns.birth_epochs[row],
                birth_step: columns.birth_steps[row],
                birth_phase: phase("block.birth_phase", columns.birth_phases[row])?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memctl_model::{DeviceIndex, Phase};
    use proptest::prelude::*;

    fn any_block() -> impl Strategy<Value = BlockState> {
        (any::<u64>(), any::<u64>(), any::<u64>(), 0_u8..3, any::<u32>(), any::<u32>(), any::<u64>(), 0_u32..6)
            .prop_map(|(addr, size, requested, usage, stack, birth_epoch, birth_step, phase)| BlockState {
                addr,
                size,
                requested,
                usage: [BlockUse::Inactive, BlockUse::Allocated, BlockUse::PendingFree][usize::from(usage)],
                stack: StackId(stack),
                birth_epoch,
                birth_step,
                birth_phase: Phase::of_number(phase),
            })
    }

    proptest! {
        #[test]
        fn what_goes_out_comes_in(
            segments in proptest::collection::vec((any::<u64>(), any::<bool>(), proptest::collection::vec(any_block(), 0..5)), 0..5),
            loose in proptest::collection::vec(any_block(), 0..4),
        ) {
            let keyframe = Keyframe {
                device: DeviceIndex(3),
                at_event: 7,
                time_ns: 9,
                reason: KeyframeReason::AfterDrop,
                segments: segments
                    .into_iter()
                    .map(|(addr, small, blocks)| SegmentState {
                        addr,
                        size: 1,
                        stream: 2,
                        pool: PoolId { first: 0, second: 4 },
                        kind: if small { SegmentKind::Small } else { SegmentKind::Large },
                        expandable: !small,
                        blocks,
                    })
                    .collect(),
                loose,
            };
            prop_assert_eq!(Keyframe::try_from(v1::Keyframe::from(&keyframe)).unwrap(), keyframe);
        }
    }

    #[test]
    fn a_segment_cannot_claim_blocks_that_did_not_come() {
        let keyframe = Keyframe {
            device: DeviceIndex(0),
            at_event: 0,
            time_ns: 0,
            reason: KeyframeReason::Start,
            segments: vec![SegmentState { blocks: vec![BlockState::default()], ..Default::default() }],
            loose: Vec::new(),
        };
        let mut wire = v1::Keyframe::from(&keyframe);
        wire.segments[0].blocks = u32::MAX;
        assert!(matches!(Keyframe::try_from(wire), Err(WireError::Uneven { table: "keyframe.segments", .. })));
    }
}
