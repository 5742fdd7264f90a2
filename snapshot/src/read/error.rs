//! Why a snapshot could not be read.
//!
//! Every error names the file and the remedy. Reading any file ends with one of these errors or with a recording.
//! Nothing in a file is ever executed.

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
    /// The bytes are not a pickle.
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
        /// Number of bytes of the (unpacked) pickle that were available.
        at: u64,
        /// Minimum number of bytes that the pickle declares, if it does.
        total: Option<u64>,
    },
    /// The pickle would import and call something.
    #[error(
        "the pickle contains code ({what}, at byte {at}) and memctl never executes code; snapshots of torch are plain data: dump again with torch.cuda.memory._dump_snapshot()"
    )]
    ContainsCode {
        /// `module.attribute` if known, else the opcode.
        what: String,
        /// Offset in the (unpacked) pickle.
        at: u64,
    },
    /// The pickle is valid, but not a snapshot with events.
    #[error("not a memory snapshot with events: found {found}; needed: {needed}")]
    NotASnapshot {
        /// The top-level value of the pickle.
        found: String,
        /// What it should have been and how to get it.
        needed: &'static str,
    },
    /// A pickle cannot contain such bytes at this place.
    #[error("damaged: {what} at byte {at} of the pickle; copy or record it again")]
    Malformed {
        /// What was found.
        what: String,
        /// Offset in the (unpacked) pickle.
        at: u64,
    },
    /// The pickle uses a feature that no snapshot needs.
    #[error(
        "not written by torch: {what} at byte {at} of the pickle; load it in Python and write it with pickle.dump(snapshot, file)"
    )]
    Unsupported {
        /// The feature.
        what: &'static str,
        /// Offset in the (unpacked) pickle.
        at: u64,
    },
    /// The pickle is nested deeper, or has more open values at once, than any snapshot.
    #[error(
        "too deep: {what} at byte {at} of the pickle; a snapshot is nested six levels deep, this is something else"
    )]
    TooDeep {
        /// The limit that was exceeded.
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
        /// The decompressor's message.
        reason: String,
        /// The command that tests such a file.
        test: &'static str,
    },
}

fn of_total(total: Option<u64>) -> String {
    total.map(|bytes| format!(" of at least {bytes}")).unwrap_or_default()
}
