//! `memctl query` as data: the object that scripts and dashboards depend on.
//!
//! The order of the fields is the documented one; later fields follow at the end.
//!
//! (Over 400 lines: a table of fields with their meaning, and their conversion from the wire.)

use std::io::{self, Write};

use memctl_model::{self as model, JobState};
use serde::{Deserialize, Serialize};

use super::finding::Finding;
use super::judged::Scope;
use super::processes::Process;
use super::verdict::Verdict;
use super::{Answer, Completeness, Frame, Job, SCHEMA};
use crate::format::csv::{self, Cell};
use crate::format::json;
use crate::format::time::Time;

/// Everything that `memctl query` prints.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Report {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The job.
    pub job: Job,
    /// What the answer rests on.
    pub completeness: Completeness,
    /// The ranks, in their order.
    pub ranks: Vec<Rank>,
    /// Every process that allocated, by rank, then by start.
    pub processes: Vec<Process>,
    /// What is wrong, the worst first.
    pub findings: Vec<Finding>,
    /// Sites whose live bytes grew from epoch end to epoch end, most first.
    pub growth: Vec<Growth>,
    /// What the findings, or their absence, rest on.
    #[serde(flatten)]
    pub scope: Scope,
    /// Where epochs and steps come from.
    pub boundaries: Boundaries,
    /// What is usual among the ranks, for each figure that enough of them have.
    pub spread: Vec<Spread>,
    /// The call through which most of the growth comes that no finding explains.
    pub growth_through: Option<Through>,
    /// What the job's memory did; null from a daemon that does not say.
    pub verdict: Option<Verdict>,
    /// For the page: flags that reach the same store, put behind the commands it proposes; `None` = no advice.
    #[serde(skip)]
    pub hint: Option<String>,
    /// For the page: whether stacks were recorded, when that was asked.
    #[serde(skip)]
    pub stacks: Option<bool>,
}

/// Where epochs and steps come from.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Boundaries {
    /// `given` by marks, `found`, or `none`.
    pub epochs: String,
    /// The same.
    pub steps: String,
    /// Windows that were cut, of the device that has most.
    pub windows: u64,
    /// How they were found: `the loop at train.py:31`.
    pub found_by: Option<String>,
}

/// The usual values among the ranks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Spread {
    /// Which figure.
    pub figure: String,
    /// Its median.
    pub median_bytes: i64,
    /// Its median absolute deviation.
    pub mad_bytes: i64,
    /// Further from the median than this stands out.
    pub limit_bytes: i64,
}

/// A call through which much of the growing memory is allocated.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Through {
    /// The call.
    #[serde(flatten)]
    pub call: Frame,
    /// Growth an epoch that comes through it.
    pub bytes_per_epoch: i64,
    /// Growth an epoch of all sites that no finding explains.
    pub total_bytes_per_epoch: i64,
}

/// One rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Rank {
    /// Its number.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Host name.
    pub host: Option<String>,
    /// Process id.
    pub pid: Option<u32>,
    /// Device index in the process.
    pub device: u32,
    /// The device's UUID.
    pub gpu_uuid: Option<String>,
    /// Framework and version.
    pub framework: Option<String>,
    /// `PYTORCH_CUDA_ALLOC_CONF`.
    pub allocator_conf: String,
    /// Epochs that ended.
    pub epochs: u64,
    /// Steps that ended.
    pub steps: u64,
    /// Events received, including those that retention has removed.
    pub events: u64,
    /// At the last boundary.
    pub allocated_bytes: Option<u64>,
    /// At the last boundary.
    pub reserved_bytes: Option<u64>,
    /// Highest.
    pub peak_allocated_bytes: Option<u64>,
    /// Highest.
    pub peak_reserved_bytes: Option<u64>,
    /// In use on the device by all processes.
    pub device_used_bytes: Option<u64>,
    /// Share of the reserved bytes that no live block used at the last boundary.
    pub fragmentation_ratio: Option<f64>,
    /// Growth of the allocated bytes from epoch end to epoch end.
    pub growth_bytes_per_epoch: Option<i64>,
    /// Requests that succeeded only after cached memory was given back.
    pub alloc_retries: Option<u64>,
    /// Requests that failed.
    pub ooms: u64,
    /// At each epoch's end.
    pub epoch_ends: Vec<EpochEnd>,
    /// The device's name.
    pub gpu_name: Option<String>,
    /// All bytes of the device.
    pub device_total_bytes: Option<u64>,
    /// State of the rank's session.
    #[serde(with = "super::state_by_name")]
    #[cfg_attr(test, ts(as = "crate::typescript::ByName<JobState>"))]
    pub state: JobState,
    /// How it ended, when it did not end well.
    pub failure: Option<String>,
    /// Bytes in the store.
    pub stored_bytes: u64,
    /// What this rank's figures rest on.
    pub completeness: Completeness,
    /// What was measured last, teardown left out.
    pub sample: Option<Sample>,
    /// The highest of each quantity that was measured.
    pub highest: Option<Sample>,
    /// The moment that the levels are of: `epoch_end`, `step_end`, `window_end`, or `end` of what is stored.
    pub levels_at: String,
    /// Allocated at the end of what is stored, where that is another moment: after teardown.
    pub end_allocated_bytes: Option<u64>,
    /// Reserved then.
    pub end_reserved_bytes: Option<u64>,
    /// Figures of it that stand out among the ranks, by name.
    pub stands_out: Vec<String>,
    /// Ids of the findings that distinguish it from other ranks.
    pub findings: Vec<String>,
    /// Expandable segments are exported and not in force, as the segments show.
    pub expandable_overruled: bool,
}

