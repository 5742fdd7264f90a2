//! Site tables: live bytes by allocation site at a boundary of the training loop.

use crate::counters::{Counters, Peaks};
use crate::event::DeviceIndex;
use crate::mark::Phase;
use crate::stack::StackId;

/// The boundary at which a site table was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Boundary {
    /// At the end of a step.
    StepEnd = 1,
    /// At the end of an epoch.
    EpochEnd = 2,
    /// At the end of the recording.
    End = 3,
    /// At the end of a window. The agent makes windows where no steps are marked. A window is an interval of time, or
    /// of allocated bytes if events are dense.
    WindowEnd = 4,
}

impl Boundary {
    /// The name in JSON: `step`, `epoch`, `end`, `window`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::StepEnd => "step",
            Self::EpochEnd => "epoch",
            Self::End => "end",
            Self::WindowEnd => "window",
        }
    }
}

/// Live memory of one allocation site that was allocated in one phase of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteRow {
    /// The stack that allocated it.
    pub stack: StackId,
    /// Epoch in which it was allocated.
    pub birth_epoch: u32,
    /// Phase in which it was allocated; `None` outside all phases, or if none was marked.
    pub birth_phase: Option<Phase>,
    /// Live blocks.
    pub blocks: u64,
    /// Live bytes (block sizes).
    pub bytes: u64,
}

/// Reserved memory of private pools (CUDA graphs, MemPools), by the stack that requested the segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolRow {
    /// The stack that requested the segments. For a CUDA graph, it is the code that captured the graph.
    pub stack: StackId,
    /// Number of segments.
    pub segments: u64,
    /// Bytes of these segments, used or not.
    pub bytes: u64,
}

/// Live memory by site, with the allocator's counters at that moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteTable {
    /// The device.
    pub device: DeviceIndex,
    /// The boundary at which it was taken.
    pub boundary: Boundary,
    /// Epoch that ended or is running.
    pub epoch: u32,
    /// Step that ended or was the last one.
    pub step: u64,
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Number of events of this device before it.
    pub at_event: u64,
    /// Whether the figures are exact: no drop since the last keyframe.
    pub exact: bool,
    /// The counters at this moment.
    pub counters: Counters,
    /// Peaks since the session began.
    pub peaks: Peaks,
    /// Peaks since the previous boundary of the same kind.
    pub peaks_within: Peaks,
    /// Whether the boundary was derived (a loop in a recording) and not given by a mark.
    pub found: bool,
    /// Rows sorted by (stack, birth epoch, birth phase). No row has zero blocks.
    pub rows: Vec<SiteRow>,
    /// Segments of private pools, sorted by stack. No row has zero segments.
    pub private_pools: Vec<PoolRow>,
}
