//! The store's input and output records, independent of any database.
//!
//! Guarantees: [`Append::check`] and [`Selection::overlaps`] define in Rust what every database does. Each backend has
//! its own types for rows.
//! (Over 400 lines: a list of records.)

use bytes::Bytes;
use memctl_model::limits::{DEVICES_MAX, ITEM_BYTES_MAX};
use memctl_model::{Counters, DeviceInfo, Dropped, Peaks, SessionEnd, SessionInfo};
use memctl_proto::v1::ItemKind;

use super::runs::Which;

/// A session within its store.
pub type SessionKey = i64;

/// Name and version of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreInfo {
    /// `memory`, `sqlite` or `postgres`.
    pub kind: &'static str,
    /// The library's or server's version.
    pub version: String,
    /// Where it is, without secrets.
    pub place: String,
    /// Number of the newest migration.
    pub schema_version: i64,
    /// Whether it was opened read-only.
    pub is_read_only: bool,
}

/// A session that was found or made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedSession {
    /// Its key.
    pub key: SessionKey,
    /// Its job's key.
    pub job: i64,
    /// The number of its run.
    pub run: u32,
    /// All items up to this one are stored (or known to be missing); 0 for a new session.
    pub durable_seq: u64,
    /// Whether its end is stored. A session that has ended takes no more items.
    pub ended: bool,
}

/// A gap in a session's sequence: these items are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// First missing seq.
    pub first: u64,
    /// Last missing seq.
    pub last: u64,
}

/// The changes that one transaction makes to one session.
#[derive(Clone, Debug)]
pub struct Append {
    /// The session.
    pub session: SessionKey,
    /// The items, ascending by seq, all above the session's durable seq.
    pub items: Vec<NewItem>,
    /// Gaps before or between these items.
    pub gaps: Vec<Gap>,
    /// The session's durable seq once this is stored.
    pub durable_seq: u64,
    /// Duplicate items that were ignored.
    pub duplicates: u64,
    /// When the session was last heard from, ns since the Unix epoch.
    pub heard_ns: u64,
    /// New figures of devices.
    pub devices: Vec<DeviceUpdate>,
    /// Epoch ends found in these items; they replace stored ones of the same device and epoch.
    pub epoch_ends: Vec<EpochEndRow>,
    /// The session's end, if it is among these items.
    pub end: Option<SessionEnd>,
    /// Events dropped, from the session's last item. The session keeps the higher of this figure and the sum of the
    /// drops that its chunks report (`dropped_before`).
    pub dropped: Dropped,
}

/// One item to store.
#[derive(Clone, Debug)]
pub struct NewItem {
    /// Its number within the session.
    pub seq: u64,
    /// Its kind.
    pub kind: ItemKind,
    /// Its bytes as received.
    pub payload: Bytes,
    /// Size before compression; 0 = not compressed.
    pub unpacked_bytes: u32,
    /// The ranges that it covers.
    pub index: ItemIndex,
    /// Levels, for chunks.
    pub levels: Option<ChunkLevels>,
}

/// The ranges that an item covers. Queries find the item by these values without decoding it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ItemIndex {
    /// Device, for chunks and keyframes; `None` if it concerns the session.
    pub device: Option<u8>,
    /// Time of its first entry, ns since the Unix epoch.
    pub first_ns: u64,
    /// Time of its last entry.
    pub last_ns: u64,
    /// Index of its first event within the device's stream. For keyframes: the event that the keyframe precedes.
    pub first_event: u64,
    /// Events (chunks) or entries (others).
    pub count: u64,
    /// First epoch it touches.
    pub first_epoch: u32,
    /// Last epoch it touches.
    pub last_epoch: u32,
    /// First step it touches.
    pub first_step: u64,
    /// Last step it touches.
    pub last_step: u64,
}

/// The part of a chunk's rollup that timelines use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ChunkLevels {
    /// Allocated bytes after its last event.
    pub allocated_end: u64,
    /// Reserved bytes after its last event.
    pub reserved_end: u64,
    /// Lowest allocated bytes.
    pub allocated_min: u64,
    /// Highest allocated bytes.
    pub allocated_max: u64,
    /// Highest reserved bytes.
    pub reserved_max: u64,
    /// Failed requests.
    pub ooms: u64,
    /// Events dropped between the preceding chunk and this one.
    pub dropped_before: u64,
    /// Whether the levels are exact.
    pub exact: bool,
}

