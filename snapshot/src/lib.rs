//! Reads and writes PyTorch's memory snapshots, the pickles of `torch.cuda.memory._dump_snapshot()`.
//!
//! [`load`] reads snapshots of torch 2.1 to 2.15, plain or compressed by gzip or zstd; [`session`] returns the session
//! of a snapshot. [`SnapshotWriter`] writes files that PyTorch's own viewers open, event by event.
//!
//! Guarantees: a written file is read back as the same events, segments and marks. While writing, memory is bounded by
//! the live state and the stacks. While reading, it stays below the size of the unpacked file. Nothing in a file is
//! ever executed. This crate does not depend on an agent, a daemon or the wire format.

#![forbid(unsafe_code)]

pub mod ranks;
mod read;
pub mod session;
mod write;

pub use read::{
    DeviceRecording, Drain, EventLog, FoundBoundaries, HELD_BYTES_MAX, LOG_CHUNK_EVENTS, Merged, Moment, Progress,
    Recording, Remarks, SnapshotError, SnapshotFault, load, load_from, mark_precedes, merge,
};
pub use write::{SnapshotWriter, WriteError, write};
