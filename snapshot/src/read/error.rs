//! Why a snapshot could not be read.
//!
//! Every error names the file and the remedy. Reading any file ends in one of these errors or in a recording: nothing
//! in a file is ever executed.

use std::io;
use std::path::PathBuf;

/// A snapshot that could not be read: which file and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", file.display())]
pub struct SnapshotError {
    /// The file, as the user named it.
    pub file: PathBuf,
    /// What is wrong with it.
    #[source]
    pub fault: SnapshotFault,
}

/// What is wrong with a snapshot file.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotFault {
    /// The file cannot be opened or read.
    #[error("cannot be read: {0}; check the path and the permissions")]
    Unreadable(#[source] io::Error),
    /// The bytes are something else than a pickle.
    #[error(
        "not a pickle: this is {looks_like}; expected what torch.cuda.memory._dump_snapshot(\"rank0.pickle\") writes, plain or compressed by gzip or zstd"
    )]
    NotAPickle {
        /// What the file is, in words.
        looks_like: &'static str,
    },
    /// The pickle ends before its last opcode.
    #[error(
        "truncated: the pickle ends at byte {at}{}; the process was killed while writing or the copy is incomplete: copy or record it again",
        of_total(*.total)
    )]
    Truncated {
        /// Bytes of the (unpacked) pickle that were there.
        at: u64,
        /// Bytes that the pickle itself says it needs at least, when it says so.
        total: Option<u64>,
    },
    /// The pickle would import and call something.
    #[error(
        "the pickle contains code ({what}, at byte {at}) and memctl never executes code; snapshots of torch are plain data: dump again with torch.cuda.memory._dump_snapshot()"
    )]
    ContainsCode {
        /// `module.attribute` where known, else the opcode.
        what: String,
        /// Offset in the (unpacked) pickle.
        at: u64,
    },
    /// A valid pickle, but not of a snapshot with events.
    #[error("not a memory snapshot with events: found {found}; needed: {needed}")]
    NotASnapshot {
        /// What the top of the pickle is.
        found: String,
        /// What it should have been and how to get it.
        needed: &'static str,
    },
    /// Bytes that no pickle may contain at this place.
    #[error("damaged: {what} at byte {at} of the pickle; copy or record it again")]
    Malformed {
        /// What was found.
        what: String,
        /// Offset in the (unpacked) pickle.
        at: u64,
    },
    /// A pickle that uses a feature which no snapshot needs.
    #[error(
        "not written by torch: {what} at byte {at} of the pickle; load it in Python and write it with pickle.dump(snapshot, file)"
    )]
    Unsupported {
        /// The feature.
        what: &'static str,
        /// Offset in the (unpacked) pickle.
        at: u64,
    },
    /// Nested deeper, or more values open at once, than any snapshot.
    #[error(
        "too deep: {what} at byte {at} of the pickle; a snapshot is nested six levels deep, this is something else"
    )]
    TooDeep {
        /// Which limit it is.
        what: &'static str,
        /// Offset in the (unpacked) pickle.
        at: u64,
    },
    /// The content would not fit into the memory allowed for it.
    #[error(
        "too large: more than {limit_bytes} bytes would be held after {at} bytes of the pickle; record fewer events with _record_memory_history(max_entries=…)"
    )]
    TooLarge {
        /// The limit.
        limit_bytes: u64,
        /// Offset in the (unpacked) pickle.
        at: u64,
    },
    /// The compressed stream is damaged.
    #[error("corrupt {format}: {reason}; copy it again or test it with `{test}`")]
    CorruptCompression {
        /// gzip or zstd.
        format: &'static str,
        /// What the decompressor says.
        reason: String,
        /// The command that tests such a file.
        test: &'static str,
    },
}

fn of_total(total: Option<u64>) -> String {
    total.map(|bytes| format!(" of at least {bytes}")).unwrap_or_default()
}