/// New figures of one device of a session.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DeviceUpdate {
    /// The item that the figures come from; they count if that item is new. 0: they count if any item of the append
    /// is new.
    pub seq: u64,
    /// Device index.
    pub device: u8,
    /// Events to add.
    pub events: u64,
    /// Failed requests to add.
    pub ooms: u64,
    /// Epochs that have ended, to add.
    pub epochs: u64,
    /// Steps that have ended, to add.
    pub steps: u64,
    /// The figures of the latest sample point, if any.
    pub latest: Option<Latest>,
    /// Latest measured bytes in use on the device, if any.
    pub device_used_bytes: Option<u64>,
    /// Latest measured allocator retries, if any.
    pub alloc_retries: Option<u64>,
    /// Whether the recorded segments are expandable, if any was recorded.
    pub expandable: Option<bool>,
}

/// Figures of a device at its latest sample point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Latest {
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Epoch.
    pub epoch: u32,
    /// Step.
    pub step: u64,
    /// Counters.
    pub counters: Counters,
    /// Peaks since the session began.
    pub peaks: Peaks,
    /// Whether they are exact.
    pub exact: bool,
}

/// A job's attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRow {
    /// Its key.
    pub key: i64,
    /// Its tenant's name.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// Restart count.
    pub attempt: u32,
    /// Earliest start of its sessions, ns since the Unix epoch.
    pub started_ns: u64,
    /// Ranks in the job, if a session reported it.
    pub world_size: Option<u32>,
    /// Labels of the first session that had any.
    pub labels: Vec<(String, String)>,
    /// How many attempts this run has.
    pub attempts: u32,
    /// The number of the run within the series of its name.
    pub run: u32,
    /// Whether the series has other runs.
    pub has_other_runs: bool,
    /// When it was started or imported: ns since the Unix epoch.
    pub arrived_ns: u64,
}

impl JobRow {
    /// The address of this run. It stays the same when further runs are stored.
    #[must_use]
    pub fn address(&self) -> Which {
        Which::Run(self.name.clone(), self.run)
    }

    /// The label to display: the name alone if it is unique.
    #[must_use]
    pub fn label(&self) -> String {
        if self.run > 1 || self.has_other_runs { self.address().to_string() } else { self.name.clone() }
    }
}

/// A session with its stored state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    /// Its key.
    pub key: SessionKey,
    /// Its job's key.
    pub job: i64,
    /// Its own description.
    pub info: SessionInfo,
    /// All items up to this one are stored or known to be missing.
    pub durable_seq: u64,
    /// When it was last heard from, ns since the Unix epoch (the daemon's clock).
    pub heard_ns: u64,
    /// Its end, if stored.
    pub end: Option<SessionEnd>,
    /// Events received, including those that have expired.
    pub events: u64,
    /// Payload bytes stored now.
    pub stored_bytes: u64,
    /// Items stored now.
    pub stored_items: u64,
    /// Events dropped, as far as reported.
    pub dropped: Dropped,
    /// Events removed by retention.
    pub expired_events: u64,
    /// Duplicate items.
    pub duplicates: u64,
    /// Missing items.
    pub missing_items: u64,
    /// Whether the environment sets expandable segments without effect; `info` has the setting in effect.
    pub overruled: bool,
}

impl SessionRow {
    /// Events in the store: those that were received and have not expired.
    #[must_use]
    pub fn events_stored(&self) -> u64 {
        self.events.saturating_sub(self.expired_events)
    }
}

/// A device of a session with its latest figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRow {
    /// The session.
    pub session: SessionKey,
    /// Its description.
    pub info: DeviceInfo,
    /// Events stored.
    pub events: u64,
    /// Failed requests.
    pub ooms: u64,
    /// Epochs that have ended.
    pub epochs: u64,
    /// Steps that have ended.
    pub steps: u64,
    /// The figures of the latest sample point.
    pub latest: Option<Latest>,
    /// Latest measured bytes in use on the device.
    pub device_used_bytes: Option<u64>,
    /// Latest measured allocator retries.
    pub alloc_retries: Option<u64>,
}

