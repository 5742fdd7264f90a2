//! The compressed columns: their names, their limits, and zstd.
//!
//! Guarantees: a column is unpacked only if its declared size is within its limit for the chunk's number of events.
//! Refuses: columns that are longer than declared or than their limit.

use memctl_model::limits::COLUMN_BYTES_MAX;
#[cfg(target_family = "wasm")]
use memctl_zstd as zstd;

use super::{ChunkError, check_limit};

/// The compressed columns in the order in which they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Column {
    /// Operations, as 16-bit tokens.
    Tokens,
    /// References for the addresses where allocations begin, 16 bits each.
    References,
    /// The keys, which are tuples (stack, size, stream, pool), as varints: all stacks, all sizes, all streams, both
    /// halves of all pools.
    Tuples,
    /// Operands of operations that are more than a token, as varints.
    Operands,
    /// Explicit addresses, as zigzag varints of differences.
    Addresses,
    /// Time differences without a symbol of their own, as zigzag varints.
    Wide,
    /// Classes of times by key.
    Classes,
    /// Lengths of codes by class.
    Lengths,
}

/// Number of columns.
pub(super) const COLUMNS: usize = 8;

impl Column {
    pub(super) const ALL: [Self; COLUMNS] = [
        Self::Tokens,
        Self::References,
        Self::Tuples,
        Self::Operands,
        Self::Addresses,
        Self::Wide,
        Self::Classes,
        Self::Lengths,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::References => "references",
            Self::Tuples => "tuples",
            Self::Operands => "operands",
            Self::Addresses => "addresses",
            Self::Wide => "wide times",
            Self::Classes => "classes",
            Self::Lengths => "lengths",
        }
    }

    /// Maximum bytes of this column in a chunk of `events` events.
    pub(super) const fn bytes_max(self, events: u64) -> u64 {
        let (fixed, per_event) = match self {
            Self::Tokens | Self::References => (0, 2),
            Self::Tuples => (0, 5 + 10 + 10 + 5 + 5),
            // With 65,536 keys or allocations, a number or a distance has at most three bytes. A stack has at most
            // five.
            Self::Operands => (0, 3 + 5),
            Self::Addresses | Self::Wide => (0, 10),
            Self::Classes => (super::planes::PLANES as u64, 4),
            Self::Lengths => (super::planes::CLASSES_MAX as u64 * (super::ticks::SYMBOLS as u64 + 1), 0),
        };
        let max = fixed + per_event * events;
        if max < COLUMN_BYTES_MAX as u64 { max } else { COLUMN_BYTES_MAX as u64 }
    }
}

/// The columns before compression.
pub(super) type Raw = [Vec<u8>; COLUMNS];

/// zstd's default level. Level 5 saves 2 % of these columns and costs an eighth of the encoder's speed. Level 9 saves 5
/// % and costs a third.
const LEVEL: i32 = 3;
/// A column shorter than this is stored uncompressed, because zstd's frame takes 9 bytes.
const PACKED_BYTES_MIN: usize = 24;

/// Compresses columns with one context.
pub(super) struct Packer {
    context: zstd::bulk::Compressor<'static>,
    scratch: Vec<u8>,
}

impl Packer {
    pub(super) fn new() -> Result<Self, ChunkError> {
        let context =
            zstd::bulk::Compressor::new(LEVEL).map_err(|source| ChunkError::Compression { what: "columns", source })?;
        Ok(Self { context, scratch: Vec::new() })
    }

    /// Appends a column to `out`, compressed if that is shorter. Returns the bytes that were appended.
    pub(super) fn pack(&mut self, column: Column, raw: &[u8], out: &mut Vec<u8>) -> Result<usize, ChunkError> {
        if raw.len() >= PACKED_BYTES_MIN {
            self.scratch.clear();
            self.scratch.reserve(zstd::zstd_safe::compress_bound(raw.len()));
            self.context
                .compress_to_buffer(raw, &mut self.scratch)
                .map_err(|source| ChunkError::Compression { what: column.name(), source })?;
            if self.scratch.len() < raw.len() {
                out.extend_from_slice(&self.scratch);
                return Ok(self.scratch.len());
            }
        }
        out.extend_from_slice(raw);
        Ok(raw.len())
    }
}

/// Decompresses columns with one context.
pub(super) struct Unpacker {
    context: zstd::bulk::Decompressor<'static>,
}

impl Unpacker {
    pub(super) fn new() -> Result<Self, ChunkError> {
        let context =
            zstd::bulk::Decompressor::new().map_err(|source| ChunkError::Compression { what: "columns", source })?;
        Ok(Self { context })
    }

    /// Replaces `raw` with the column's `raw_bytes` bytes. The caller has checked them with [`Column::bytes_max`].
    pub(super) fn unpack(
        &mut self,
        column: Column,
        stored: &[u8],
        raw_bytes: usize,
        raw: &mut Vec<u8>,
    ) -> Result<(), ChunkError> {
        check_limit(column.name(), raw_bytes as u64, COLUMN_BYTES_MAX as u64)?;
        raw.clear();
        if stored.len() == raw_bytes {
            raw.extend_from_slice(stored);
            return Ok(());
        }
        raw.reserve_exact(raw_bytes);
        // The vector may have more capacity than `raw_bytes`, so the length is checked afterwards.
        self.context.decompress_to_buffer(stored, raw).map_err(|_| ChunkError::Malformed(column.name()))?;
        if raw.len() == raw_bytes { Ok(()) } else { Err(ChunkError::Malformed(column.name())) }
    }
}
