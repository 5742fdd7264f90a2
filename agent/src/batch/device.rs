//! Processes the events of one device. The block map follows them, the encoder packs them into chunks, and the rollup
//! aggregates them.
//!
//! Guarantees: `next_event` counts exactly the events that went into chunks. A hole (dropped events) is always at a
//! chunk's boundary, and the chunk after it announces it. From a hole to the next keyframe, every figure is marked as
//! not exact.
//!
//! (Over 400 lines: chunks, tables and keyframes of a device are cut from one state.)

use std::collections::HashMap;

use bytes::Bytes;
use memctl_analysis::{Birth, BlockMap, LiveSample};
use memctl_model::limits::{CHUNK_EVENTS_MAX, KEYFRAME_CHUNKS};
use memctl_model::{
    AllocatorSettings, BlockState, BlockUse, Boundary, DeviceIndex, Event, Keyframe, KeyframeReason, Levels, MarkKind,
    Peaks, Phase, Phases, Rollup, Sample, SiteRow, SiteTable, StackId,
};
use memctl_proto::chunk::{ChunkError, ChunkMeta, Encoder};

/// The output of a device for the batch.
pub(super) enum Output {
    /// An encoded chunk with its number of events.
    Chunk(Bytes, u64),
    /// The state of the device.
    Keyframe(Keyframe),
}

/// The rows that a table has. On the wire, the first table of a batch has all rows, and the others have only the
/// changed rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    /// All rows.
    All,
    /// The rows that changed since the device's last table. A removed row has 0 blocks.
    Changed,
}

/// Number of chunks after which a keyframe is written, regardless of the number of live blocks. A replay reads at most
/// this many chunks one by one.
const KEYFRAME_CHUNKS_MOST: u64 = 256;

/// The pipeline of one device.
pub(super) struct Device {
    device: DeviceIndex,
    encoder: Encoder,
    map: BlockMap,
    birth: Birth,
    phases: Phases,
    next_event: u64,
    rollup: Rollup,
    /// Number of events dropped since the last chunk.
    hole: u64,
    /// Number of events that could not be encoded.
    lost: u64,
    exact: bool,
    chunks_since_keyframe: u64,
    events_since_keyframe: u64,
    /// Peaks since the last end of a step, an epoch or a window, see [`Self::peaks_since`].
    step_peaks: Peaks,
    epoch_peaks: Peaks,
    window_peaks: Peaks,
    last_ns: u64,
    /// The allocator's counters when they were last read. They are used in place of events when there are no events.
    counted: Option<Sample>,
    /// The limit that the program set on its allocator.
    limit_bytes: Option<u64>,
    /// The table of the last end of a step or of an evaluation, without rows. The map keeps its rows.
    last_boundary: Option<SiteTable>,
}

impl Device {
    pub(super) fn new(
        device: DeviceIndex,
        settings: &AllocatorSettings,
        resolution_ns: u32,
    ) -> Result<Self, ChunkError> {
        Ok(Self {
            device,
            encoder: Encoder::new(resolution_ns)?,
            map: BlockMap::new(settings),
            birth: Birth::default(),
            phases: Phases::default(),
            next_event: 0,
            rollup: Rollup::default(),
            hole: 0,
            lost: 0,
            limit_bytes: None,
            exact: true,
            chunks_since_keyframe: 0,
            events_since_keyframe: 0,
            step_peaks: Peaks::default(),
            epoch_peaks: Peaks::default(),
            window_peaks: Peaks::default(),
            last_ns: 0,
            counted: None,
            last_boundary: None,
        })
    }

    /// Takes one event. Outputs the chunk when it is full.
    #[inline]
    pub(super) fn event(&mut self, event: &Event, out: &mut Vec<Output>) {
        if self.encoder.is_empty() {
            self.begin_rollup(event);
        }
        self.map.apply(event, self.birth);
        if let Err(error) = self.encoder.push(event) {
            return self.lose(1, &error);
        }
        let levels = self.map.levels();
        self.rollup.counts[event.action as usize] += 1;
        lower(&mut self.rollup.min, levels);
        raise(&mut self.rollup.max, levels);
        self.last_ns = event.time_ns;
        if self.encoder.len() >= CHUNK_EVENTS_MAX {
            self.flush(out);
        }
    }

    /// Records that events were dropped at this point.
    pub(super) fn hole(&mut self, dropped: u64, out: &mut Vec<Output>) {
        self.flush(out);
        self.hole += dropped;
        self.exact = false;
    }