impl DeviceRow {
    /// Whether its memory is known. A process without recorded events has levels of zero.
    #[must_use]
    pub fn is_known(&self) -> bool {
        let holds = |latest: Latest| {
            latest.peaks.reserved_bytes > 0 || latest.counters.reserved_bytes > 0 || latest.counters.allocated_bytes > 0
        };
        self.events > 0 || self.latest.is_some_and(holds)
    }
}

/// An epoch's end on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochEndRow {
    /// The session.
    pub session: SessionKey,
    /// Device index.
    pub device: u8,
    /// Epoch that ended.
    pub epoch: u32,
    /// Its last step.
    pub step: u64,
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Events of the device before it.
    pub at_event: u64,
    /// Whether the figures are exact.
    pub exact: bool,
    /// Counters.
    pub counters: Counters,
    /// Peaks since the session began.
    pub peaks: Peaks,
    /// Peaks within the epoch.
    pub peaks_within: Peaks,
    /// The item that holds its site table.
    pub table_seq: u64,
}

/// A chunk without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRow {
    /// Its number within the session.
    pub seq: u64,
    /// The ranges that it covers.
    pub index: ItemIndex,
    /// Its levels.
    pub levels: ChunkLevels,
    /// Bytes of its payload.
    pub payload_bytes: u64,
}

/// An item with its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemRow {
    /// Its number within the session.
    pub seq: u64,
    /// `memctl.v1.ItemKind` as a number.
    pub kind: i32,
    /// Its bytes.
    pub payload: Bytes,
    /// Size before compression; 0 = not compressed.
    pub unpacked_bytes: u32,
    /// The ranges that it covers.
    pub index: ItemIndex,
}

/// A page of items of one kind, in order.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ItemPage {
    /// The undamaged items.
    pub items: Vec<ItemRow>,
    /// The number of the last item that was read, damaged or not, if more items may follow; otherwise `None`.
    pub looked_to: Option<u64>,
}

/// Limit of the payload bytes of one page, which only the last item may exceed. An item may have 8 MiB, and an analyser
/// reads three kinds at a time.
pub const PAGE_BYTES: u64 = 16 << 20;

impl ItemPage {
    /// The page for a query of at most `limit` items that returned `rows`, with `bytes` in total and `last` as the last
    /// number.
    pub(super) fn new(items: Vec<ItemRow>, limit: u32, rows: usize, bytes: u64, last: u64) -> Self {
        let full = rows >= limit as usize || bytes >= PAGE_BYTES;
        Self { items, looked_to: full.then_some(last) }
    }
}

/// Selects the items that overlap all of the given ranges (bounds included).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Selection {
    /// Times, ns since the Unix epoch.
    pub times_ns: Option<(u64, u64)>,
    /// Epochs.
    pub epochs: Option<(u32, u32)>,
    /// Events of the device's stream: from the first to the last, inclusive.
    pub events: Option<(u64, u64)>,
}

impl Selection {
    /// Whether an item is selected. A chunk covers `count` events of its device; an empty chunk covers its position.
    /// Another item of a device covers one event. An item of the whole session matches all events.
    ///
    /// The statements of the databases implement the same rule; the conformance suite compares them.
    #[must_use]
    pub fn overlaps(&self, index: &ItemIndex, is_chunk: bool) -> bool {
        let times = self.times_ns.is_none_or(|(from, to)| index.first_ns <= to && index.last_ns >= from);
        let epochs = self.epochs.is_none_or(|(from, to)| index.first_epoch <= to && index.last_epoch >= from);
        let events = self.events.is_none_or(|(from, to)| {
            let last = index.first_event.saturating_add(if is_chunk { index.count.saturating_sub(1) } else { 0 });
            index.device.is_none() || (index.first_event <= to && last >= from)
        });
        times && epochs && events
    }
}

