//! The batch stage turns events, marks, stacks and samples into items that are ready to be numbered.
//!
//! Guarantees: a pure state machine (no clock, no thread, no I/O); stacks precede the items that refer to them.
//!
//! Refuses: to hold more than a bounded amount; it flushes by count, by rows and on [`Batcher::linger`]. Also refuses
//! to make an item over the wire's limits; such an item is left out and logged.
//! (Over 400 lines: input, waiting data and output share one state.)

pub(crate) mod cut;
mod device;
#[cfg(not(target_family = "wasm"))]
pub mod note;
#[cfg(not(target_family = "wasm"))]
pub(crate) mod translate;
#[cfg(not(target_family = "wasm"))]
mod windows;
#[cfg(not(target_family = "wasm"))]
pub mod worker;

use std::time::Duration;

use device::{Device, Output, Rows};
use memctl_analysis::LiveSample;
use memctl_model::limits::{ITEM_BYTES_MAX, ITEM_UNPACKED_BYTES_MAX};
use memctl_model::{
    Action, AllocatorSettings, Boundary, DeviceIndex, Dropped, Event, Frame, Keyframe, KeyframeReason, Mark, MarkKind,
    Sample, SessionEnd, SiteTable, StackId,
};
use memctl_proto::StackSender;
use memctl_proto::chunk::ChunkError;
use memctl_proto::convert::site_tables::{BATCH_ROWS_MAX, ROWS_MAX};
use memctl_proto::item::Packed;

use crate::source_paths::{SourcePaths, Treated};
use crate::uplink::outgoing::Outgoing;

/// Number of marks that make a batch. The item has about 4 KiB.
const MARKS_FLUSH: usize = 4_096;
/// Number of site tables that make a batch. The differences between neighbouring tables compress best together.
const TABLES_FLUSH: usize = 64;
/// A batch has one table for each of this many mean rows, if that is more than [`TABLES_FLUSH`]. The first table is
/// whole, and the other tables share its cost.
const ROWS_PER_TABLE: usize = 256;
/// Number of changed rows (2 MiB) at which they are sent. Rows of whole tables do not count.
const ROWS_FLUSH: usize = 65_536;
/// Number of rows after unfolding at which a batch is sent. One more table of the largest size stays below the wire's
/// limit.
const UNFOLDED_FLUSH: usize = BATCH_ROWS_MAX - ROWS_MAX;
/// Mean rows of a table for each additional linger time that tables wait. The first table of a batch is whole, so large
/// tables wait for more tables.
const ROWS_PER_LINGER: usize = 16_384;
/// Maximum number of additional linger times.
const LINGERS_MOST: usize = 10;
/// Number of samples that make a batch.
const SAMPLES_FLUSH: usize = 1_024;
/// Bytes of new stacks that make a batch. With one more stack (512 frames of 8 KiB names) the batch stays below an
/// item's limit.
const STACKS_FLUSH_BYTES: usize = 1 << 20;

/// The configuration of the batch stage.
#[derive(Clone, Debug)]
pub struct BatchConfig {
    /// Resolution of event times.
    pub resolution_ns: u32,
    /// The allocator's settings. They decide where blocks are split.
    pub settings: AllocatorSettings,
    /// Devices; arguments named `place` are indices into this list.
    pub devices: Vec<DeviceIndex>,
    /// How long recorded data may wait before it is sent. With `None`, items are cut by content alone (for recordings).
    pub linger: Option<Duration>,
    /// Boundaries that were inferred because no marks give them. Their tables are marked as found.
    pub found: Vec<Boundary>,
    /// How paths of source files are treated before they leave the host.
    pub source_paths: SourcePaths,
}

/// The batch stage of one session.
pub struct Batcher {
    config: BatchConfig,
    devices: Vec<Device>,
    stacks: StackSender,
    treated: Treated,
    marks: Vec<Mark>,
    /// Tables that wait, in the wire's form. The first table of each device is whole. The others have only the changed
    /// rows.
    tables: Vec<SiteTable>,
    /// Rows of the tables that have only changes.
    changed_rows: usize,
    /// Rows of all waiting tables after unfolding.
    unfolded_rows: usize,
    /// Whether a device has a waiting table, by place.
    has_table: Vec<bool>,
    /// Number of linger times that the tables have waited.
    lingers: usize,
    samples: Vec<Sample>,
    ready: Vec<Outgoing>,
    scratch: Vec<Output>,
}

