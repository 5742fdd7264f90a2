//! Decodes an item only as far as needed to find what it covers and which figures it changes.
//!
//! Guarantees: accepted items can be stored and found again. Chunks are checked (checksums, limits) but not decoded.
//! Items that need much memory are inspected one at a time.
//! Refuses: items that cannot be decoded, and devices that the session did not name.

use std::sync::{Mutex, MutexGuard, PoisonError};

use memctl_model::limits::CHUNK_BYTES_MAX;
use memctl_model::{Action, Boundary, Dropped, Mark, MarkKind, SessionEnd, SiteTable};
use memctl_proto::chunk::{ChunkError, Header, read_header};
use memctl_proto::item::{Content, Packed};
use memctl_proto::{WireError, v1};

use crate::store::{ChunkLevels, DeviceUpdate, EpochEndRow, ItemIndex, Latest, NewItem, SessionKey};

/// The reason why an item is not stored.
#[derive(Debug, thiserror::Error)]
pub enum ItemError {
    /// Its envelope or message is invalid.
    #[error("item {seq}: {source}")]
    Wire {
        /// The item.
        seq: u64,
        /// The fault.
        source: WireError,
    },
    /// It is not a valid chunk.
    #[error("item {seq}: {source}")]
    Chunk {
        /// The item.
        seq: u64,
        /// The fault.
        source: ChunkError,
    },
    /// A chunk over the limit.
    #[error("item {seq}: a chunk of {bytes} bytes is over the limit of {CHUNK_BYTES_MAX}")]
    TooLarge {
        /// The item.
        seq: u64,
        /// Its size.
        bytes: usize,
    },
    /// The store cannot hold it.
    #[error("item {seq}: {what}")]
    Unstorable {
        /// The item.
        seq: u64,
        /// The fault.
        what: String,
    },
    /// It names a device that the session did not name.
    #[error("item {seq}: device {device} is not one of the session's")]
    Device {
        /// The item.
        seq: u64,
        /// The device.
        device: u8,
    },
}

/// An item that is ready to be stored, with the figures that it changes.
#[derive(Debug)]
pub struct Prepared {
    /// The item.
    pub item: NewItem,
    /// Figures of devices.
    pub devices: Vec<DeviceUpdate>,
    /// The epoch ends in it.
    pub epoch_ends: Vec<EpochEndRow>,
    /// The end of the session, if the item is the session's last one.
    pub end: Option<SessionEnd>,
    /// All events that the session dropped, from its last item; 0 for other items.
    pub dropped: Dropped,
}

/// Items that need more memory than this are inspected one at a time.
const HEAVY_BYTES: u64 = 8 << 20;

/// The lock for items that need much memory.
#[derive(Debug, Default)]
pub struct Scale {
    taken: Mutex<()>,
}

