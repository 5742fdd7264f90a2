//! The flags of queries. They choose a part of a job, a moment, and a format.
//!
//! Guarantees: the flags become a selection for the daemon. This module decides nothing.
//! (Over 400 lines: the flags, and the texts that users read about them.)

use std::path::PathBuf;

use clap::builder::{NonEmptyStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use memctl_model::JobState;
use memctl_model::limits::{JOBS_LISTED, TIMELINE_POINTS_MAX};
use memctl_proto::v1;
use memctl_replay::fit::NUMBER_MAX;

use super::values::{self, EpochRange, LabelArg, RankList, SizedJob, TimeBound};
use super::which::Which;

/// `memctl jobs`.
#[derive(Clone, Debug, Args)]
pub struct Jobs {
    /// The maximum number of jobs to list.
    #[arg(long, default_value_t = JOBS_LISTED, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    /// Only jobs in this state; may be repeated.
    #[arg(long = "state", value_parser = job_state(), value_name = "STATE")]
    pub states: Vec<JobState>,
    /// Only jobs with this label; may be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<LabelArg>,
}

fn job_state() -> impl TypedValueParser<Value = JobState> {
    let value = |state: JobState| {
        PossibleValue::new(state.name()).help(match state {
            JobState::Running => "Still being recorded",
            JobState::Finished => "Ended without a failure",
            JobState::Failed => "Ended with a failure",
            JobState::Lost => "Stopped reporting before its end",
        })
    };
    let named = |name: String| JobState::ALL.into_iter().find(|state| state.name() == name);
    PossibleValuesParser::new(JobState::ALL.map(value)).try_map(move |name| named(name).ok_or("no such state"))
}

/// Which part of which job.
#[derive(Clone, Debug, Args)]
pub struct Narrow {
    /// Which job.
    #[command(flatten)]
    pub which: Which,
    /// Which part.
    #[command(flatten)]
    pub part: Part,
}

impl Narrow {
    /// The selection for the daemon.
    #[must_use]
    pub fn selection(&self, now: Timestamp) -> v1::Selection {
        self.part.selection(self.which.name(), now)
    }
}

/// Which part of a job.
#[derive(Clone, Debug, Default, Args)]
pub struct Part {
    /// The attempt [default: the last].
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
    /// Only these ranks: 0-3,7.
    #[arg(long, value_name = "LIST")]
    pub rank: Option<RankList>,
    /// Only processes with this name or role (worker-1, worker); may be repeated.
    #[arg(long = "process", value_name = "NAME")]
    pub processes: Vec<String>,
    /// Only devices with these indexes within their process: 0,2-3.
    #[arg(long, value_name = "LIST")]
    pub device: Option<RankList>,
    /// Only these epochs: 2..5 (both ends included), 2.., 3.
    #[arg(long, value_name = "RANGE")]
    pub epoch: Option<EpochRange>,
    /// Only from this time on: 2026-11-20T10:00:00Z, or 10m for ten minutes ago.
    #[arg(long, value_name = "TIME")]
    pub since: Option<TimeBound>,
    /// Only until this time.
    #[arg(long, value_name = "TIME")]
    pub until: Option<TimeBound>,
}

impl Part {
    /// What an answer about a range measures, as a line before it; `None` if all boundaries count.
    #[must_use]
    pub fn range_in_words(&self) -> Option<String> {
        let of = match (self.epoch.and_then(|range| range.first), self.epoch.and_then(|range| range.last)) {
            (Some(first), Some(last)) if first == last => format!("epoch {first}"),
            (Some(first), Some(last)) => format!("epochs {first} to {last}"),
            (Some(first), None) => format!("epochs from {first} on"),
            (None, Some(last)) => format!("epochs up to {last}"),
            (None, None) if self.since.is_some() || self.until.is_some() => "the chosen time".to_owned(),
            (None, None) => return None,
        };
        Some(format!("Only {of}: growth is measured from the first step or epoch end there to the last."))
    }

    /// The selection for the daemon.
    #[must_use]
    pub fn selection(&self, job: String, now: Timestamp) -> v1::Selection {
        let Self { attempt, rank, processes, device, epoch, since, until } = self;
        v1::Selection {
            launcher: None,
            job,
            attempt: *attempt,
            ranks: rank.clone().unwrap_or_default().0,
            processes: processes.clone(),
            devices: device.clone().unwrap_or_default().0,
            first_epoch: epoch.and_then(|range| range.first),
            last_epoch: epoch.and_then(|range| range.last),
            since_ns: since.map(|moment| moment.resolve(now)),
            until_ns: until.map(|moment| moment.resolve(now)),
        }
    }
}

/// The values of `--fail-on`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FailOn {
    /// A verdict of out of memory, of growing memory (with a known or unknown cause), or of filling memory for which the device has no room.
    Growing,
    /// Any finding.
    Info,
    /// A finding that is likely to cause a failure, or a critical one.
    Warning,
    /// A finding that causes a failure.
    Critical,
}

