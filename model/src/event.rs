//! One event of a caching allocator, fixed in size and `Copy`.
//!
//! The field meanings are PyTorch's `TraceEntry` (c10/cuda/CUDACachingAllocator.h); the numbers of
//! [`Action`] are its enum values, so the hook needs no translation.

use crate::stack::StackId;

/// The action of the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Action {
    /// A block was allocated: `addr`, `size` = *requested* bytes.
    #[default]
    Alloc = 0,
    /// The program freed a block; another stream may still use it.
    FreeRequested = 1,
    /// The block became reusable.
    FreeCompleted = 2,
    /// The driver allocated a segment: `addr`, `size` = bytes of the segment.
    SegmentAlloc = 3,
    /// A segment was released to the driver.
    SegmentFree = 4,
    /// Pages of an expandable segment were mapped.
    SegmentMap = 5,
    /// Pages of an expandable segment were unmapped.
    SegmentUnmap = 6,
    /// The allocator's state was read at this point of the stream.
    Snapshot = 7,
    /// A request failed: `addr` = free bytes of the device, `size` = the rounded request.
    Oom = 8,
    /// A block was named (torch ≥ 2.14). From here on the block has this event's stack, if the event has one. Nothing
    /// else changes.
    Annotate = 9,
}

impl Action {
    /// Every action, in the order of its number.
    pub const ALL: [Self; 10] = [
        Self::Alloc,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::SegmentAlloc,
        Self::SegmentFree,
        Self::SegmentMap,
        Self::SegmentUnmap,
        Self::Snapshot,
        Self::Oom,
        Self::Annotate,
    ];

    /// The action with this number, if there is one.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// PyTorch's name in snapshots: `alloc`, `free_requested`, `segment_alloc`, …
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Snapshot => "snapshot",
            Self::Oom => "oom",
            Self::Annotate => "annotate",
        }
    }

    /// The action with PyTorch's name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }
}

/// A memory pool: `(0, 0)` is the default pool; others are private (CUDA graphs, `MemPool`).
///
/// PyTorch counts both halves up from 1 in 64 bits. Only 32 bits are kept, which no process exhausts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(C)]
pub struct PoolId {
    /// First half: pools created by graph capture.
    pub first: u32,
    /// Second half: pools created by the user.
    pub second: u32,
}

impl PoolId {
    /// The pool of every allocation without a private pool.
    pub const DEFAULT: Self = Self { first: 0, second: 0 };
}

/// Index of a device within its session's [`crate::SessionInfo::devices`] (CUDA ordinal as the process sees it).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DeviceIndex(pub u8);

/// One allocator event of one device. 48 bytes, the record of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Event {
    /// Nanoseconds since the Unix epoch. In a ring that a hook writes, these are ticks of the source's clock until the
    /// batcher converts them.
    pub time_ns: u64,
    /// Device address; for [`Action::Oom`] the free bytes of the device.
    pub addr: u64,
    /// Bytes; see [`Action`].
    pub size: u64,
    /// The stream's handle as an integer; 0 for the default stream.
    pub stream: u64,
    /// The pool the block belongs to.
    pub pool: PoolId,
    /// The requesting stack. For frees, it is the free's own stack if recorded, else [`StackId::NONE`].
    pub stack: StackId,
    /// The action.
    pub action: Action,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_inverse() {
        for (number, action) in Action::ALL.into_iter().enumerate() {
            assert_eq!(action as usize, number);
            assert_eq!(Action::from_number(number as u8), Some(action));
            assert_eq!(Action::from_name(action.name()), Some(action));
        }
        assert_eq!(Action::from_number(10), None);
        assert_eq!(Action::from_name("free"), None);
    }

    #[test]
    fn an_event_is_48_bytes() {
        assert_eq!(std::mem::size_of::<Event>(), 48);
    }
}
