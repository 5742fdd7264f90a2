//! A keyframe: the complete state of one device's allocator at one position of its event stream.
//!
//! Replay starts from a keyframe. There is one at attach, after a drop, and at least every
//! [`crate::limits::KEYFRAME_CHUNKS`] chunks. So the state at any time is one keyframe and a bounded number of events
//! away.

use crate::event::{DeviceIndex, PoolId};
use crate::mark::Phase;
use crate::stack::StackId;

/// Why a keyframe was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum KeyframeReason {
    /// The state with which recording began.
    Start = 1,
    /// A keyframe at a regular interval.
    Periodic = 2,
    /// Events were dropped. Earlier figures are not exact; figures from here on are.
    AfterDrop = 3,
    /// A request failed: the state at that moment.
    OutOfMemory = 4,
    /// The process failed: the last known state.
    Failure = 5,
}

/// Which of the allocator's two pools of block sizes a segment serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum SegmentKind {
    /// Blocks up to 1 MiB.
    Small = 1,
    /// Larger blocks.
    #[default]
    Large = 2,
}

/// Whether a block is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum BlockUse {
    /// Free.
    #[default]
    Inactive = 0,
    /// In use.
    Allocated = 1,
    /// Freed, but another stream may still use it.
    PendingFree = 2,
}

/// One block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BlockState {
    /// Device address.
    pub addr: u64,
    /// Size in bytes (rounded, possibly unsplit).
    pub size: u64,
    /// Requested bytes; 0 for free blocks.
    pub requested: u64,
    /// Whether it is in use.
    pub usage: BlockUse,
    /// The stack that allocated it.
    pub stack: StackId,
    /// Epoch in which it was allocated, if known; 0 for blocks from before the recording.
    pub birth_epoch: u32,
    /// Step in which it was allocated, if known.
    pub birth_step: u64,
    /// Phase in which it was allocated, if known.
    pub birth_phase: Option<Phase>,
}

/// One segment with all its blocks, in address order and without gaps.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SegmentState {
    /// Device address.
    pub addr: u64,
    /// Bytes; for an expandable segment the contiguous mapped range.
    pub size: u64,
    /// Stream its blocks belong to.
    pub stream: u64,
    /// Pool it belongs to.
    pub pool: PoolId,
    /// Small or large blocks.
    pub kind: SegmentKind,
    /// Whether it is (a mapped range of) an expandable segment.
    pub expandable: bool,
    /// Its blocks.
    pub blocks: Vec<BlockState>,
}

/// The state of one device's allocator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyframe {
    /// The device.
    pub device: DeviceIndex,
    /// Number of earlier events of this device.
    pub at_event: u64,
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Why it was taken.
    pub reason: KeyframeReason,
    /// Segments in address order.
    pub segments: Vec<SegmentState>,
    /// Live blocks outside all known segments: from a source without segment events, or memory of another allocator.
    pub loose: Vec<BlockState>,
}