impl FailOn {
    /// The lowest severity that fails; `None` if only the verdict counts.
    #[must_use]
    pub fn severity(self) -> Option<memctl_model::Severity> {
        match self {
            Self::Growing => None,
            Self::Info => Some(memctl_model::Severity::Info),
            Self::Warning => Some(memctl_model::Severity::Warning),
            Self::Critical => Some(memctl_model::Severity::Critical),
        }
    }
}

/// `memctl query`.
#[derive(Clone, Debug, Args)]
pub struct Query {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
    /// Exit with code 1 for a bad verdict (growing), or for a finding of at least this severity.
    #[arg(long, value_enum, value_name = "VERDICT|SEVERITY")]
    pub fail_on: Option<FailOn>,
}

/// `memctl leaks`.
#[derive(Clone, Debug, Args)]
pub struct Leaks {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
    /// Include suspected growth (severity info).
    #[arg(long)]
    pub all: bool,
}

/// `memctl ranks`.
#[derive(Clone, Debug, Args)]
pub struct Ranks {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
}

/// `memctl frag`.
#[derive(Clone, Debug, Args)]
pub struct Frag {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
}

/// `memctl oom`.
#[derive(Clone, Debug, Args)]
pub struct Oom {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
}

/// `memctl what-if`.
#[derive(Clone, Debug, Args)]
pub struct WhatIf {
    /// Which job.
    #[command(flatten)]
    pub which: Which,
    /// The attempt [default: the last].
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
    /// Only these ranks: 0-3,7 [default: the rank with the highest peak, and the outliers].
    #[arg(long, value_name = "LIST")]
    pub rank: Option<RankList>,
    /// Allocator settings, written as in PYTORCH_CUDA_ALLOC_CONF; may be repeated [default: a dozen usual settings].
    #[arg(long = "set", value_name = "CONF")]
    pub settings: Vec<String>,
    /// The memory that the process may reserve: 40GiB; may be repeated [default: no limit].
    #[arg(long = "limit", value_name = "BYTES", value_parser = memctl_answers::conditions::bytes)]
    pub limits: Vec<u64>,
    /// The first step to replay [default: from the beginning].
    #[arg(long, value_name = "STEP")]
    pub from: Option<u64>,
    /// The last step to replay [default: to the end].
    #[arg(long, value_name = "STEP")]
    pub until: Option<u64>,
}

impl WhatIf {
    /// The selection for the daemon.
    #[must_use]
    pub fn selection(&self) -> v1::Selection {
        let ranks = self.rank.clone().unwrap_or_default().0;
        v1::Selection { job: self.which.name(), attempt: self.attempt, ranks, ..v1::Selection::default() }
    }
}

/// `memctl need`.
#[derive(Clone, Debug, Args)]
pub struct Need {
    /// Which job.
    #[command(flatten)]
    pub which: Which,
    /// The attempt [default: the last].
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
    /// Also check a device with this much usable memory: 30GiB; may be repeated.
    #[arg(long = "size", value_name = "BYTES", value_parser = memctl_answers::conditions::bytes)]
    pub sizes: Vec<u64>,
    /// Print one line of key=value pairs, for an accounting log.
    #[arg(long, conflicts_with = "output")]
    pub line: bool,
}

impl Need {
    /// The selection for the daemon.
    #[must_use]
    pub fn selection(&self) -> v1::Selection {
        v1::Selection { job: self.which.name(), attempt: self.attempt, ..v1::Selection::default() }
    }
}

