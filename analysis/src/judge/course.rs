//! A device's course as a whole: its boundaries, its levels at them, and what was measured from outside.
//!
//! Guarantees: bounded memory; what was not measured is absent. An epoch that was begun again ends again: the later end
//! stands for it.

use memctl_model::{Counters, Sample, SiteTable};

use super::watch::is_epoch_end;

/// Epoch ends kept; of longer runs every other one of the older half goes.
const EPOCHS_MAX: usize = 256;
/// Samples kept, likewise.
const SAMPLES_MAX: usize = 512;

/// How things stood at a boundary.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Level {
    pub at: u32,
    pub epoch: u32,
    pub step: u64,
    pub time_ns: u64,
    pub counters: Counters,
    pub peak_allocated_bytes: u64,
}

/// What the host and the driver saw, with what the allocator held then.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    /// Steps that had ended.
    pub steps: u32,
    pub device_used_bytes: Option<u64>,
    pub device_total_bytes: Option<u64>,
    pub process_used_bytes: Option<u64>,
    pub foreign_used_bytes: Option<u64>,
    pub reserved_bytes: Option<u64>,
    pub host_bytes: Option<u64>,
    pub children_bytes: Option<u64>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Course {
    /// Step ends seen.
    pub steps: u32,
    /// Epoch ends seen.
    pub epoch_ends: u32,
    /// The first boundary.
    pub first: Option<Level>,
    /// The last boundary of a step.
    pub last_step: Option<Level>,
    /// Steps by their ordinal, thinned: for translating an ordinal back into what users count.
    pub step_marks: Vec<Level>,
    pub epochs: Vec<Level>,
    pub samples: Vec<Measured>,
    /// The highest peak of the last steps, decaying by an eighth a step: what the next step will need.
    pub recent_peak_bytes: u64,
    pub exact: bool,
}

impl Course {
    /// Notes a boundary: its ordinal among those of its kind, and whether it ends an epoch.
    pub fn boundary(&mut self, table: &SiteTable) -> Option<(u32, bool)> {
        let ends_epoch = is_epoch_end(table.boundary)?;
        let at = 1 + if ends_epoch { self.epoch_ends } else { self.steps };
        let level = Level {
            at,
            epoch: table.epoch,
            step: table.step,
            time_ns: table.time_ns,
            counters: table.counters,
            peak_allocated_bytes: table.peaks_within.allocated_bytes,
        };
        self.exact = table.exact;
        self.first.get_or_insert(level);
        if ends_epoch {
            self.epoch_ends += 1;
            push_thinned(&mut self.epochs, level, EPOCHS_MAX);
        } else {
            self.steps += 1;
            self.last_step = Some(level);
            let decayed = self.recent_peak_bytes - self.recent_peak_bytes / 8;
            self.recent_peak_bytes = decayed.max(level.peak_allocated_bytes);
            push_thinned(&mut self.step_marks, level, EPOCHS_MAX);
        }
        Some((at, ends_epoch))
    }

    pub fn sample(&mut self, sample: &Sample) {
        let last = self.samples.last().copied().unwrap_or_default();
        let measured = Measured {
            steps: self.steps,
            device_used_bytes: sample.device_used_bytes,
            device_total_bytes: sample.device_total_bytes.or(last.device_total_bytes),
            process_used_bytes: sample.process_used_bytes,
            foreign_used_bytes: sample.foreign_used_bytes,
            reserved_bytes: sample.reserved_bytes.or_else(|| self.reserved_now()),
            host_bytes: sample.host_rss_bytes,
            children_bytes: sample.children_rss_bytes,
        };
        // The allocator's own counters come every step and say nothing new about the device.
        if sample.device_used_bytes.is_some() || sample.process_used_bytes.is_some() || sample.host_rss_bytes.is_some()
        {
            push_thinned(&mut self.samples, measured, SAMPLES_MAX);
        }
    }

    fn reserved_now(&self) -> Option<u64> {
        self.last_level().map(|level| level.counters.reserved_bytes)
    }

    /// The latest boundary of any kind.
    pub fn last_level(&self) -> Option<&Level> {
        match (self.last_step.as_ref(), self.epochs.last()) {
            (Some(step), Some(epoch)) if step.time_ns > epoch.time_ns => Some(step),
            (step, epoch) => epoch.or(step),
        }
    }

    /// The boundary of a step, or the nearest before it that is still known.
    pub fn step_level(&self, at: u32) -> Option<&Level> {
        let after = self.step_marks.partition_point(|level| level.at <= at);
        self.step_marks.get(after.checked_sub(1)?)
    }

    /// The end of an epoch, by its ordinal, or the nearest before it that is still known.
    pub fn epoch_level(&self, at: u32) -> Option<&Level> {
        let after = self.epochs.partition_point(|level| level.at <= at);
        self.epochs.get(after.checked_sub(1)?)
    }

    /// Nanoseconds of a step in the mean, over the steps still known.
    pub fn step_ns(&self) -> Option<f64> {
        mean_ns(&self.step_marks)
    }

    /// Nanoseconds of an epoch in the mean.
    pub fn epoch_ns(&self) -> Option<f64> {
        mean_ns(&self.epochs)
    }

    /// Bytes of the device that are left for allocated memory to grow into: its size without what others and what lies
    /// outside the allocator use, and without what a step needs at its highest.
    pub fn headroom_bytes(&self, device_total_bytes: Option<u64>) -> Option<u64> {
        let total = device_total_bytes?;
        let outside = self
            .samples
            .last()
            .and_then(|sample| Some(sample.device_used_bytes?.saturating_sub(sample.reserved_bytes?)));
        let needed = self.recent_peak_bytes.max(self.last_level()?.counters.allocated_bytes);
        Some(total.saturating_sub(outside.unwrap_or(0)).saturating_sub(needed))
    }
}

fn mean_ns(levels: &[Level]) -> Option<f64> {
    let (first, last) = (levels.first()?, levels.last()?);
    let (boundaries, ns) = (last.at.checked_sub(first.at)?, last.time_ns.checked_sub(first.time_ns)?);
    (boundaries > 0).then(|| ns as f64 / f64::from(boundaries))
}

fn push_thinned<T>(all: &mut Vec<T>, one: T, most: usize) {
    if all.len() >= most {
        let mut index = 0;
        all.retain(|_| {
            index += 1;
            index == 1 || index > most / 2 || index % 2 == 0
        });
    }
    all.push(one);
}
