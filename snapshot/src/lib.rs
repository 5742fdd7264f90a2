//! Reads and writes PyTorch's memory snapshots, the pickles of `torch.cuda.memory._dump_snapshot()`.
//!
//! [`load`] reads snapshots of torch 2.1 to 2.15, plain or packed by gzip or zstd; [`session`] returns the session of
//! one. [`SnapshotWriter`] writes files that PyTorch's own viewers open, event by event.
//!
//! Guarantees: written files are read back as the same events, segments and marks; memory stays bounded by the live
//! state and the stacks when writing, and below the size of the unpacked file when reading.
//!
//! Refuses: to execute anything, and to know an agent, a daemon or the wire.

#![forbid(unsafe_code)]

mod read;
pub mod session;
mod write;

pub use read::{
    DeviceRecording, Drain, EventLog, FoundBoundaries, HELD_BYTES_MAX, LOG_CHUNK_EVENTS, Merged, Moment, Progress,
    Recording, Remarks, SnapshotError, SnapshotFault, load, load_from, mark_precedes, merge,
};
pub use write::{SnapshotWriter, WriteError, write};