    fn begin_rollup(&mut self, event: &Event) {
        let levels = self.map.levels();
        self.rollup = Rollup {
            first_ns: event.time_ns,
            first_epoch: self.birth.epoch,
            first_step: self.birth.step,
            start: levels,
            min: levels,
            max: levels,
            dropped_before: std::mem::take(&mut self.hole),
            exact: self.exact,
            ..Rollup::default()
        };
    }

    /// Closes the open chunk, if there is one.
    pub(super) fn flush(&mut self, out: &mut Vec<Output>) {
        let events = self.encoder.len() as u64;
        if events == 0 {
            return;
        }
        let rollup = Rollup {
            last_ns: self.last_ns,
            last_epoch: self.birth.epoch,
            last_step: self.birth.step,
            end: self.map.levels(),
            ..self.rollup
        };
        let meta = ChunkMeta { device: self.device, first_event: self.next_event, rollup };
        match self.encoder.finish(&meta) {
            Ok(bytes) => {
                self.next_event += events;
                out.push(Output::Chunk(bytes.into(), events));
            }
            Err(error) => return self.lose(events, &error),
        }
        self.chunks_since_keyframe += 1;
        self.events_since_keyframe += events;
        if self.is_keyframe_due() && self.exact {
            (self.chunks_since_keyframe, self.events_since_keyframe) = (0, 0);
            out.push(Output::Keyframe(self.keyframe(KeyframeReason::Periodic)));
        }
    }

    /// Whether a keyframe is due. The cost of a keyframe grows with the number of blocks, so the next one follows after
    /// twice as many events as blocks. A large number of small chunks, which were cut because of time, also makes one
    /// due, so that a replay does not have to read them all.
    fn is_keyframe_due(&self) -> bool {
        self.chunks_since_keyframe >= KEYFRAME_CHUNKS
            && (self.events_since_keyframe >= 2 * self.map.allocated_blocks()
                || self.chunks_since_keyframe >= KEYFRAME_CHUNKS_MOST)
    }