impl Batcher {
    /// An empty stage.
    ///
    /// # Errors
    /// zstd could not create a context (out of memory).
    pub fn new(config: BatchConfig) -> Result<Self, ChunkError> {
        let devices: Vec<Device> = config
            .devices
            .iter()
            .map(|&device| Device::new(device, &config.settings, config.resolution_ns))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            treated: Treated::new(config.source_paths.clone()),
            config,
            has_table: vec![false; devices.len()],
            devices,
            stacks: StackSender::default(),
            marks: Vec::new(),
            tables: Vec::new(),
            changed_rows: 0,
            unfolded_rows: 0,
            lingers: 0,
            samples: Vec::new(),
            ready: Vec::new(),
            scratch: Vec::new(),
        })
    }

    /// Takes an event of a device. After an out-of-memory event, a live session records the device's state.
    #[inline]
    pub fn event(&mut self, place: usize, event: &Event) {
        self.devices[place].event(event, &mut self.scratch);
        if event.action == Action::Oom && self.config.linger.is_some() {
            self.devices[place].state(KeyframeReason::OutOfMemory, &mut self.scratch);
        }
        if !self.scratch.is_empty() {
            self.collect();
        }
    }

    /// Notes that events of a device were dropped at this point.
    pub fn hole(&mut self, place: usize, dropped: u64) {
        self.devices[place].hole(dropped, &mut self.scratch);
        self.collect();
    }

    /// Replaces a device's state by one that was read at this point.
    pub fn restore(&mut self, place: usize, keyframe: Keyframe) {
        self.devices[place].restore(keyframe, &mut self.scratch);
        self.collect();
    }

    /// The stack of a device's live block; [`StackId::NONE`] when there is no such block.
    #[must_use]
    pub fn block_stack(&self, place: usize, addr: u64) -> StackId {
        self.devices[place].block_stack(addr)
    }

    /// Adds the next stack to the dictionary.
    pub fn stack(&mut self, frames: &[Frame]) -> StackId {
        let id = match self.treated.frames(frames) {
            Some(treated) => self.stacks.add(&treated),
            None => self.stacks.add(frames),
        };
        if self.stacks.waiting_bytes() >= STACKS_FLUSH_BYTES {
            self.flush_stacks();
        }
        id
    }

    /// Adds a mark to the session. Devices pass it at their own positions, see [`Self::device_mark`].
    pub fn mark(&mut self, mark: Mark) {
        let kind = match mark.kind {
            MarkKind::RegionBegin(name) => MarkKind::RegionBegin(self.treated.text(name)),
            MarkKind::RegionEnd(name) => MarkKind::RegionEnd(self.treated.text(name)),
            MarkKind::Note(name) => MarkKind::Note(self.treated.text(name)),
            other => other,
        };
        self.marks.push(Mark { kind, ..mark });
        if self.marks.len() >= MARKS_FLUSH {
            self.flush_marks();
        }
    }

    /// A device's stream has reached a mark.
    pub fn device_mark(&mut self, place: usize, mark: &Mark) {
        let rows = self.rows_of(place);
        let Some(mut table) = self.devices[place].mark(&mark.kind, mark.time_ns, rows) else { return };
        table.found = self.config.found.contains(&table.boundary);
        self.add_table(place, table);
        // Users wait for the end of an epoch, so its table is sent at once. It is the last table of its item.
        let epoch = matches!(mark.kind, MarkKind::EpochEnd(_));
        let is_much = self.changed_rows >= ROWS_FLUSH || self.unfolded_rows >= UNFOLDED_FLUSH;
        if epoch || is_much || self.tables.len() >= TABLES_FLUSH.max(self.mean_rows() / ROWS_PER_TABLE) {
            self.flush_tables();
        }
    }

    /// Mean rows of a waiting table after unfolding.
    fn mean_rows(&self) -> usize {
        self.unfolded_rows / self.tables.len().max(1)
    }

    fn rows_of(&self, place: usize) -> Rows {
        if self.has_table[place] { Rows::Changed } else { Rows::All }
    }

    fn add_table(&mut self, place: usize, table: SiteTable) {
        if std::mem::replace(&mut self.has_table[place], true) {
            self.changed_rows += table.rows.len();
        }
        self.unfolded_rows += self.devices[place].site_count();
        self.tables.push(table);
    }

    /// Ends a window on every device that is in use, after what was taken from it so far.
    pub fn window_end(&mut self, mark: Mark) {
        for place in 0..self.devices.len() {
            if self.devices[place].is_used() || self.devices[place].is_only_counted() {
                self.device_mark(place, &mark);
            }
        }
        self.mark(mark);
    }

    /// Whether any device has recorded events or counters.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.devices.iter().any(|device| device.is_used() || device.is_only_counted())
    }

    /// Time of the last event of any device.
    #[must_use]
    pub fn last_ns(&self) -> u64 {
        self.devices.iter().map(Device::last_ns).max().unwrap_or(0)
    }

    /// A device's stream has reached the point where gradients had been freed.
    pub fn device_settled(&mut self, place: usize) {
        self.devices[place].settled();
    }

    /// Records an end that was not seen when it happened, at the device's last boundary. The table of that boundary is
    /// sent for it. Returns that boundary's time; `None` when the device had no boundary.
    pub fn device_ended(&mut self, place: usize, mark: &Mark) -> Option<u64> {
        let MarkKind::EpochEnd(epoch) = mark.kind else { return None };
        let Some(table) = self.devices[place].ended(epoch) else {
            self.device_mark(place, mark);
            return None;
        };
        let time_ns = table.time_ns;
        // This table is whole and older than the latest changes, so it gets its own item.
        self.flush_tables();
        self.add_table(place, table);
        self.flush_tables();
        Some(time_ns)
    }

    /// Adds a measurement.
    pub fn sample(&mut self, mut sample: Sample) {
        if let Some(place) = self.config.devices.iter().position(|&device| device == sample.device) {
            // The program sets its limit once; each later measurement repeats it.
            sample.limit_bytes = self.devices[place].limit(sample.limit_bytes);
            self.devices[place].counted(&sample);
        }
        self.samples.push(sample);
        if self.samples.len() >= SAMPLES_FLUSH {
            self.flush_samples();
        }
    }

    /// Sends what waits, after the linger time has passed. Large tables wait a little longer for more tables.
    pub fn linger(&mut self) {
        self.lingers += usize::from(!self.tables.is_empty());
        let worth = (self.mean_rows() / ROWS_PER_LINGER).min(LINGERS_MOST);
        self.flush_events();
        if self.lingers > worth {
            self.flush_tables();
        }
    }

    /// Sends everything that waits.
    pub fn flush(&mut self) {
        self.flush_events();
        self.flush_tables();
    }

    fn flush_events(&mut self) {
        self.flush_stacks();
        for device in &mut self.devices {
            device.flush(&mut self.scratch);
        }
        self.collect();
        self.flush_marks();
        self.flush_samples();
    }

    /// Ends the session: calls [`Self::close`], adds the item with the session's end, and returns that end.
    pub fn finish(&mut self, time_ns: u64, produced: u64, dropped: Dropped, failure: Option<String>) -> SessionEnd {
        self.close(failure.is_some());
        let end = self.last_word(time_ns, produced, dropped, failure);
        self.ready.push(Outgoing { packed: Packed::end(&end), events: 0 });
        end
    }

    /// Ends the input: sends a last site table of every device and everything that waits. After a failure, a live
    /// session also sends each device's state.
    pub fn close(&mut self, failed: bool) {
        for place in 0..self.devices.len() {
            let rows = self.rows_of(place);
            let at = self.devices[place].last_ns().max(1);
            let table = self.devices[place].site_table(Boundary::End, at, rows);
            self.add_table(place, table);
            let device = &mut self.devices[place];
            if failed && device.is_used() && self.config.linger.is_some() {
                device.state(KeyframeReason::Failure, &mut self.scratch);
            }
        }
        self.collect();
        self.flush();
    }

    /// The end of a session that was closed, as it is sent.
    #[must_use]
    pub fn last_word(&self, time_ns: u64, produced: u64, dropped: Dropped, failure: Option<String>) -> SessionEnd {
        let (mut unknown_frees, mut contradictions) = (0, 0);
        for device in &self.devices {
            let anomalies = device.anomalies();
            unknown_frees += anomalies.unknown_frees;
            contradictions += anomalies.contradictions;
        }
        let dropped = Dropped { shutdown: dropped.shutdown + self.lost(), ..dropped };
        let failure = failure.map(|failure| self.treated.text(failure));
        SessionEnd { time_ns, produced, dropped, failure, unknown_frees, contradictions }
    }

    /// The oldest live blocks of the given stacks on all devices. `stacks` is sorted.
    #[must_use]
    pub fn oldest(&self, stacks: &[StackId], most: usize) -> LiveSample {
        let mut sample = LiveSample::default();
        for device in &self.devices {
            sample.add(device.oldest(stacks, most), most);
        }
        sample
    }

    /// The items that are ready, in order.
    pub fn take(&mut self) -> Vec<Outgoing> {
        std::mem::take(&mut self.ready)
    }

    /// Number of events that wait for their chunk to fill.
    #[must_use]
    pub fn waiting_events(&self) -> u64 {
        self.devices.iter().map(Device::waiting_events).sum::<u64>()
            + self.ready.iter().map(|item| item.events).sum::<u64>()
    }

    /// Number of events that could not be encoded.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.devices.iter().map(Device::lost).sum()
    }

    /// The configuration of the stage.
    #[must_use]
    pub fn config(&self) -> &BatchConfig {
        &self.config
    }

    fn collect(&mut self) {
        let outputs = std::mem::take(&mut self.scratch);
        if !outputs.is_empty() {
            // The dictionary is sent first, so that a reader of the chunk can name its stacks.
            self.flush_stacks();
        }
        for output in outputs {
            match output {
                Output::Chunk(bytes, events) => self.emit(Packed::chunk(bytes), events),
                Output::Keyframe(keyframe) => self.emit(Packed::keyframe(&keyframe), 0),
            }
        }
    }

    /// Adds an item to the ready ones. An item that a daemon would refuse (a keyframe of a million blocks) is left out,
    /// because it would end the session.
    fn emit(&mut self, packed: Packed, events: u64) {
        let too_large =
            packed.payload.len() > ITEM_BYTES_MAX || packed.unpacked_bytes as usize > ITEM_UNPACKED_BYTES_MAX;
        if too_large && events == 0 {
            tracing::error!(
                kind = packed.kind.as_str_name(),
                bytes = packed.payload.len(),
                "an item over the limit was left out"
            );
        } else {
            self.ready.push(Outgoing { packed, events });
        }
    }

    fn flush_stacks(&mut self) {
        if let Some(batch) = self.stacks.take() {
            self.emit(Packed::stacks(&batch), 0);
        }
    }

    fn flush_marks(&mut self) {
        if !self.marks.is_empty() {
            let packed = Packed::marks(&self.marks, self.config.resolution_ns);
            self.emit(packed, 0);
            self.marks.clear();
        }
    }

    fn flush_tables(&mut self) {
        if !self.tables.is_empty() {
            self.flush_stacks();
            self.emit(Packed::changed_site_tables(&self.tables), 0);
            self.tables.clear();
            (self.changed_rows, self.unfolded_rows, self.lingers) = (0, 0, 0);
            self.has_table.fill(false);
        }
    }

    fn flush_samples(&mut self) {
        if !self.samples.is_empty() {
            self.emit(Packed::samples(&self.samples), 0);
            self.samples.clear();
        }
    }
}
