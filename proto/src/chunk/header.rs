//! The header of a chunk: what the chunk contains, its summary, and the positions of its columns.
//!
//! Guarantees: [`read_header`] checks both checksums and every declared size before it trusts a value. It allocates
//! nothing.
//! Refuses: other magic numbers and versions, trailing bytes, and sizes beyond the limits.

use memctl_model::limits::{CHUNK_BYTES_MAX, CHUNK_EVENTS_MAX};
use memctl_model::{Action, DeviceIndex, Levels, Rollup};

use super::columns::{COLUMNS, Column};
use super::varint::{Cursor, put, unzigzag, zigzag};
use super::{ChunkError, ChunkMeta, Part, VERSION, check_limit};

const MAGIC: [u8; 4] = *b"MCHK";
/// Bytes of magic number, version, flags and length of the whole header (16 bits).
const PREFIX_BYTES: usize = 8;
const CHECKSUM_BYTES: usize = 4;
/// A flag: the rollup's levels are exact.
const FLAG_EXACT: u8 = 1;

/// The header of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Version of the format.
    pub version: u8,
    /// Resolution of event times in nanoseconds, at least 1.
    pub resolution_ns: u32,
    /// The device.
    pub device: DeviceIndex,
    /// Number of earlier events of this device.
    pub first_event: u64,
    /// Number of events in the chunk, at least 1.
    pub events: u32,
    /// The summary.
    pub rollup: Rollup,
    pub(super) layout: Layout,
}

/// The layout of a chunk, which the decoder needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Layout {
    /// Ticks of the first event.
    pub(super) first_tick: u64,
    /// Number of keys in the dictionary.
    pub(super) keys: u32,
    /// Number of low bits that are zero in all differences of explicit addresses.
    pub(super) address_shift: u8,
    /// Bytes of each column, as unpacked and as stored.
    pub(super) columns: [(u32, u32); COLUMNS],
    /// Bytes of the times.
    pub(super) times_bytes: u32,
    /// Offset of the payload.
    pub(super) payload_at: usize,
}

/// Writes the header in front of its payload.
pub(super) fn write(meta: &ChunkMeta, events: u32, resolution_ns: u32, layout: &Layout, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(256 + payload.len());
    out.extend_from_slice(&MAGIC);
    out.push(VERSION);
    out.push(if meta.rollup.exact { FLAG_EXACT } else { 0 });
    out.extend_from_slice(&[0; 2]);
    put(&mut out, u64::from(meta.device.0));
    put(&mut out, u64::from(resolution_ns));
    put(&mut out, meta.first_event);
    put(&mut out, u64::from(events));
    put(&mut out, layout.first_tick);
    put(&mut out, u64::from(layout.keys));
    put(&mut out, u64::from(layout.address_shift));
    for (raw, stored) in layout.columns {
        put(&mut out, u64::from(raw));
        put(&mut out, u64::from(stored));
    }
    put(&mut out, u64::from(layout.times_bytes));
    put_rollup(&mut out, &meta.rollup);
    out.extend_from_slice(&crc32c::crc32c(payload).to_le_bytes());
    let header_bytes = (out.len() + CHECKSUM_BYTES) as u16;
    out[6..8].copy_from_slice(&header_bytes.to_le_bytes());
    let checksum = crc32c::crc32c(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out.extend_from_slice(payload);
    out
}

/// Reads and checks a chunk's header, its checksums and its declared sizes. Nothing is allocated or decoded.
///
/// # Errors
/// Every deviation from the format, see [`ChunkError`].
pub fn read_header(chunk: &[u8]) -> Result<Header, ChunkError> {
    check_limit("bytes", chunk.len() as u64, CHUNK_BYTES_MAX as u64)?;
    let Some((prefix, _)) = chunk.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(ChunkError::Truncated("header"));
    };
    if prefix[..4] != MAGIC {
        return Err(ChunkError::NotAChunk(prefix[..4].to_vec()));
    }
    let (version, flags) = (prefix[4], prefix[5]);
    if version != VERSION {
        return Err(ChunkError::Version(version));
    }
    let header_bytes = usize::from(u16::from_le_bytes([prefix[6], prefix[7]]));
    let header = chunk.get(..header_bytes).ok_or(ChunkError::Truncated("header"))?;
    let (signed_part, checksum) = header.split_last_chunk::<CHECKSUM_BYTES>().ok_or(ChunkError::Malformed("header"))?;
    if crc32c::crc32c(signed_part) != u32::from_le_bytes(*checksum) {
        return Err(ChunkError::Checksum("header"));
    }
    let fields = signed_part.get(PREFIX_BYTES..).ok_or(ChunkError::Malformed("header"))?;
    let (header, payload_checksum) = read_fields(version, flags, fields, header_bytes)?;
    check_payload(&header, &chunk[header_bytes..], payload_checksum)?;
    Ok(header)
}