/// The last measurement of each quantity within the last recorded half minute.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Sample {
    /// When the newest of them was measured.
    pub at: Time,
    /// The allocator's own counter.
    pub allocated_bytes: Option<u64>,
    /// The allocator's own counter.
    pub reserved_bytes: Option<u64>,
    /// In use on the device by all processes.
    pub device_used_bytes: Option<u64>,
    /// All bytes of the device.
    pub device_total_bytes: Option<u64>,
    /// In use on the device by this process.
    pub process_used_bytes: Option<u64>,
    /// In use on the device by processes that are not of this job's rank.
    pub foreign_used_bytes: Option<u64>,
    /// How busy the device is, 0..1.
    pub utilisation: Option<f64>,
    /// Host memory of the process.
    pub host_rss_bytes: Option<u64>,
    /// Host memory of its children (data loaders).
    pub children_rss_bytes: Option<u64>,
}

/// The end of one epoch on one rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct EpochEnd {
    /// Which one.
    pub epoch: u32,
    /// Allocated bytes.
    pub allocated_bytes: Option<u64>,
    /// Reserved bytes.
    pub reserved_bytes: Option<u64>,
    /// Highest since the session began.
    pub peak_allocated_bytes: Option<u64>,
    /// Highest since the session began.
    pub peak_reserved_bytes: Option<u64>,
    /// Highest within the epoch.
    pub epoch_peak_allocated_bytes: Option<u64>,
    /// Highest within the epoch.
    pub epoch_peak_reserved_bytes: Option<u64>,
    /// Active bytes.
    pub active_bytes: Option<u64>,
    /// Requested bytes.
    pub requested_bytes: Option<u64>,
    /// Free bytes in segments that are partly in use.
    pub inactive_split_bytes: Option<u64>,
    /// The largest free block.
    pub largest_free_bytes: Option<u64>,
    /// Blocks handed out.
    pub allocated_blocks: Option<u64>,
    /// Segments held.
    pub segments: Option<u64>,
    /// The last step.
    pub step: u64,
    /// When.
    pub at: Time,
    /// Whether the figures are exact.
    pub exact: bool,
}

/// A site that grew.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Growth {
    /// The innermost frame of the user's own code; null when no stack was recorded.
    pub site: Option<Frame>,
    /// The stack that grew most there, innermost first.
    pub stack: Vec<Frame>,
    /// By rank.
    pub ranks: Vec<RankGrowth>,
}

/// A site's growth on one rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct RankGrowth {
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Device index in the process.
    pub device: u32,
    /// Slope of the live bytes at epoch ends.
    pub bytes_per_epoch: i64,
    /// Live at the last one.
    pub live_bytes: u64,
    /// Blocks live at the last one.
    pub live_blocks: u64,
    /// First epoch after which it had grown.
    pub first_epoch: u32,
    /// Live bytes at each epoch end.
    pub series_bytes: Vec<u64>,
    /// Id of the finding that explains it; null where none does.
    pub explained_by: Option<String>,
}

impl RankGrowth {
    /// Whether it grew and no finding explains it.
    #[must_use]
    pub fn is_unexplained(&self) -> bool {
        self.bytes_per_epoch > 0 && self.explained_by.is_none()
    }
}