/// `memctl fit`.
#[derive(Clone, Debug, Args)]
pub struct Fit {
    /// A job and its size, the number at which it was recorded (batch, sequence, layers): A=4. If you recorded two sizes, give both jobs.
    #[arg(long = "job", value_name = "JOB[=NUMBER]", required = true)]
    pub jobs: Vec<SizedJob>,
    /// The sizes to forecast: 16,32,64. With one recording, the sizes are batch sizes, and the forecast is less certain.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=NUMBER_MAX))]
    pub at: Vec<u64>,
    /// Forecast the peak without the blocks of this site: FILE:LINE, or a function.
    #[arg(long, value_name = "SITE")]
    pub without: Option<String>,
    /// Forecast the peak with activation checkpointing of these modules: a class, FILE:LINE of the call, or all (modules that a loop calls).
    #[arg(long, value_name = "MODULE", conflicts_with = "without")]
    pub checkpoint: Option<String>,
    /// Explain the peak, and show changes that reduce it below this many bytes: 24GiB.
    #[arg(long, value_name = "BYTES", value_parser = memctl_answers::conditions::bytes, conflicts_with_all = ["without", "checkpoint"])]
    pub under: Option<u64>,
    /// The rank [default: the rank with the highest peak].
    #[arg(long, value_name = "N")]
    pub rank: Option<u32>,
    /// The memory that the process may reserve: 80GiB. Without it, the output does not state which sizes fit.
    #[arg(long, value_name = "BYTES", value_parser = memctl_answers::conditions::bytes)]
    pub device_memory: Option<u64>,
}

/// `memctl holders`.
#[derive(Clone, Debug, Args)]
pub struct Holders {
    /// Which job.
    #[command(flatten)]
    pub which: Which,
    /// The attempt [default: the last].
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
    /// The rank whose process is searched [default: the first rank on which memory grows, otherwise the lowest rank].
    #[arg(long, value_name = "N")]
    pub rank: Option<u32>,
    /// The site that allocated the tensors: FILE:LINE, or a function [default: the site of the worst growth].
    #[arg(long, value_name = "SITE", value_parser = NonEmptyStringValueParser::new())]
    pub site: Option<String>,
    /// How long the search may pause the process, up to 10s.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = values::budget_ms)]
    pub budget: u32,
}

impl Holders {
    /// The selection for the daemon.
    #[must_use]
    pub fn selection(&self) -> v1::Selection {
        let ranks = self.rank.into_iter().collect();
        v1::Selection { job: self.which.name(), attempt: self.attempt, ranks, ..v1::Selection::default() }
    }
}

/// `memctl ledger`.
#[derive(Clone, Debug, Args)]
pub struct Ledger {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
    /// When.
    #[command(flatten)]
    pub at: LedgerAt,
    /// List the live blocks, each with its class and with the epoch, step and phase of its allocation, as data (-o csv, json or ndjson). Lists at most the 150,000 largest blocks.
    #[arg(long)]
    pub blocks: bool,
}

/// At which moment.
#[derive(Clone, Copy, Debug, Args)]
#[group(multiple = false)]
pub struct LedgerAt {
    /// At the moment when most memory was allocated, on each rank (the default).
    #[arg(long)]
    pub peak: bool,
    /// At the end of this epoch.
    #[arg(long, value_name = "N")]
    pub epoch_end: Option<u32>,
    /// At the end of the recording.
    #[arg(long)]
    pub end: bool,
}

impl LedgerAt {
    /// The moment for the daemon.
    #[must_use]
    pub fn moment(&self) -> v1::ledger_request::Moment {
        use v1::ledger_request::Moment as Wire;
        match *self {
            Self { epoch_end: Some(epoch), .. } => Wire::EpochEnd(epoch),
            Self { end: true, .. } => Wire::End(true),
            _ => Wire::Peak(true),
        }
    }
}

/// `memctl diagnose`.
#[derive(Clone, Debug, Args)]
pub struct Diagnose {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
}