impl Append {
    /// Checks that this can be stored: everything that a database orders or adds fits 63 bits, items ascend, chunks
    /// have a device and levels, and gaps are in order and below the new durable seq.
    ///
    /// # Errors
    /// A sentence about the first fault. A store refuses the same appends.
    pub fn check(&self) -> Result<(), String> {
        const MAX: u64 = i64::MAX as u64;
        let fits =
            |what: &str, value: u64| if value <= MAX { Ok(()) } else { Err(format!("{what} {value} is beyond 2^63")) };
        fits("durable seq", self.durable_seq)?;
        let mut before = 0;
        for item in &self.items {
            fits("item", item.seq)?;
            if item.seq <= before {
                return Err(format!("item {} comes after item {before}", item.seq));
            }
            before = item.seq;
            item.check().map_err(|what| format!("item {}: {what}", item.seq))?;
        }
        let mut before = 0;
        for gap in &self.gaps {
            if gap.first <= before || gap.last < gap.first || gap.last > self.durable_seq {
                return Err(format!("gap {}..={} is out of order or above {}", gap.first, gap.last, self.durable_seq));
            }
            before = gap.last;
        }
        for device in &self.devices {
            check_device(device.device)?;
        }
        for end in &self.epoch_ends {
            check_device(end.device)?;
            fits("time of an epoch's end", end.time_ns)?;
        }
        Ok(())
    }
}

impl NewItem {
    /// Whether it is a chunk of events.
    #[must_use]
    pub fn is_chunk(&self) -> bool {
        self.kind == ItemKind::Chunk
    }

    /// Checks that it can be stored; see [`Append::check`].
    ///
    /// # Errors
    /// A sentence about the fault.
    pub fn check(&self) -> Result<(), String> {
        let ItemIndex { device, first_ns, last_ns, first_event, count, .. } = self.index;
        if self.is_chunk() != self.levels.is_some() || (self.is_chunk() && device.is_none()) {
            return Err("a chunk has a device and levels, nothing else has levels".into());
        }
        if self.payload.len() > ITEM_BYTES_MAX {
            return Err(format!("{} bytes, at most {ITEM_BYTES_MAX} are taken", self.payload.len()));
        }
        device.map_or(Ok(()), check_device)?;
        for (what, value) in [("first time", first_ns), ("last time", last_ns)] {
            if i64::try_from(value).is_err() {
                return Err(format!("{what} {value} ns is beyond the year 2262"));
            }
        }
        match first_event.checked_add(count) {
            Some(end) if i64::try_from(end).is_ok() => Ok(()),
            _ => Err(format!("{count} events from event {first_event} on reach beyond 2^63")),
        }
    }
}

fn check_device(device: u8) -> Result<(), String> {
    if usize::from(device) < DEVICES_MAX {
        Ok(())
    } else {
        Err(format!("device {device}, there are at most {DEVICES_MAX}"))
    }
}

/// The retention policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Retention {
    /// Jobs without new data for longer than this are removed whole.
    pub age_ns: Option<u64>,
    /// Limit of the bytes of all jobs, rows included. The largest user loses data first.
    pub bytes: Option<u64>,
    /// Limit of the bytes of one attempt of a job.
    pub bytes_per_job: Option<u64>,
    /// Limit of the bytes of the jobs of one tenant.
    pub bytes_per_tenant: Option<u64>,
}

/// Counts of removed data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Expired {
    /// Jobs removed whole.
    pub jobs: u64,
    /// Sessions removed whole.
    pub sessions: u64,
    /// Chunks removed.
    pub chunks: u64,
    /// Events in them.
    pub events: u64,
    /// Items removed, chunks among them.
    pub items: u64,
    /// Payload bytes freed.
    pub bytes: u64,
}

/// The analyser's state of a session after a given item, in a form that the store does not decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRow {
    /// The number of the last item that the state includes.
    pub seq: u64,
    /// The name of the form. A program that does not know the form reads the items instead.
    pub form: String,
    /// The state.
    pub state: Bytes,
}

/// Sums over everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Totals {
    /// Jobs (attempts).
    pub jobs: u64,
    /// Sessions.
    pub sessions: u64,
    /// Events stored, including those that have expired.
    pub events: u64,
    /// Payload bytes stored now.
    pub stored_bytes: u64,
    /// Duplicate items.
    pub duplicates: u64,
    /// Missing items.
    pub missing_items: u64,
    /// Events removed by retention.
    pub expired_events: u64,
}
