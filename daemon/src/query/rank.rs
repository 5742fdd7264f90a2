//! One device of one process in a report: its levels now and before its teardown, and its growth.
//!
//! Guarantees: every comparison of ranks (outliers, findings that distinguish ranks) uses this type. The response is
//! built from it once, at the end.

use memctl_analysis::growth::{EpochBytes, growth_bytes_per_epoch};
use memctl_answers::format::time::Time;
use memctl_answers::{finite, report, whole};
use memctl_model::{Boundary, Completeness, Counters, JobState, Sample};

use crate::job_data::FoundJob;
use crate::job_data::job::{completeness, state};
use crate::judge::Levels;
use crate::store::{DeviceRow, EpochEndRow, SessionRow};
use crate::streams::Streams;

/// Bytes of the allocator at one moment; `None` means unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Amounts {
    pub allocated_bytes: Option<u64>,
    pub reserved_bytes: Option<u64>,
}

/// One device of one process; see the module.
pub(super) struct Rank<'a> {
    pub session: &'a SessionRow,
    device: &'a DeviceRow,
    epoch_ends: Vec<&'a EpochEndRow>,
    pub process: String,
    /// The role of its process. A rank is compared with ranks of the same role.
    pub role: Option<String>,
    state: JobState,
    completeness: Completeness,
    /// The levels at the boundary in [`Self::levels_at`].
    pub levels: Amounts,
    /// The last boundary before the teardown, if the session has ended.
    levels_at: Option<Boundary>,
    /// The levels after teardown.
    left: Amounts,
    pub peaks: Amounts,
    fragmentation_ratio: Option<f64>,
    pub growth_bytes_per_epoch: Option<f64>,
    /// The latest measurement.
    pub sample: Option<Sample>,
    /// The highest value of each measured quantity.
    highest: Option<Sample>,
    /// Figures that are outliers among the ranks.
    pub stands_out: Vec<&'static str>,
    /// Ids of findings that distinguish this rank.
    pub findings: Vec<String>,
}

impl<'a> Rank<'a> {
    pub fn new(
        found: &FoundJob,
        session: &'a SessionRow,
        device: &'a DeviceRow,
        epoch_ends: Vec<&'a EpochEndRow>,
        streams: &Streams,
    ) -> Self {
        let series: Vec<EpochBytes> =
            epoch_ends.iter().map(|end| EpochBytes { epoch: end.epoch, bytes: end.counters.allocated_bytes }).collect();
        let latest = device.latest.as_ref().filter(|_| device.is_known());
        let levels = latest.map_or_else(Amounts::default, |latest| Amounts::of(&latest.counters));
        let peaks = latest.map_or_else(Amounts::default, |latest| Amounts {
            allocated_bytes: Some(latest.peaks.allocated_bytes),
            reserved_bytes: Some(latest.peaks.reserved_bytes),
        });
        Self {
            process: found.process_name(session),
            role: found.process(session.key).role.clone(),
            state: state(session, streams),
            completeness: completeness(session, streams),
            levels,
            levels_at: None,
            left: Amounts::default(),
            peaks,
            fragmentation_ratio: latest.and_then(|latest| latest.counters.fragmentation_ratio()),
            growth_bytes_per_epoch: growth_bytes_per_epoch(&series),
            sample: None,
            highest: None,
            stands_out: Vec::new(),
            findings: Vec::new(),
            session,
            device,
            epoch_ends,
        }
    }

    /// Its rank.
    pub fn number(&self) -> u32 {
        self.session.info.rank
    }

    /// Session and device.
    pub fn key(&self) -> (i64, u8) {
        (self.session.key, self.device.info.index.0)
    }

    /// Free bytes of the device, if they were measured.
    pub fn device_free_bytes(&self) -> Option<u64> {
        let used = self.device_used_bytes()?;
        Some(self.device_total_bytes()?.saturating_sub(used))
    }

    /// The size of its device, if known.
    pub fn device_total_bytes(&self) -> Option<u64> {
        self.sample.and_then(|sample| sample.device_total_bytes).or(self.device.info.total_bytes)
    }

    /// For a session that has ended, sets the levels to those at its last boundary. At the end of the recording only
    /// memory that teardown left is live.
    pub fn before_teardown(&mut self, levels: Option<&Levels>) {
        let Some(Levels { boundary, counters }) = levels.filter(|_| self.session.end.is_some()) else { return };
        self.left = std::mem::replace(&mut self.levels, Amounts::of(counters));
        self.fragmentation_ratio = counters.fragmentation_ratio();
        self.levels_at = Some(*boundary);
    }

