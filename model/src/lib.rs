//! The basic types of memctl: allocator events, their sources and their context.
//!
//! Guarantees: plain data that needs only `std` (and `thiserror` for the error enums). There is no wire format, no
//! database, no clock and no I/O. Every other crate depends on this one; it depends on none.
//!
//! *Allocated*, *active*, *reserved* and *requested* have the meanings of PyTorch's `torch.cuda.memory_stats()`
//! everywhere in memctl.

#![forbid(unsafe_code)]

pub mod allocator;
pub mod backoff;
pub mod bytes;
pub mod completeness;
pub mod counters;
pub mod event;
pub mod finding;
pub mod fingerprint;
pub mod foresight;
pub mod holders;
pub mod judged;
pub mod keyframe;
pub mod limits;
mod main_holder;
pub mod mark;
pub mod quantity;
pub mod rollup;
pub mod sample;
pub mod scheduler;
pub mod session;
pub mod settings;
pub mod sharing;
pub mod site;
pub mod stack;
pub mod state;
pub mod verdict;

pub use backoff::Backoff;
pub use bytes::HumanBytes;
pub use completeness::{Completeness, Dropped};
pub use counters::{Counters, Peaks};
pub use event::{Action, DeviceIndex, Event, PoolId};
pub use finding::{EvidenceValue, Finding, FindingKind, Growth, JOB_FLAG, Moment, Pattern, Rate, Severity};
pub use fingerprint::Fingerprint;
pub use foresight::{Foresight, Sight};
pub use holders::{
    Collector, FindingHolders, HolderBound, HolderGrowth, HolderKind, HolderPace, HolderPattern, HoldersAsked,
    HoldersFound, TensorHolder,
};
pub use judged::{Gap, Judged, JudgedKind, NotJudged, Remedy};
pub use keyframe::{BlockState, BlockUse, Keyframe, KeyframeReason, SegmentKind, SegmentState};
pub use mark::{Mark, MarkKind, Phase, Phases};
pub use rollup::{Levels, Rollup};
pub use sample::Sample;
pub use scheduler::SlurmJob;
pub use session::{DeviceInfo, Launch, SessionEnd, SessionId, SessionInfo, SourceKind};
pub use settings::AllocatorSettings;
pub use sharing::Sharing;
pub use site::{Boundary, PoolRow, SiteRow, SiteTable};
pub use stack::{Frame, FrameId, Stack, StackId, site_of};
pub use state::JobState;
pub use verdict::{Cause, MemoryKind, Verdict, VerdictKind};