fn read_fields(version: u8, flags: u8, fields: &[u8], payload_at: usize) -> Result<(Header, u32), ChunkError> {
    if flags & !FLAG_EXACT != 0 {
        return Err(ChunkError::Malformed("header"));
    }
    let mut cursor = Cursor::new(fields, Part::Header);
    let device = DeviceIndex(u8::try_from(cursor.u64()?).map_err(|_| ChunkError::Malformed("header"))?);
    let resolution_ns = cursor.u32()?;
    let first_event = cursor.u64()?;
    let events = cursor.u32()?;
    check_limit("events", u64::from(events), CHUNK_EVENTS_MAX as u64)?;
    if events == 0 || resolution_ns == 0 {
        return Err(ChunkError::Malformed("header"));
    }
    let mut layout = Layout { payload_at, ..Layout::default() };
    layout.first_tick = cursor.u64()?;
    layout.keys = cursor.u32()?;
    check_limit("keys", u64::from(layout.keys), u64::from(events))?;
    let address_shift = cursor.u64()?;
    check_limit("address shift", address_shift, 63)?;
    layout.address_shift = address_shift as u8;
    for (column, sizes) in Column::ALL.into_iter().zip(&mut layout.columns) {
        *sizes = (cursor.u32()?, cursor.u32()?);
        check_limit(column.name(), u64::from(sizes.0), column.bytes_max(u64::from(events)))?;
        if sizes.1 > sizes.0 {
            return Err(ChunkError::Malformed(column.name()));
        }
    }
    layout.times_bytes = cursor.u32()?;
    let rollup = read_rollup(&mut cursor, flags & FLAG_EXACT != 0)?;
    let checksum = cursor.bytes(CHECKSUM_BYTES)?;
    let checksum = u32::from_le_bytes([checksum[0], checksum[1], checksum[2], checksum[3]]);
    cursor.finished()?;
    if rollup.counts.iter().try_fold(0u64, |sum, &count| sum.checked_add(count)) != Some(u64::from(events)) {
        return Err(ChunkError::Malformed("rollup"));
    }
    Ok((Header { version, resolution_ns, device, first_event, events, rollup, layout }, checksum))
}

fn check_payload(header: &Header, payload: &[u8], checksum: u32) -> Result<(), ChunkError> {
    let layout = &header.layout;
    let columns: u64 = layout.columns.iter().map(|&(_, stored)| u64::from(stored)).sum();
    let declared = columns + u64::from(layout.times_bytes);
    if declared > payload.len() as u64 {
        return Err(ChunkError::Truncated("payload"));
    }
    if declared < payload.len() as u64 {
        return Err(ChunkError::Malformed("payload"));
    }
    if crc32c::crc32c(payload) != checksum {
        return Err(ChunkError::Checksum("payload"));
    }
    Ok(())
}

/// Writes levels as differences from `base`, whose levels are similar.
fn put_levels(out: &mut Vec<u8>, levels: &Levels, base: &Levels) {
    let Levels { allocated_bytes, active_bytes, reserved_bytes } = *levels;
    for (value, base) in [
        (allocated_bytes, base.allocated_bytes),
        (active_bytes, base.active_bytes),
        (reserved_bytes, base.reserved_bytes),
    ] {
        put(out, zigzag(value.wrapping_sub(base) as i64));
    }
}

fn read_levels(cursor: &mut Cursor<'_>, base: &Levels) -> Result<Levels, ChunkError> {
    let mut next = |base: u64| Ok::<_, ChunkError>(base.wrapping_add(unzigzag(cursor.u64()?) as u64));
    Ok(Levels {
        allocated_bytes: next(base.allocated_bytes)?,
        active_bytes: next(base.active_bytes)?,
        reserved_bytes: next(base.reserved_bytes)?,
    })
}

fn put_rollup(out: &mut Vec<u8>, rollup: &Rollup) {
    let Rollup {
        counts,
        first_ns,
        last_ns,
        first_epoch,
        last_epoch,
        first_step,
        last_step,
        start,
        end,
        min,
        max,
        dropped_before,
        exact: _, // a flag
    } = rollup;
    counts.iter().for_each(|&count| put(out, count));
    put(out, *first_ns);
    put(out, zigzag(last_ns.wrapping_sub(*first_ns) as i64));
    put(out, u64::from(*first_epoch));
    put(out, zigzag(i64::from(*last_epoch) - i64::from(*first_epoch)));
    put(out, *first_step);
    put(out, zigzag(last_step.wrapping_sub(*first_step) as i64));
    put_levels(out, start, &Levels::default());
    put_levels(out, end, start);
    put_levels(out, min, start);
    put_levels(out, max, start);
    put(out, *dropped_before);
}

fn read_rollup(cursor: &mut Cursor<'_>, exact: bool) -> Result<Rollup, ChunkError> {
    let mut counts = [0; Action::ALL.len()];
    for count in &mut counts {
        *count = cursor.u64()?;
    }
    let first_ns = cursor.u64()?;
    let last_ns = first_ns.wrapping_add(unzigzag(cursor.u64()?) as u64);
    let first_epoch = cursor.u32()?;
    let last_epoch = i64::from(first_epoch).checked_add(unzigzag(cursor.u64()?));
    let last_epoch = last_epoch.and_then(|epoch| u32::try_from(epoch).ok()).ok_or(ChunkError::Malformed("rollup"))?;
    let first_step = cursor.u64()?;
    let last_step = first_step.wrapping_add(unzigzag(cursor.u64()?) as u64);
    let start = read_levels(cursor, &Levels::default())?;
    let end = read_levels(cursor, &start)?;
    let min = read_levels(cursor, &start)?;
    let max = read_levels(cursor, &start)?;
    let dropped_before = cursor.u64()?;
    Ok(Rollup {
        counts,
        first_ns,
        last_ns,
        first_epoch,
        last_epoch,
        first_step,
        last_step,
        start,
        end,
        min,
        max,
        dropped_before,
        exact,
    })
}