    /// Adds measurements. A framework without events (JAX) has only these, so its own counters replace the figures that
    /// events would give.
    pub fn measured(&mut self, sample: Option<&Sample>, highest: Option<&Sample>) {
        (self.sample, self.highest) = (sample.copied().map(|sample| self.as_of_now(sample)), highest.copied());
        let Some(sample) = sample.filter(|sample| sample.allocated_bytes.is_some()) else { return };
        let nothing = |amount: Option<u64>| amount.unwrap_or(0) == 0;
        let Amounts { allocated_bytes, reserved_bytes } = self.levels;
        if self.device.events == 0 && nothing(reserved_bytes) && nothing(allocated_bytes) {
            self.levels = Amounts { allocated_bytes: sample.allocated_bytes, reserved_bytes: sample.reserved_bytes };
            self.peaks =
                Amounts { allocated_bytes: sample.peak_allocated_bytes, reserved_bytes: sample.peak_reserved_bytes };
            self.fragmentation_ratio = None;
        }
    }

    /// Drops measured values that are smaller than the bytes that the allocator holds now, because they are out of
    /// date.
    fn as_of_now(&self, sample: Sample) -> Sample {
        let is_of_now = |bytes: &u64| *bytes >= self.levels.reserved_bytes.unwrap_or(0);
        let device_used_bytes = sample.device_used_bytes.filter(is_of_now);
        let process_used_bytes = sample.process_used_bytes.filter(is_of_now);
        let is_listed = |_: &u64| sample.lists_process(self.levels.reserved_bytes.unwrap_or(0));
        let foreign_used_bytes = sample.foreign_used_bytes.filter(is_listed);
        Sample { device_used_bytes, process_used_bytes, foreign_used_bytes, ..sample }
    }

    /// Bytes of the device in use by all processes, if up to date.
    fn device_used_bytes(&self) -> Option<u64> {
        let held = self.levels.reserved_bytes.unwrap_or(0);
        let measured = self.sample.and_then(|sample| sample.device_used_bytes).or(self.device.device_used_bytes);
        measured.filter(|used| *used >= held)
    }

    /// The rank's part of the response.
    pub fn into_answer(self) -> report::Rank {
        let (info, device) = (&self.session.info, self.device);
        report::Rank {
            rank: info.rank,
            device_used_bytes: self.device_used_bytes(),
            process: self.process,
            host: info.host.clone(),
            pid: info.pid,
            device: u32::from(device.info.index.0),
            gpu_uuid: device.info.uuid.clone(),
            framework: info.framework.clone(),
            allocator_conf: info.settings.conf.clone(),
            epochs: device.epochs,
            steps: device.steps,
            events: device.events,
            allocated_bytes: self.levels.allocated_bytes,
            reserved_bytes: self.levels.reserved_bytes,
            peak_allocated_bytes: self.peaks.allocated_bytes,
            peak_reserved_bytes: self.peaks.reserved_bytes,
            fragmentation_ratio: self.fragmentation_ratio.and_then(finite),
            growth_bytes_per_epoch: self.growth_bytes_per_epoch.and_then(whole),
            alloc_retries: device.alloc_retries,
            ooms: device.ooms,
            epoch_ends: self.epoch_ends.into_iter().map(epoch_end).collect(),
            gpu_name: device.info.name.clone(),
            device_total_bytes: device.info.total_bytes,
            state: self.state,
            failure: self.session.end.as_ref().and_then(|end| end.failure.clone()),
            stored_bytes: self.session.stored_bytes,
            completeness: self.completeness.into(),
            sample: self.sample.as_ref().map(Into::into),
            highest: self.highest.as_ref().map(Into::into),
            levels_at: self.levels_at.map_or_else(|| "end".to_owned(), |boundary| format!("{}_end", boundary.name())),
            end_allocated_bytes: self.left.allocated_bytes,
            end_reserved_bytes: self.left.reserved_bytes,
            stands_out: self.stands_out.into_iter().map(str::to_owned).collect(),
            findings: self.findings,
            expandable_overruled: self.session.overruled,
        }
    }
}

impl Amounts {
    fn of(counters: &Counters) -> Self {
        Self { allocated_bytes: Some(counters.allocated_bytes), reserved_bytes: Some(counters.reserved_bytes) }
    }
}

fn epoch_end(end: &EpochEndRow) -> report::EpochEnd {
    let EpochEndRow { epoch, step, time_ns, counters, peaks, peaks_within, exact, .. } = end;
    report::EpochEnd {
        epoch: *epoch,
        allocated_bytes: Some(counters.allocated_bytes),
        reserved_bytes: Some(counters.reserved_bytes),
        peak_allocated_bytes: Some(peaks.allocated_bytes),
        peak_reserved_bytes: Some(peaks.reserved_bytes),
        epoch_peak_allocated_bytes: Some(peaks_within.allocated_bytes),
        epoch_peak_reserved_bytes: Some(peaks_within.reserved_bytes),
        active_bytes: Some(counters.active_bytes),
        requested_bytes: Some(counters.requested_bytes),
        inactive_split_bytes: Some(counters.inactive_split_bytes),
        largest_free_bytes: Some(counters.largest_free_bytes),
        allocated_blocks: Some(counters.allocated_blocks),
        segments: Some(counters.segments),
        step: *step,
        at: Time(*time_ns),
        exact: *exact,
    }
}
