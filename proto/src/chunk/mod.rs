//! A chunk holds up to 65,536 allocator events of one device, in about half a byte each.
//!
//! Guarantees: for *any* sequence of events, order, action, address, size, stream, pool and stack are decoded exactly.
//! Times are rounded down to the chunk's resolution. Every chunk can be decoded alone. Every version that was ever
//! written stays readable. Decoding hostile input returns a [`ChunkError`]: it neither panics nor allocates more than
//! [`memctl_model::limits`] allow.
//! Refuses: empty chunks, chunks of more than [`CHUNK_EVENTS_MAX`] events.
//!
//! FORMAT.md in this folder describes every byte. This is a summary. An allocation is an index into a dictionary of
//! (stack, size, stream, pool). Its address is written as a reference to a recent allocation that began or ended there.
//! A free is written as the distance to the previously freed allocation, and the two events of an ordinary free become
//! one operation. All of this repeats from step to step, so zstd removes it. Times do not repeat. They have their own
//! prefix codes (`codes`), which depend on what was allocated.

mod addresses;
mod bits;
mod codes;
mod columns;
mod decode;
mod encode;
mod header;
mod keys;
mod ops;
mod planes;
mod ticks;
mod times;
mod varint;

use memctl_model::limits::CHUNK_EVENTS_MAX;
use memctl_model::{DeviceIndex, Rollup};

pub use decode::Decoder;
pub use encode::Encoder;
pub use header::{Header, read_header};

/// The version that [`Encoder`] writes.
pub const VERSION: u8 = 1;

/// Facts about a chunk that the encoder gets from its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ChunkMeta {
    /// The device of the events.
    pub device: DeviceIndex,
    /// Number of earlier events of this device.
    pub first_event: u64,
    /// The summary. The encoder fills in its `counts`, `first_ns` and `last_ns`.
    pub rollup: Rollup,
}

/// Why a chunk could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// The first bytes are not a chunk's.
    #[error("not a memctl chunk: it begins with {0:02x?} instead of \"MCHK\"")]
    NotAChunk(Vec<u8>),
    /// Written by a newer memctl.
    #[error("chunk version {0} is not known here (this memctl reads up to version {VERSION}): upgrade this side")]
    Version(u8),
    /// A part ends early.
    #[error("chunk is truncated in its {0}")]
    Truncated(&'static str),
    /// A part contradicts the format.
    #[error("chunk is malformed in its {0}: it was damaged or not written by memctl")]
    Malformed(&'static str),
    /// A checksum does not match.
    #[error("chunk is damaged: the checksum of its {0} does not match")]
    Checksum(&'static str),
    /// A declared size is beyond a limit. Nothing was allocated for it.
    #[error("chunk declares {value} for its {what}, the limit is {max}")]
    TooLarge {
        /// What was declared.
        what: &'static str,
        /// The declared value.
        value: u64,
        /// The limit.
        max: u64,
    },
    /// There are no events.
    #[error("a chunk needs at least one event")]
    Empty,
    /// There are too many events.
    #[error("a chunk holds at most {CHUNK_EVENTS_MAX} events: finish this one and begin another")]
    Full,
    /// The compressor refused.
    #[error("the {what} could not be compressed")]
    Compression {
        /// The column.
        what: &'static str,
        /// The compressor's error.
        source: std::io::Error,
    },
}

/// The error of the inner loops. It has two bytes, so that a result fits a register and dropping it costs nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// See [`ChunkError::Truncated`].
    Truncated(Part),
    /// See [`ChunkError::Malformed`].
    Malformed(Part),
}

/// The parts of a chunk that errors name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Header,
    Payload,
    Column(columns::Column),
    Times,
}

impl Part {
    const fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Payload => "payload",
            Self::Column(column) => column.name(),
            Self::Times => "times",
        }
    }
}

impl From<Fault> for ChunkError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Truncated(part) => Self::Truncated(part.name()),
            Fault::Malformed(part) => Self::Malformed(part.name()),
        }
    }
}

/// Returns an error if a declared value is beyond its limit.
fn check_limit(what: &'static str, value: u64, max: u64) -> Result<(), ChunkError> {
    if value > max { Err(ChunkError::TooLarge { what, value, max }) } else { Ok(()) }
}
