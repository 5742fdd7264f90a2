//! Memory snapshots of torch 2.1 to 2.15: the pickles of `torch.cuda.memory._snapshot()`.
//!
//! [`load`] reads a snapshot, plain or compressed by gzip or zstd. It needs one pass and less memory than the unpacked
//! pickle has bytes: events become records of 32 bytes as soon as their dicts end; names, frames and stacks are
//! interned as they come; everything else is skipped. Only plain data is accepted. A pickle that would import or call
//! something is rejected, and nothing is ever executed.

mod assemble;
mod containers;
mod digest;
mod error;
mod events;
mod found;
mod heap;
mod input;
mod intern;
mod keys;
mod machine;
mod marks;
mod merge;
mod opcode;
mod owners;
mod rare_opcodes;
mod segments;
mod shapes;
mod unmarked;
mod value;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use memctl_model::{AllocatorSettings, DeviceIndex, Frame, FrameId, Mark, SegmentState};

pub use error::{SnapshotError, SnapshotFault};
pub use events::{Drain, EventLog, LOG_CHUNK_EVENTS};
pub use found::Remarks;
pub use marks::mark_precedes;
pub use merge::{Merged, Moment, merge};
pub(crate) use owners::ANNOTATED;
pub use unmarked::FoundBoundaries;

/// Default limit of the bytes that a recording may hold in memory while it is read: about 200 million events.
pub const HELD_BYTES_MAX: u64 = 8 << 30;

/// The content of a snapshot.
#[derive(Debug)]
pub struct Recording {
    /// The devices with events or segments, by index.
    pub devices: Vec<DeviceRecording>,
    /// Marks, sorted by time; they apply to all devices. See [`mark_precedes`] for ties with events.
    pub marks: Vec<Mark>,
    /// Which marks do not come from annotations.
    pub found: FoundBoundaries,
    /// Frames by [`FrameId`].
    pub frames: Vec<Frame>,
    /// Stacks, innermost frame first; `stacks[0]` is `StackId(1)`.
    pub stacks: Vec<Vec<FrameId>>,
    /// The allocator's settings at the time of the snapshot; the defaults if it has none (before torch 2.3).
    pub settings: AllocatorSettings,
    /// Time of the first event or mark, in nanoseconds since the Unix epoch; 0 if there is none.
    pub started_ns: u64,
    /// Time of the last event or mark, in nanoseconds since the Unix epoch; 0 if there is none.
    pub ended_ns: u64,
    /// The oldest torch version that could have written the snapshot, such as `torch >= 2.10`; `None` if unknown.
    pub framework: Option<String>,
    /// Digest of the unpacked pickle: the same for a file and its compressed form.
    pub digest: [u8; 16],
    /// A secret digest: it can be computed from the file's content, but not from `digest`, which is public. It proves
    /// that a later import is of the same file.
    pub proof: [u8; 32],
    /// Missing or unusable parts.
    pub remarks: Remarks,
}

/// The content of a snapshot for one device.
#[derive(Debug)]
pub struct DeviceRecording {
    /// The device's number within the process.
    pub device: DeviceIndex,
    /// Its events.
    pub events: EventLog,
    /// Its segments after the last event, in address order.
    pub final_segments: Vec<SegmentState>,
}

impl Recording {
    /// Number of events of all devices.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.devices.iter().map(|device| device.events.len() as u64).sum()
    }

    /// Marks and events of all devices in the order in which they happened.
    pub fn merged(&self) -> impl Iterator<Item = Moment> + '_ {
        let devices = self.devices.iter().map(|device| (device.device, device.events.iter())).collect();
        merge(self.marks.iter().cloned(), devices)
    }
}

/// The progress of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the file (compressed, if it is compressed) that were read.
    pub bytes_read: u64,
    /// Bytes of the file, if known.
    pub bytes_total: Option<u64>,
    /// Events so far.
    pub events: u64,
}

/// Reads a snapshot file.
///
/// # Errors
/// The file cannot be read, is not a pickle, is damaged, contains code, or is not a snapshot with events.
pub fn load(path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Recording, SnapshotError> {
    let failed = |fault| SnapshotError { file: path.to_owned(), fault };
    let file = File::open(path).map_err(|error| failed(SnapshotFault::Unreadable(error)))?;
    // A pipe has no length, so no total is reported.
    let bytes_total = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len());
    let mut progress = |now: Progress| progress(Progress { bytes_total, ..now });
    load_from(file, HELD_BYTES_MAX, &mut progress).map_err(failed)
}

/// Reads a snapshot from any reader and holds at most about `held_bytes_max` bytes in memory.
///
/// # Errors
/// The same as for [`load`].
pub fn load_from(
    reader: impl Read,
    held_bytes_max: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<Recording, SnapshotFault> {
    let mut machine = machine::Machine::new(input::Input::open(reader)?);
    let top = machine.run(held_bytes_max, &mut *progress)?;
    let bytes_read = machine.input.file_bytes_read();
    let recording = assemble::recording(machine.heap, top, machine.input.finish())?;
    progress(Progress { bytes_read, bytes_total: None, events: recording.events() });
    Ok(recording)
}
