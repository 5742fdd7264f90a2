//! Allocated memory within one step: the largest blocks each for itself, and all others as one rest.
//!
//! Guarantees: all columns of a table have the same length. At the event of every point, the bytes of the blocks that
//! are allocated then and the rest add up to the allocated bytes. A block is allocated behind the n-th event if
//! `from_event <= n < to_event`, where null is before or after the shown part. The answer has a bounded size.

use serde::Serialize;

use crate::blocks::Failure;
use crate::format::time::Time;
use crate::{Completeness, Frame, Job};

/// The memory of a step; see the module.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct StepMemory {
    /// See [`crate::SCHEMA`].
    pub schema: u32,
    /// The job.
    pub job: Job,
    /// What the answer rests on.
    pub completeness: Completeness,
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Device index in the process.
    pub device: u32,
    /// Whether the figures are exact.
    pub exact: bool,
    /// The step, or the stretch in its place.
    pub of: StepSpan,
    /// The step before it; null where there is none.
    pub previous: Option<StepName>,
    /// The step after it; null where there is none.
    pub next: Option<StepName>,
    /// The shown part begins behind so many events. It is the whole step unless that has too many events.
    pub first_event: u64,
    /// And ends behind so many.
    pub last_event: u64,
    /// The begin of the shown part, and the time of the first point.
    pub first_at: Time,
    /// Nanoseconds from there to its end.
    pub duration_ns: u64,
    /// At the begin of the shown part.
    pub start: StepLevel,
    /// When most was allocated.
    pub peak: StepLevel,
    /// At its end.
    pub end: StepLevel,
    /// Events that one point stands for: it has the levels of the highest of them.
    pub events_per_point: u64,
    /// The course of the shown part.
    pub points: StepPoints,
    /// The largest blocks, from the bottom of the stack to its top. The rest is above them.
    pub blocks: StepBlocks,
    /// Blocks in the rest.
    pub rest_blocks: u64,
    /// Phases of the step, in the order of their begin.
    pub phases: Vec<StepPhase>,
    /// Requests that failed.
    pub failures: Vec<Failure>,
    /// Names of classes.
    pub classes: Vec<&'static str>,
    /// Frames of stacks.
    pub frames: Vec<Frame>,
    /// Stacks, innermost frame first; the first stack is none.
    pub stacks: Vec<Vec<u32>>,
    /// Of each stack the innermost frame of the user's own code.
    pub sites: Vec<Option<u32>>,
    /// Of each stack whose memory it is, as the process named it.
    pub owners: Vec<Option<String>>,
}

/// A step by its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct StepName {
    /// Its epoch.
    pub epoch: u32,
    /// Its number.
    pub step: u64,
}

/// The stretch of events that the answer is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct StepSpan {
    /// `step`; `window` where the process marks no steps; `events` for a range of events.
    pub kind: &'static str,
    /// The epoch.
    pub epoch: u32,
    /// The step or the window.
    pub step: u64,
    /// Whether its end was recorded.
    pub ended: bool,
    /// It begins behind so many events.
    pub first_event: u64,
    /// And ends behind so many.
    pub last_event: u64,
}

/// Levels after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct StepLevel {
    /// Behind so many events.
    pub event: u64,
    /// Bytes.
    pub allocated_bytes: u64,
    /// Bytes.
    pub reserved_bytes: u64,
}

/// The course, by columns.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct StepPoints {
    /// Behind so many events.
    pub event: Vec<u64>,
    /// Nanoseconds since the first point.
    pub elapsed_ns: Vec<u64>,
    /// Bytes.
    pub allocated_bytes: Vec<u64>,
    /// Bytes.
    pub reserved_bytes: Vec<u64>,
    /// Allocated bytes that are in none of the blocks.
    pub rest_bytes: Vec<u64>,
}

/// Blocks, by columns.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct StepBlocks {
    /// True size.
    pub bytes: Vec<u64>,
    /// As asked for.
    pub requested_bytes: Vec<u64>,
    /// Index into the classes.
    pub class: Vec<u8>,
    /// Index into the stacks.
    pub stack: Vec<u32>,
    /// Where it was freed: index into the stacks; 0 where that is not recorded.
    pub free_stack: Vec<u32>,
    /// Epoch of its birth.
    pub birth_epoch: Vec<u32>,
    /// Step of its birth.
    pub birth_step: Vec<u64>,
    /// Allocated behind so many events on; null if it was so before.
    pub from_event: Vec<Option<u64>>,
    /// Freed behind so many events; null if it is not within the shown part.
    pub to_event: Vec<Option<u64>>,
}

/// A phase within a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct StepPhase {
    /// `forward`, `backward`, `optimizer`, `train` or `eval`.
    pub phase: &'static str,
    /// It begins behind so many events.
    pub first_event: u64,
    /// And ends behind so many.
    pub last_event: u64,
}
