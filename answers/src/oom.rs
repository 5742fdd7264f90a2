//! `memctl oom` as data: the requests that failed, each with the arithmetic that explains it.

use std::io::{self, Write};

use memctl_analysis::oom::OomCause;
use memctl_replay::Limit;
use serde::{Deserialize, Serialize};

use super::advice::Advice;
use super::finding::{Finding, Site};
use super::frag::Holder;
use super::judged::Scope;
use super::{Answer, Completeness, Job};
use crate::format::csv::{self, Cell};
use crate::format::json;
use crate::format::time::Time;

/// The failed requests of a job.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Oom {
    /// See [`super::SCHEMA`].
    pub schema: u32,
    /// The job.
    pub job: Job,
    /// What the answer rests on.
    pub completeness: Completeness,
    /// Requests that failed; the last ones of each rank are below.
    pub failed: u64,
    /// By time.
    pub failures: Vec<Failed>,
    /// One for each way in which ranks failed.
    pub findings: Vec<Finding>,
    /// What the findings, or their absence, rest on.
    #[serde(flatten)]
    pub scope: Scope,
    /// Flags that reach the same store; `None` = no advice.
    #[serde(skip)]
    pub hint: Option<String>,
    /// What allocator settings would have done for the first failure; null where nothing failed.
    pub replay: Option<Advice>,
}

/// One failed request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Failed {
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Device index in the process.
    pub device: u32,
    /// When.
    pub at: Time,
    /// Epoch under way.
    pub epoch: Option<u32>,
    /// Step under way.
    pub step: Option<u64>,
    /// `capacity`, `fragmentation`, `neighbour`, `outside_allocator`, `leak` or `accumulation`.
    pub cause: String,
    /// Who asked; null when no stack was recorded.
    pub site: Option<Site>,
    /// The request, rounded.
    pub asked_bytes: u64,
    /// Held from the driver when it came.
    pub reserved_bytes: u64,
    /// Of these in use.
    pub active_bytes: u64,
    /// Of these handed out.
    pub allocated_bytes: u64,
    /// Of these free.
    pub free_in_cache_bytes: u64,
    /// The largest free block that could have served it.
    pub largest_usable_bytes: u64,
    /// Holes beside live blocks.
    pub holes: u64,
    /// Given back to the driver in the last attempt.
    pub flushed_bytes: u64,
    /// Still in the cache behind it.
    pub stranded_bytes: u64,
    /// Missing, were all free memory one piece.
    pub missing_bytes: u64,
    /// Free on the device.
    pub device_free_bytes: u64,
    /// The device's size.
    pub device_total_bytes: Option<u64>,
    /// Lower bound of the process's memory limit.
    pub limit_at_least_bytes: Option<u64>,
    /// And less than this.
    pub limit_below_bytes: Option<u64>,
    /// Other processes' memory on the device.
    pub others_bytes: Option<u64>,
    /// This process's memory outside the allocator.
    pub outside_bytes: Option<u64>,
    /// Whether expandable segments would have served it.
    pub expandable_segments_would_serve: bool,
    /// What was live, by class.
    pub classes: Vec<Class>,
    /// What was live, by site, most first.
    pub sites: Vec<Live>,
    /// Blocks that strand most, first.
    pub held_by: Vec<Holder>,
    /// The other ranks.
    pub peers: Vec<Peer>,
    /// Whether the figures are exact.
    pub exact: bool,
}

impl Failed {
    /// Whether live memory grew until this request failed.
    #[must_use]
    pub fn has_grown(&self) -> bool {
        OomCause::of_name(&self.cause).is_some_and(OomCause::is_growth)
    }

    /// The limit of the process: both ends of the interval that the recording allows, or what it held plus what the
    /// device had free.
    #[must_use]
    pub fn limits(&self) -> Vec<Limit> {
        let after = self.reserved_bytes.saturating_sub(self.flushed_bytes);
        let mut limits = match (self.limit_at_least_bytes, self.limit_below_bytes) {
            (Some(low), Some(below)) => vec![Limit::Share(low), Limit::Share(below.saturating_sub(1).max(low))],
            _ => vec![Limit::Device(after.saturating_add(self.device_free_bytes))],
        };
        limits.dedup();
        limits
    }
}