/// `memctl report`.
#[derive(Clone, Debug, Args)]
pub struct Report {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
    /// Write to this file [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Write Markdown, for a pull request or a ticket, instead of HTML.
    #[arg(long)]
    pub markdown: bool,
    /// The size at which the job was recorded (batch, sequence, layers). With it, the file has a forecast for other sizes.
    #[arg(long, value_name = "N", conflicts_with = "markdown", value_parser = clap::value_parser!(u64).range(1..=NUMBER_MAX))]
    pub size: Option<u64>,
    /// For --size: the memory that the process may reserve, such as 80GiB. Without it, the file states which sizes fit only if a request failed.
    #[arg(long, value_name = "BYTES", requires = "size", value_parser = memctl_answers::conditions::bytes)]
    pub device_memory: Option<u64>,
}

/// `memctl timeline`.
#[derive(Clone, Debug, Args)]
pub struct Timeline {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
    /// The maximum number of points per rank [default: the plot's columns, 240 for data].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(TIMELINE_POINTS_MAX)))]
    pub points: Option<u32>,
}

/// `memctl sites`.
#[derive(Clone, Debug, Args)]
pub struct Sites {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
    /// When.
    #[command(flatten)]
    pub at: SitesAt,
    /// Show a tree of calls (the default).
    #[arg(long, conflicts_with = "folded")]
    pub tree: bool,
    /// Show folded stacks for flamegraph.pl, inferno or speedscope.
    #[arg(long)]
    pub folded: bool,
    /// Also show frames of libraries, not only your own code.
    #[arg(long)]
    pub all_frames: bool,
    /// Omit branches below this share of the memory, in percent.
    #[arg(long, default_value_t = 1.0, value_name = "PERCENT")]
    pub min_percent: f64,
}

/// At which moment.
#[derive(Clone, Copy, Debug, Args)]
#[group(multiple = false)]
pub struct SitesAt {
    /// At the moment when most memory was allocated, on each rank.
    #[arg(long)]
    pub peak: bool,
    /// At the end of this epoch.
    #[arg(long, value_name = "N")]
    pub epoch_end: Option<u32>,
    /// At this time: 2026-11-20T10:00:00Z, or 10m for ten minutes ago.
    #[arg(long, value_name = "TIME")]
    pub at: Option<TimeBound>,
    /// At the end of the recording [default: at the end of the last epoch].
    #[arg(long)]
    pub end: bool,
}

impl SitesAt {
    /// The moment for the daemon.
    #[must_use]
    pub fn moment(&self, now: Timestamp) -> Option<v1::sites_request::Moment> {
        use v1::sites_request::Moment as Wire;
        match *self {
            Self { peak: true, .. } => Some(Wire::Peak(true)),
            Self { epoch_end: Some(epoch), .. } => Some(Wire::EpochEnd(epoch)),
            Self { at: Some(at), .. } => Some(Wire::AtNs(at.resolve(now))),
            Self { end: true, .. } => Some(Wire::End(true)),
            _ => None,
        }
    }
}

/// What `memctl export` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// A PyTorch snapshot of one rank, for `python -m torch.cuda._memory_viz stats FILE` or pytorch.org/memory_viz.
    MemoryViz,
    /// Live memory at the end of the selected part, as folded stacks for flame graphs.
    Folded,
    /// The same with blocks, ranks, classes and epochs, as a profile for `go tool pprof FILE` or speedscope.
    Pprof,
    /// A trace of levels, epochs, steps, phases and findings, for ui.perfetto.dev. It has at most 250,000 points of each
    /// device: of more changes, groups keep their lowest and highest levels.
    Perfetto,
    /// One line per event.
    Csv,
    /// A new folder (-f DIR) of tables: sites, epochs, findings and counters, for DuckDB, pandas and Spark.
    #[cfg(feature = "parquet")]
    Parquet,
}

/// `memctl export`.
#[derive(Clone, Debug, Args)]
pub struct Export {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
    /// The format.
    #[arg(long, value_enum)]
    pub format: ExportFormat,
    /// Write to this file. With `memory-viz`, `{rank}` in its name is replaced by the rank, so each rank gets a file
    /// [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// With `parquet`: also write all events, into `events.parquet`.
    #[cfg(feature = "parquet")]
    #[arg(long)]
    pub events: bool,
}