    /// Counts events as lost because the encoder failed. This would be a fault of the encoder, because this module
    /// keeps its limits.
    fn lose(&mut self, events: u64, error: &ChunkError) {
        tracing::error!(device = self.device.0, events, %error, "events could not be encoded and are lost");
        self.hole += events;
        self.lost += events;
        self.exact = false;
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    fn keyframe(&self, reason: KeyframeReason) -> Keyframe {
        self.map.keyframe(self.device, self.next_event, self.last_ns, reason)
    }

    /// Outputs the current state, after all events so far. This is used after an out-of-memory event or a failure.
    pub(super) fn state(&mut self, reason: KeyframeReason, out: &mut Vec<Output>) {
        self.flush(out);
        out.push(Output::Keyframe(self.keyframe(reason)));
    }

    /// Whether the device has had any events.
    pub(super) fn is_used(&self) -> bool {
        self.last_ns > 0
    }

    /// The program's own limit, after it set this one.
    pub(super) fn limit(&mut self, set: Option<u64>) -> Option<u64> {
        self.limit_bytes = set.or(self.limit_bytes);
        self.limit_bytes
    }

    /// Takes the allocator's counters. The allocator reports its peak since the process began. If that has grown, it is
    /// also the peak since the last reading.
    pub(super) fn counted(&mut self, sample: &Sample) {
        if sample.allocated_bytes.is_none() && sample.reserved_bytes.is_none() {
            return;
        }
        let before = self.counted.replace(*sample);
        let within = |now: Option<u64>, peak: Option<u64>, before: Option<u64>| match (peak, before) {
            (Some(peak), Some(before)) if peak > before => peak,
            (Some(peak), None) => peak,
            _ => now.unwrap_or(0),
        };
        let before = before.unwrap_or_default();
        self.raise_peaks(Peaks {
            allocated_bytes: within(sample.allocated_bytes, sample.peak_allocated_bytes, before.peak_allocated_bytes),
            reserved_bytes: within(sample.reserved_bytes, sample.peak_reserved_bytes, before.peak_reserved_bytes),
        });
    }

    /// Whether the allocator's own counters are the only source.
    pub(super) fn is_only_counted(&self) -> bool {
        !self.is_used() && self.counted.is_some()
    }

    /// The stack of the live block at an address; [`StackId::NONE`] when there is no such block.
    pub(super) fn block_stack(&self, addr: u64) -> StackId {
        self.map.block_stack(addr)
    }

    /// Replaces the state by one that was read. Figures from here on are exact again.
    pub(super) fn restore(&mut self, mut keyframe: Keyframe, out: &mut Vec<Output>) {
        self.flush(out);
        self.carry_origins(&mut keyframe);
        keyframe.device = self.device;
        keyframe.at_event = self.next_event;
        self.map.restore(&keyframe);
        self.exact = true;
        (self.chunks_since_keyframe, self.events_since_keyframe) = (0, 0);
        self.last_ns = self.last_ns.max(keyframe.time_ns);
        out.push(Output::Keyframe(keyframe));
    }

    /// Copies the origins of known blocks into a state that was read from an allocator, which has no stacks. A block
    /// that was known at the same address with the same request keeps its origin. It is nearly always the same block,
    /// and the bytes are exact in any case.
    fn carry_origins(&self, keyframe: &mut Keyframe) {
        let known = self.keyframe(KeyframeReason::Periodic);
        let origins: HashMap<u64, BlockState> = blocks(&known).map(|block| (block.addr, *block)).collect();
        for block in keyframe.segments.iter_mut().flat_map(|segment| &mut segment.blocks).chain(&mut keyframe.loose) {
            let origin = origins.get(&block.addr).filter(|origin| origin.requested == block.requested);
            if let Some(origin) = origin.filter(|_| block.usage != BlockUse::Inactive && !block.stack.is_some()) {
                block.stack = origin.stack;
                (block.birth_epoch, block.birth_step, block.birth_phase) =
                    (origin.birth_epoch, origin.birth_step, origin.birth_phase);
            }
        }
    }

    /// Applies a mark. Returns a site table if the mark is a boundary.
    pub(super) fn mark(&mut self, kind: &MarkKind, time_ns: u64, rows: Rows) -> Option<SiteTable> {
        match *kind {
            MarkKind::EpochBegin(epoch) => {
                self.birth.epoch = epoch;
                None
            }
            MarkKind::StepBegin(step) => {
                self.birth.step = step;
                None
            }
            MarkKind::StepEnd(step) => {
                self.birth.step = step;
                let peaks_within = self.peaks_since(Boundary::StepEnd);
                let table = self.table(Boundary::StepEnd, time_ns, peaks_within);
                self.last_boundary = Some(table.clone());
                let rows = self.rows(rows);
                self.map.keep_site_rows();
                Some(SiteTable { rows, ..table })
            }
            MarkKind::PhaseBegin(phase) => {
                self.birth.phase = self.phases.begin(phase);
                None
            }
            MarkKind::PhaseEnd(phase) => {
                self.birth.phase = self.phases.end(phase);
                // The end of an evaluation is not a boundary, but an epoch may end with its state. The function that
                // evaluates may not have returned: `model.train()` is often its last line but one.
                if phase == Phase::Eval && self.evaluations_keep_memory() {
                    self.settled();
                }
                None
            }
            MarkKind::EpochEnd(epoch) => {
                self.birth.epoch = epoch;
                Some(self.site_table(Boundary::EpochEnd, time_ns, rows))
            }
            MarkKind::WindowEnd(_) => Some(self.site_table(Boundary::WindowEnd, time_ns, rows)),
            _ => None,
        }
    }

    /// The site table of the current state.
    pub(super) fn site_table(&mut self, boundary: Boundary, time_ns: u64, rows: Rows) -> SiteTable {
        let peaks_within = self.peaks_since(boundary);
        SiteTable { rows: self.rows(rows), ..self.table(boundary, time_ns, peaks_within) }
    }

    fn rows(&mut self, rows: Rows) -> Vec<SiteRow> {
        match rows {
            Rows::All => self.map.take_site_rows(),
            Rows::Changed => self.map.site_changes(),
        }
    }

    /// Peaks since the last boundary of the same kind. Boundaries of other kinds may be in between.
    fn peaks_since(&mut self, boundary: Boundary) -> Peaks {
        let within = self.map.peaks_within();
        self.map.reset_peaks_within();
        if !self.is_only_counted() {
            // Without events the map is empty, so the counters are used.
            self.raise_peaks(within);
        }
        match boundary {
            Boundary::StepEnd => std::mem::take(&mut self.step_peaks),
            Boundary::EpochEnd => std::mem::take(&mut self.epoch_peaks),
            Boundary::WindowEnd => std::mem::take(&mut self.window_peaks),
            Boundary::End => self.epoch_peaks,
        }
    }

    fn raise_peaks(&mut self, within: Peaks) {
        for peaks in [&mut self.step_peaks, &mut self.epoch_peaks, &mut self.window_peaks] {
            peaks.allocated_bytes = peaks.allocated_bytes.max(within.allocated_bytes);
            peaks.reserved_bytes = peaks.reserved_bytes.max(within.reserved_bytes);
        }
    }

    /// Keeps the current state, in which gradients are freed or an evaluation's data has ended, as that of the last
    /// boundary. It is not sent.
    ///
    /// Within an evaluation it is kept only if evaluations keep memory. Otherwise what the evaluation still holds is
    /// freed before the next epoch, and the end of the last epoch would be higher than those of all others.
    pub(super) fn settled(&mut self) {
        if self.birth.phase == Some(Phase::Eval) && !self.evaluations_keep_memory() {
            return;
        }
        if let Some(boundary) = &self.last_boundary {
            // (A device without events has no last event, so the boundary's time is used.)
            let time_ns = self.last_ns.max(boundary.time_ns);
            self.last_boundary = Some(self.table(Boundary::StepEnd, time_ns, Peaks::default()));
            self.map.keep_site_rows();
        }
    }

    /// Whether this epoch's evaluation has live blocks of a stack that has some of an earlier epoch's evaluation as well.
    fn evaluations_keep_memory(&self) -> bool {
        let rows = self.map.site_rows();
        let of_evaluations = rows.iter().filter(|row| row.birth_phase == Some(Phase::Eval));
        let mut earlier = None;
        // (The rows are sorted by stack, then by epoch.)
        of_evaluations.into_iter().any(|row| {
            let keeps = row.birth_epoch == self.birth.epoch && earlier == Some(row.stack);
            if row.birth_epoch < self.birth.epoch {
                earlier = Some(row.stack);
            }
            keeps
        })
    }

    /// The table of an epoch that ended at the last boundary, with all rows. It is returned only once.
    pub(super) fn ended(&mut self, epoch: u32) -> Option<SiteTable> {
        let table = self.last_boundary.take()?;
        let peaks_within = std::mem::take(&mut self.epoch_peaks);
        Some(SiteTable { boundary: Boundary::EpochEnd, epoch, peaks_within, rows: self.map.kept_site_rows(), ..table })
    }

    /// A table without rows.
    fn table(&mut self, boundary: Boundary, time_ns: u64, peaks_within: Peaks) -> SiteTable {
        let (mut counters, mut peaks) = (self.map.counters_since(), self.map.peaks());
        if self.is_only_counted()
            && let Some(sample) = self.counted
        {
            counters.allocated_bytes = sample.allocated_bytes.unwrap_or(0);
            counters.active_bytes = sample.active_bytes.or(sample.allocated_bytes).unwrap_or(0);
            counters.reserved_bytes = sample.reserved_bytes.unwrap_or(0);
            peaks.allocated_bytes = sample.peak_allocated_bytes.or(sample.allocated_bytes).unwrap_or(0);
            peaks.reserved_bytes = sample.peak_reserved_bytes.or(sample.reserved_bytes).unwrap_or(0);
        }
        SiteTable {
            device: self.device,
            boundary,
            epoch: self.birth.epoch,
            step: self.birth.step,
            time_ns,
            at_event: self.next_event + self.encoder.len() as u64,
            exact: self.exact,
            counters,
            peaks,
            peaks_within,
            found: false,
            rows: Vec::new(),
            private_pools: self.map.private_pools(),
        }
    }

    /// The oldest live blocks of the given stacks. `stacks` is sorted.
    pub(super) fn oldest(&self, stacks: &[StackId], most: usize) -> LiveSample {
        self.map.oldest(stacks, most)
    }

    /// Number of rows that a whole table would have now.
    pub(super) fn site_count(&self) -> usize {
        self.map.site_count()
    }

    /// Time of the device's last event or counters.
    pub(super) fn last_ns(&self) -> u64 {
        self.last_ns.max(self.counted.map_or(0, |sample| sample.time_ns))
    }

    pub(super) fn waiting_events(&self) -> u64 {
        self.encoder.len() as u64
    }

    pub(super) fn anomalies(&self) -> memctl_analysis::Anomalies {
        self.map.anomalies()
    }
}

/// The blocks of a state that are in use.
fn blocks(keyframe: &Keyframe) -> impl Iterator<Item = &BlockState> {
    let all = keyframe.segments.iter().flat_map(|segment| &segment.blocks).chain(&keyframe.loose);
    all.filter(|block| block.usage != BlockUse::Inactive)
}

#[inline]
fn raise(to: &mut Levels, levels: Levels) {
    to.allocated_bytes = to.allocated_bytes.max(levels.allocated_bytes);
    to.active_bytes = to.active_bytes.max(levels.active_bytes);
    to.reserved_bytes = to.reserved_bytes.max(levels.reserved_bytes);
}

#[inline]
fn lower(to: &mut Levels, levels: Levels) {
    to.allocated_bytes = to.allocated_bytes.min(levels.allocated_bytes);
    to.active_bytes = to.active_bytes.min(levels.active_bytes);
    to.reserved_bytes = to.reserved_bytes.min(levels.reserved_bytes);
}
