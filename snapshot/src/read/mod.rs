//! Memory snapshots of torch 2.1 to 2.15: the pickles of `torch.cuda.memory._snapshot()`.
//!
//! [`load`] reads one, plain or packed by gzip or zstd, in one pass and in less memory than the
//! unpacked pickle has bytes: events become records of 32 bytes as their dicts end, names, frames
//! and stacks are interned as they come, everything else is passed over. It accepts plain data
//! only: a pickle that would import or call something is refused, nothing is ever executed.

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

/// Bytes that a recording may hold in memory while it is read, unless the caller says otherwise: about 200 million events.
pub const HELD_BYTES_MAX: u64 = 8 << 30;

/// Everything that a snapshot says.
#[derive(Debug)]
pub struct Recording {
    /// The devices that have events or segments, by index.
    pub devices: Vec<DeviceRecording>,
    /// Marks, sorted by time; they apply to all devices. See [`mark_precedes`] for ties with events.
    pub marks: Vec<Mark>,
    /// Which of them no annotation gave.
    pub found: FoundBoundaries,
    /// Frames by [`FrameId`].
    pub frames: Vec<Frame>,
    /// Stacks, innermost frame first; `stacks[0]` is `StackId(1)`.
    pub stacks: Vec<Vec<FrameId>>,
    /// The allocator's settings at the time of the snapshot; the defaults where it has none (before torch 2.3).
    pub settings: AllocatorSettings,
    /// Nanoseconds since the Unix epoch of the first event or mark; 0 when there is none.
    pub started_ns: u64,
    /// Likewise of the last one.
    pub ended_ns: u64,
    /// The oldest framework that can have written this, `torch >= 2.10`; `None` if nothing shows it.
    pub framework: Option<String>,
    /// Digest of the unpacked pickle: the same for a file and its compressed form.
    pub digest: [u8; 16],
    /// A digest that needs the file's content: proves that a later import is of the same file.
    pub proof: [u8; 32],
    /// What it lacked.
    pub remarks: Remarks,
}

/// What a snapshot says about one device.
#[derive(Debug)]
pub struct DeviceRecording {
    /// The device, as the process numbered it.
    pub device: DeviceIndex,
    /// Its events.
    pub events: EventLog,
    /// Its segments after the last event, in address order.
    pub final_segments: Vec<SegmentState>,
}

impl Recording {
    /// Events over all devices.
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

/// How far reading has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the file (packed ones, if it is packed) that were read.
    pub bytes_read: u64,
    /// Bytes of the file, if known.
    pub bytes_total: Option<u64>,
    /// Events so far.
    pub events: u64,
}

/// Reads a snapshot file.
///
/// # Errors
/// The file cannot be read, is no pickle, is damaged, contains code, or is no snapshot with events.
pub fn load(path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Recording, SnapshotError> {
    let failed = |fault| SnapshotError { file: path.to_owned(), fault };
    let file = File::open(path).map_err(|error| failed(SnapshotFault::Unreadable(error)))?;
    // A pipe has no length; then none is shown.
    let bytes_total = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len());
    let mut progress = |now: Progress| progress(Progress { bytes_total, ..now });
    load_from(file, HELD_BYTES_MAX, &mut progress).map_err(failed)
}

/// Reads a snapshot from any reader, holding at most about `held_bytes_max` bytes.
///
/// # Errors
/// As [`load`].
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