impl Rank {
    /// The time of its newest figure: that of a sample or of an epoch end.
    #[must_use]
    pub fn last_heard_ns(&self) -> Option<u64> {
        let sample = self.sample.as_ref().map(|sample| sample.at.0);
        sample.max(self.epoch_ends.last().map(|end| end.at.0))
    }
}

impl From<&model::Sample> for Sample {
    fn from(sample: &model::Sample) -> Self {
        let &model::Sample {
            device: _,
            time_ns,
            allocated_bytes,
            active_bytes: _,
            reserved_bytes,
            peak_allocated_bytes: _,
            peak_reserved_bytes: _,
            alloc_retries: _,
            ooms: _,
            device_used_bytes,
            device_total_bytes,
            process_used_bytes,
            foreign_used_bytes,
            utilisation_percent,
            host_rss_bytes,
            children_rss_bytes,
            // Shown as a row of the ledger.
            nccl_bytes: _,
            limit_bytes: _,
            sharing: _,
        } = sample;
        Self {
            at: Time(time_ns),
            allocated_bytes,
            reserved_bytes,
            device_used_bytes,
            device_total_bytes,
            process_used_bytes,
            foreign_used_bytes,
            utilisation: utilisation_percent.map(|percent| f64::from(percent) / 100.0),
            host_rss_bytes,
            children_rss_bytes,
        }
    }
}

impl Report {
    /// Whether a request or a rank failed, which needs no analysis.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.ranks.iter().any(|rank| rank.ooms > 0 || rank.failure.is_some())
    }
}

/// One line of NDJSON.
#[derive(Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
enum Record<'a> {
    Job {
        schema: u32,
        job: &'a Job,
        completeness: &'a Completeness,
        boundaries: &'a Boundaries,
        #[serde(flatten)]
        scope: &'a Scope,
    },
    Rank(&'a Rank),
    Process(&'a Process),
    Finding(&'a Finding),
    Growth(&'a Growth),
}

impl Answer for Report {
    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { job, completeness, boundaries, scope, .. } = self;
        json::line(out, &Record::Job { schema: SCHEMA, job, completeness, boundaries, scope })?;
        self.ranks.iter().try_for_each(|rank| json::line(out, &Record::Rank(rank)))?;
        self.processes.iter().try_for_each(|process| json::line(out, &Record::Process(process)))?;
        self.findings.iter().try_for_each(|finding| json::line(out, &Record::Finding(finding)))?;
        self.growth.iter().try_for_each(|growth| json::line(out, &Record::Growth(growth)))
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        csv::header(
            out,
            &[
                "job",
                "run",
                "attempt",
                "rank",
                "host",
                "pid",
                "device",
                "gpu_uuid",
                "gpu_name",
                "framework",
                "epochs",
                "steps",
                "events",
                "allocated_bytes",
                "reserved_bytes",
                "peak_allocated_bytes",
                "peak_reserved_bytes",
                "device_used_bytes",
                "fragmentation_ratio",
                "growth_bytes_per_epoch",
                "alloc_retries",
                "ooms",
                "state",
                "exact",
                "process",
            ],
        )?;
        self.ranks.iter().try_for_each(|rank| csv::record(out, &self.csv_cells(rank)))
    }
}

impl Report {
    fn csv_cells(&self, rank: &Rank) -> [Cell; 25] {
        [
            Cell::text(&self.job.name),
            Cell::maybe(self.job.run),
            Cell::plain(self.job.attempt),
            Cell::plain(rank.rank),
            Cell::maybe_text(rank.host.as_deref()),
            Cell::maybe(rank.pid),
            Cell::plain(rank.device),
            Cell::maybe_text(rank.gpu_uuid.as_deref()),
            Cell::maybe_text(rank.gpu_name.as_deref()),
            Cell::maybe_text(rank.framework.as_deref()),
            Cell::plain(rank.epochs),
            Cell::plain(rank.steps),
            Cell::plain(rank.events),
            Cell::maybe(rank.allocated_bytes),
            Cell::maybe(rank.reserved_bytes),
            Cell::maybe(rank.peak_allocated_bytes),
            Cell::maybe(rank.peak_reserved_bytes),
            Cell::maybe(rank.device_used_bytes),
            Cell::maybe(rank.fragmentation_ratio),
            Cell::maybe(rank.growth_bytes_per_epoch),
            Cell::maybe(rank.alloc_retries),
            Cell::plain(rank.ooms),
            Cell::plain(rank.state.name()),
            Cell::plain(rank.completeness.exact),
            Cell::text(&rank.process),
        ]
    }
}