/// Bytes of a class.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Class {
    /// Its name.
    pub class: String,
    /// Live bytes.
    pub live_bytes: u64,
}

/// Live memory of one site.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Live {
    /// Who allocated it; null when no stack was recorded.
    pub site: Option<Site>,
    /// Live bytes.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Live bytes at the end of the last step that ended.
    pub before_bytes: Option<u64>,
}

/// Another rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Peer {
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Held from the driver at its last boundary.
    pub reserved_bytes: u64,
    /// The most it had allocated.
    pub peak_allocated_bytes: u64,
    /// Free on its device.
    pub device_free_bytes: Option<u64>,
}

impl Oom {
    /// The first failed request of a process.
    #[must_use]
    pub fn failure_of(&self, rank: u32, process: &str) -> Option<&Failed> {
        self.failures.iter().find(|failed| failed.rank == rank && failed.process == process)
    }

    /// Adds the advice from replays of the process with the first failure.
    #[must_use]
    pub fn with_replay(mut self, replay: Option<Advice>) -> Self {
        let serves = replay.as_ref().and_then(|advice| advice.serves("expandable_segments:True"));
        if let (Some(first), Some(serves)) = (self.failures.first_mut(), serves) {
            first.expandable_segments_would_serve = serves;
        }
        self.replay = replay;
        self
    }
}

/// One line of NDJSON.
#[derive(Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
enum Line<'a> {
    Job {
        #[serde(flatten)]
        job: &'a Job,
        #[serde(flatten)]
        scope: &'a Scope,
    },
    Failure(&'a Failed),
    Finding(&'a Finding),
}

impl Answer for Oom {
    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        json::line(out, &Line::Job { job: &self.job, scope: &self.scope })?;
        self.failures.iter().try_for_each(|failure| json::line(out, &Line::Failure(failure)))?;
        self.findings.iter().try_for_each(|finding| json::line(out, &Line::Finding(finding)))
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = [
            "rank",
            "device",
            "at",
            "epoch",
            "step",
            "cause",
            "asked_bytes",
            "reserved_bytes",
            "active_bytes",
            "free_in_cache_bytes",
            "largest_usable_bytes",
            "holes",
            "flushed_bytes",
            "stranded_bytes",
            "missing_bytes",
            "device_free_bytes",
            "device_total_bytes",
            "limit_at_least_bytes",
            "limit_below_bytes",
            "others_bytes",
            "outside_bytes",
            "function",
            "file",
            "line",
            "process",
        ];
        csv::header(out, &names)?;
        for failed in &self.failures {
            let site = failed.site.as_ref().map(|site| &site.frame);
            let cells = [
                Cell::plain(failed.rank),
                Cell::plain(failed.device),
                Cell::plain(failed.at),
                Cell::maybe(failed.epoch),
                Cell::maybe(failed.step),
                Cell::text(&failed.cause),
                Cell::plain(failed.asked_bytes),
                Cell::plain(failed.reserved_bytes),
                Cell::plain(failed.active_bytes),
                Cell::plain(failed.free_in_cache_bytes),
                Cell::plain(failed.largest_usable_bytes),
                Cell::plain(failed.holes),
                Cell::plain(failed.flushed_bytes),
                Cell::plain(failed.stranded_bytes),
                Cell::plain(failed.missing_bytes),
                Cell::plain(failed.device_free_bytes),
                Cell::maybe(failed.device_total_bytes),
                Cell::maybe(failed.limit_at_least_bytes),
                Cell::maybe(failed.limit_below_bytes),
                Cell::maybe(failed.others_bytes),
                Cell::maybe(failed.outside_bytes),
                Cell::maybe_text(site.map(|frame| frame.function.as_str())),
                Cell::maybe_text(site.map(|frame| frame.file.as_str())),
                Cell::maybe(site.and_then(|frame| frame.line)),
                Cell::text(&failed.process),
            ];
            csv::record(out, &cells)?;
        }
        Ok(())
    }
}