impl Scale {
    /// Takes the lock if the item needs much memory. This blocks the thread.
    fn hold(&self, weight: u64) -> Option<MutexGuard<'_, ()>> {
        (weight > HEAVY_BYTES).then(|| self.taken.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Prepares an item of a session with these devices. It may block, so it must not run on the runtime's own threads. An
/// exception are chunks, of which only the header is read.
///
/// # Errors
/// See [`ItemError`].
pub fn prepare(session: SessionKey, devices: &[u8], item: &v1::Item, scale: &Scale) -> Result<Prepared, ItemError> {
    let seq = item.seq;
    let wire = |source| ItemError::Wire { seq, source };
    let packed = Packed::from_item(item).map_err(wire)?;
    let mut prepared = Prepared {
        item: NewItem {
            seq,
            kind: packed.kind,
            payload: packed.payload.clone(),
            unpacked_bytes: packed.unpacked_bytes,
            index: ItemIndex::default(),
            levels: None,
        },
        devices: Vec::new(),
        epoch_ends: Vec::new(),
        end: None,
        dropped: Dropped::default(),
    };
    let unpacked = packed.unpack().map_err(wire)?;
    let _held = scale.hold(unpacked.weight());
    match unpacked.decode().map_err(wire)? {
        Content::Chunk(bytes) if bytes.len() > CHUNK_BYTES_MAX => {
            return Err(ItemError::TooLarge { seq, bytes: bytes.len() });
        }
        Content::Chunk(bytes) => {
            let header = read_header(&bytes).map_err(|source| ItemError::Chunk { seq, source })?;
            prepared.chunk(&header);
        }
        Content::Marks(marks) => prepared.item.index = index_of_marks(&marks),
        Content::Stacks(batch) => prepared.item.index.count = batch.stack_new.len() as u64,
        Content::SiteTables(tables) => {
            let mut heads = Vec::new();
            let head = |table: &SiteTable| SiteTable { rows: Vec::new(), private_pools: Vec::new(), ..*table };
            tables.each(|table| heads.push(head(table))).map_err(wire)?;
            prepared.tables(session, &heads);
        }
        Content::Keyframe(keyframe) => {
            prepared.item.index = ItemIndex {
                device: Some(keyframe.device.0),
                first_ns: keyframe.time_ns,
                last_ns: keyframe.time_ns,
                first_event: keyframe.at_event,
                count: keyframe.segments.len() as u64,
                ..ItemIndex::default()
            };
        }
        Content::Samples(samples) => {
            prepared.item.index = ItemIndex {
                first_ns: samples.iter().map(|sample| sample.time_ns).min().unwrap_or(0),
                last_ns: samples.iter().map(|sample| sample.time_ns).max().unwrap_or(0),
                count: samples.len() as u64,
                ..ItemIndex::default()
            };
            for sample in samples {
                // The samples of the host and of the trainer share an item, and each lacks some figures.
                let update = prepared.device(sample.device.0);
                update.device_used_bytes = sample.device_used_bytes.or(update.device_used_bytes);
                update.alloc_retries = sample.alloc_retries.or(update.alloc_retries);
            }
        }
        Content::End(end) => {
            prepared.item.index = ItemIndex { first_ns: end.time_ns, last_ns: end.time_ns, ..ItemIndex::default() };
            prepared.dropped = end.dropped;
            prepared.end = Some(end);
        }
    }
    let named = prepared.devices.iter().map(|update| update.device).chain(prepared.item.index.device);
    match named.into_iter().find(|device| !devices.contains(device)) {
        Some(device) => Err(ItemError::Device { seq, device }),
        None => {
            prepared.item.check().map_err(|what| ItemError::Unstorable { seq, what })?;
            Ok(prepared)
        }
    }
}

impl Prepared {
    fn device(&mut self, device: u8) -> &mut DeviceUpdate {
        let at = self.devices.iter().position(|update| update.device == device).unwrap_or_else(|| {
            self.devices.push(DeviceUpdate { seq: self.item.seq, device, ..DeviceUpdate::default() });
            self.devices.len() - 1
        });
        &mut self.devices[at]
    }

    fn chunk(&mut self, header: &Header) {
        let rollup = &header.rollup;
        self.item.index = ItemIndex {
            device: Some(header.device.0),
            first_ns: rollup.first_ns,
            last_ns: rollup.last_ns,
            first_event: header.first_event,
            count: u64::from(header.events),
            first_epoch: rollup.first_epoch,
            last_epoch: rollup.last_epoch,
            first_step: rollup.first_step,
            last_step: rollup.last_step,
        };
        self.item.levels = Some(ChunkLevels {
            allocated_end: rollup.end.allocated_bytes,
            reserved_end: rollup.end.reserved_bytes,
            allocated_min: rollup.min.allocated_bytes,
            allocated_max: rollup.max.allocated_bytes,
            reserved_max: rollup.max.reserved_bytes,
            ooms: rollup.count(Action::Oom),
            dropped_before: rollup.dropped_before,
            exact: rollup.exact,
        });
        let update = self.device(header.device.0);
        update.events = u64::from(header.events);
        update.ooms = rollup.count(Action::Oom);
        update.expandable = match (rollup.count(Action::SegmentMap), rollup.count(Action::SegmentAlloc)) {
            (1.., _) => Some(true),
            (0, 1..) => Some(false),
            (0, 0) => None,
        };
    }

    fn tables(&mut self, session: SessionKey, tables: &[SiteTable]) {
        let times = || tables.iter().map(|table| table.time_ns);
        let epochs = || tables.iter().map(|table| table.epoch);
        let steps = || tables.iter().map(|table| table.step);
        self.item.index = ItemIndex {
            device: None,
            first_ns: times().min().unwrap_or(0),
            last_ns: times().max().unwrap_or(0),
            first_event: 0,
            count: tables.len() as u64,
            first_epoch: epochs().min().unwrap_or(0),
            last_epoch: epochs().max().unwrap_or(0),
            first_step: steps().min().unwrap_or(0),
            last_step: steps().max().unwrap_or(0),
        };
        for table in tables {
            let update = self.device(table.device.0);
            update.latest = Some(Latest {
                time_ns: table.time_ns,
                epoch: table.epoch,
                step: table.step,
                counters: table.counters,
                peaks: table.peaks,
                exact: table.exact,
            });
            match table.boundary {
                Boundary::StepEnd => update.steps += 1,
                Boundary::EpochEnd => {
                    update.epochs += 1;
                    let row = epoch_end(session, table, self.item.seq);
                    self.epoch_ends.push(row);
                }
                Boundary::End | Boundary::WindowEnd => {}
            }
        }
    }
}

fn epoch_end(session: SessionKey, table: &SiteTable, table_seq: u64) -> EpochEndRow {
    EpochEndRow {
        session,
        device: table.device.0,
        epoch: table.epoch,
        step: table.step,
        time_ns: table.time_ns,
        at_event: table.at_event,
        exact: table.exact,
        counters: table.counters,
        peaks: table.peaks,
        peaks_within: table.peaks_within,
        table_seq,
    }
}

fn index_of_marks(marks: &[Mark]) -> ItemIndex {
    let epochs = || {
        marks.iter().filter_map(|mark| match mark.kind {
            MarkKind::EpochBegin(epoch) | MarkKind::EpochEnd(epoch) => Some(epoch),
            _ => None,
        })
    };
    let steps = || {
        marks.iter().filter_map(|mark| match mark.kind {
            MarkKind::StepBegin(step) | MarkKind::StepEnd(step) => Some(step),
            _ => None,
        })
    };
    ItemIndex {
        device: None,
        first_ns: marks.iter().map(|mark| mark.time_ns).min().unwrap_or(0),
        last_ns: marks.iter().map(|mark| mark.time_ns).max().unwrap_or(0),
        first_event: 0,
        count: marks.len() as u64,
        // Marks without an epoch may belong to any epoch, so only their time is used to find them.
        first_epoch: epochs().min().unwrap_or(0),
        last_epoch: epochs().max().unwrap_or(u32::MAX),
        first_step: steps().min().unwrap_or(0),
        last_step: steps().max().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use memctl_model::Sample;

    use super::*;

    #[test]
    fn a_sample_without_a_figure_keeps_the_one_that_is_known() {
        let trainer = Sample { alloc_retries: Some(3), device_used_bytes: Some(7), ..Sample::default() };
        let host = Sample { device_used_bytes: Some(9), ..Sample::default() };
        for samples in [[trainer, host], [host, Sample { device_used_bytes: None, ..trainer }]] {
            let prepared = prepare(1, &[0], &Packed::samples(&samples).numbered(1), &Scale::default()).unwrap();
            let figures = prepared.devices.iter().map(|update| (update.alloc_retries, update.device_used_bytes));
            assert_eq!(figures.collect::<Vec<_>>(), [(Some(3), Some(9))]);
        }
    }
}
