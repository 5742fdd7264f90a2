//! `memctl ranks` as data: the ranks side by side, their outliers, and the findings that distinguish them.
//!
//! Guarantees: the outlying figures and the findings about single ranks come with the report. Nothing is compared here.

use memctl_model::JobState;
use std::io::{self, Write};

use serde::Serialize;

use super::finding::Finding;
use super::judged::Scope;
use super::report::{self, Report, Spread};
use super::{Answer, Completeness, Job, SCHEMA};
use crate::format::csv::{self, Cell};
use crate::format::json;

/// The ranks side by side.
#[derive(Clone, Debug, Serialize)]
pub struct Ranks {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The job.
    pub job: Job,
    /// What the answer rests on.
    pub completeness: Completeness,
    /// The ranks, in their order.
    pub ranks: Vec<Rank>,
    /// Median and deviation of each figure that enough ranks have.
    pub spread: Vec<Spread>,
    /// What is wrong with some ranks and not with others, the worst first.
    pub findings: Vec<Finding>,
    /// What the findings, or their absence, rest on.
    #[serde(flatten)]
    pub scope: Scope,
    /// Flags that reach the same store; `None` = no advice.
    #[serde(skip)]
    pub hint: Option<String>,
}

/// One rank.
#[derive(Clone, Debug, Serialize)]
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
    /// The device's name.
    pub gpu_name: Option<String>,
    /// State of the rank's session.
    #[serde(with = "super::state_by_name")]
    pub state: JobState,
    /// How it ended, when it did not end well.
    pub failure: Option<String>,
    /// Epochs that ended.
    pub epochs: u64,
    /// Steps that ended.
    pub steps: u64,
    /// At the last boundary.
    pub allocated_bytes: Option<u64>,
    /// At the last boundary.
    pub reserved_bytes: Option<u64>,
    /// Highest.
    pub peak_allocated_bytes: Option<u64>,
    /// Highest.
    pub peak_reserved_bytes: Option<u64>,
    /// Growth from epoch end to epoch end.
    pub growth_bytes_per_epoch: Option<i64>,
    /// Unused on the device.
    pub device_free_bytes: Option<u64>,
    /// In use on the device by processes that are not of this job's rank.
    pub foreign_used_bytes: Option<u64>,
    /// Time of the most recent figure.
    pub last_heard_at: Option<String>,
    /// Figures of it that stand out, by name.
    pub stands_out: Vec<String>,
    /// Ids of the findings that distinguish it from other ranks.
    pub findings: Vec<String>,
    /// For the page.
    #[serde(skip)]
    pub last_heard_ns: Option<u64>,
}

impl Ranks {
    /// Makes the answer from a report.
    #[must_use]
    pub fn new(report: Report) -> Self {
        let Report { job, completeness, ranks, findings, scope, spread, hint, .. } = report;
        let ranks: Vec<Rank> = ranks.into_iter().map(Rank::from).collect();
        let tells_apart = |finding: &Finding| ranks.iter().any(|rank| rank.findings.contains(&finding.id));
        let findings = findings.into_iter().filter(tells_apart).collect();
        Self { schema: SCHEMA, job, completeness, ranks, spread, findings, scope, hint }
    }
}

impl Rank {
    /// Whether it differs from the others: by a figure, by a finding, or by its end.
    #[must_use]
    pub fn is_odd(&self) -> bool {
        !self.stands_out.is_empty() || !self.findings.is_empty() || self.failure.is_some()
    }
}

impl From<report::Rank> for Rank {
    fn from(rank: report::Rank) -> Self {
        let last_heard_ns = rank.last_heard_ns();
        let sample = rank.sample.as_ref();
        let total = sample.and_then(|sample| sample.device_total_bytes).or(rank.device_total_bytes);
        let used = sample.and_then(|sample| sample.device_used_bytes).or(rank.device_used_bytes);
        Self {
            device_free_bytes: total.zip(used).map(|(total, used)| total.saturating_sub(used)),
            foreign_used_bytes: sample.and_then(|sample| sample.foreign_used_bytes),
            last_heard_at: last_heard_ns.map(crate::format::time::rfc3339),
            last_heard_ns,
            rank: rank.rank,
            process: rank.process,
            host: rank.host,
            pid: rank.pid,
            device: rank.device,
            gpu_name: rank.gpu_name,
            state: rank.state,
            failure: rank.failure,
            epochs: rank.epochs,
            steps: rank.steps,
            allocated_bytes: rank.allocated_bytes,
            reserved_bytes: rank.reserved_bytes,
            peak_allocated_bytes: rank.peak_allocated_bytes,
            peak_reserved_bytes: rank.peak_reserved_bytes,
            growth_bytes_per_epoch: rank.growth_bytes_per_epoch,
            stands_out: rank.stands_out,
            findings: rank.findings,
        }
    }
}

/// One line of NDJSON.
#[derive(Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
enum Record<'a> {
    Rank(&'a Rank),
    Spread(&'a Spread),
    Finding(&'a Finding),
}

impl Answer for Ranks {
    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        self.ranks.iter().try_for_each(|rank| json::line(out, &Record::Rank(rank)))?;
        self.spread.iter().try_for_each(|spread| json::line(out, &Record::Spread(spread)))?;
        self.findings.iter().try_for_each(|finding| json::line(out, &Record::Finding(finding)))
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = [
            "rank",
            "host",
            "pid",
            "device",
            "gpu_name",
            "state",
            "epochs",
            "steps",
            "allocated_bytes",
            "reserved_bytes",
            "peak_allocated_bytes",
            "peak_reserved_bytes",
            "growth_bytes_per_epoch",
            "device_free_bytes",
            "foreign_used_bytes",
            "last_heard_at",
            "stands_out",
            "process",
        ];
        csv::header(out, &names)?;
        self.ranks.iter().try_for_each(|rank| csv::record(out, &cells(rank)))
    }
}

fn cells(rank: &Rank) -> [Cell; 18] {
    [
        Cell::plain(rank.rank),
        Cell::maybe_text(rank.host.as_deref()),
        Cell::maybe(rank.pid),
        Cell::plain(rank.device),
        Cell::maybe_text(rank.gpu_name.as_deref()),
        Cell::plain(rank.state.name()),
        Cell::plain(rank.epochs),
        Cell::plain(rank.steps),
        Cell::maybe(rank.allocated_bytes),
        Cell::maybe(rank.reserved_bytes),
        Cell::maybe(rank.peak_allocated_bytes),
        Cell::maybe(rank.peak_reserved_bytes),
        Cell::maybe(rank.growth_bytes_per_epoch),
        Cell::maybe(rank.device_free_bytes),
        Cell::maybe(rank.foreign_used_bytes),
        Cell::maybe(rank.last_heard_at.as_ref()),
        Cell::plain(rank.stands_out.join(" ")),
        Cell::text(&rank.process),
    ]
}
