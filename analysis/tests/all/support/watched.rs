//! A process in the form in which the judge sees it: hand-made boundaries with their live memory, and a clock of its
//! own.

#![allow(dead_code, reason = "each test program uses its part of this module")]

use memctl_analysis::judge::{Activity, RankFacts, RankWatch, findings};
use memctl_model::{
    Boundary, Counters, DeviceIndex, Finding, Frame, Peaks, Phase, PoolRow, Severity, SiteRow, SiteTable, StackId,
};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

pub fn frame(function: &str, file: &str, line: u32) -> Frame {
    Frame { function: function.into(), file: file.into(), line }
}

/// A frame of torch's own.
pub fn torch(function: &str, file: &str) -> Frame {
    frame(function, &format!("/opt/lib/site-packages/torch/{file}"), 100)
}

/// The live memory of a stack: phase of birth, blocks and bytes.
pub type Row = (u32, Option<Phase>, u64, u64);

/// A hand-made process; see the module's documentation.
pub struct Process {
    pub watch: RankWatch,
    pub time_ns: u64,
    pub events: u64,
    pub epoch: u32,
    pub step: u64,
    /// Bytes that a step needs at its peak in addition to the live memory.
    pub peak_bytes: u64,
    /// Bytes that are reserved beyond that peak.
    pub unused_bytes: u64,
    pub pools: Vec<PoolRow>,
}

impl Process {
    /// A process of a rank with stacks 1, 2, …, innermost frame first.
    pub fn new(rank: u32, stacks: &[Vec<Frame>]) -> Self {
        let mut watch = RankWatch::new(RankFacts { rank, device_total_bytes: Some(80 * GIB), ..RankFacts::default() });
        for (id, frames) in (1..).zip(stacks) {
            watch.stack(StackId(id), frames);
        }
        let (time_ns, events) = (1_700_000_000_000_000_000, 0);
        Self { watch, time_ns, events, epoch: 0, step: 0, peak_bytes: 50 * MIB, unused_bytes: 0, pools: Vec::new() }
    }

    /// The table of a boundary at the present moment.
    pub fn table(&self, boundary: Boundary, rows: &[Row]) -> SiteTable {
        let allocated_bytes = rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row.3));
        let allocated_blocks = rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row.2));
        let peak_allocated_bytes = allocated_bytes.saturating_add(self.peak_bytes);
        let reserved_bytes = peak_allocated_bytes.saturating_add(self.unused_bytes);
        let counters = Counters {
            allocated_bytes,
            active_bytes: allocated_bytes,
            reserved_bytes,
            allocated_blocks,
            ..Counters::default()
        };
        let peaks = Peaks { allocated_bytes: peak_allocated_bytes, reserved_bytes };
        let row = |&(stack, birth_phase, blocks, bytes): &Row| SiteRow {
            stack: StackId(stack),
            birth_epoch: 0,
            birth_phase,
            blocks,
            bytes,
        };
        SiteTable {
            device: DeviceIndex(0),
            boundary,
            epoch: self.epoch,
            step: self.step,
            time_ns: self.time_ns,
            at_event: self.events,
            exact: true,
            counters,
            peaks,
            peaks_within: peaks,
            found: false,
            rows: rows.iter().filter(|row| row.2 > 0).map(row).collect(),
            private_pools: self.pools.clone(),
        }
    }

    /// Adds a boundary with these rows after some seconds and events.
    pub fn boundary(&mut self, boundary: Boundary, seconds: f64, events: u64, rows: &[Row]) {
        self.time_ns += (seconds * 1e9) as u64;
        self.events += events;
        let table = self.table(boundary, rows);
        self.watch.table(&table);
    }

    /// A window of a second with a thousand events.
    pub fn window(&mut self, rows: &[Row]) {
        self.boundary(Boundary::WindowEnd, 1.0, 1_000, rows);
    }

    /// The end of the next step, a second later.
    pub fn step(&mut self, rows: &[Row]) {
        self.boundary(Boundary::StepEnd, 1.0, 1_000, rows);
        self.step += 1;
    }

    /// The end of the epoch.
    pub fn epoch_end(&mut self, rows: &[Row]) {
        self.boundary(Boundary::EpochEnd, 0.0, 0, rows);
        self.epoch += 1;
    }

    pub fn judge(&self) -> Vec<Finding> {
        findings(&[&self.watch], Activity::Running)
    }

    /// Whether any finding is certain.
    pub fn warns(&self) -> bool {
        let confirmed = |finding: &Finding| finding.kind.fills() && !finding.is_suspected;
        self.judge().iter().any(|finding| finding.severity >= Severity::Warning || confirmed(finding))
    }
}
