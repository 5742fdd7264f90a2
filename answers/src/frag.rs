//! `memctl frag` as data: the layout of each rank's free memory, what pins it, and whether a request would fail.
//!
//! (A table of fields with their meaning, and their conversion from the wire. Nothing here decides anything.)

use std::borrow::Cow;
use std::io::{self, Write};

use memctl_analysis::display_threshold;
use memctl_model::HumanBytes;
use serde::{Deserialize, Serialize};

use super::advice::Advice;
use super::finding::{Finding, Site};
use super::judged::Scope;
use super::{Answer, Completeness, Frame, Job};
use crate::format::csv::{self, Cell};
use crate::format::json;
use crate::naming::place;

/// Sites that a sentence names.
const SITES_NAMED: usize = 3;

/// How a job's memory is fragmented.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Fragmentation {
    /// See [`super::SCHEMA`].
    pub schema: u32,
    /// The job.
    pub job: Job,
    /// What the answer rests on.
    pub completeness: Completeness,
    /// By rank and device.
    pub ranks: Vec<Rank>,
    /// About fragmentation and churn, the worst first.
    pub findings: Vec<Finding>,
    /// Ranks that were not looked at.
    pub ranks_left_out: u32,
    /// What the findings, or their absence, rest on.
    #[serde(flatten)]
    pub scope: Scope,
    /// Flags that reach the same store; `None` = no advice.
    #[serde(skip)]
    pub hint: Option<String>,
    /// What allocator settings would do, where something was found; null where nothing was.
    pub replay: Option<Advice>,
}

/// One device of a rank, at its fullest moment or when a request failed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Rank {
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Device index in the process.
    pub device: u32,
    /// The moment: epoch.
    pub epoch: Option<u32>,
    /// The moment: step.
    pub step: Option<u64>,
    /// Held from the driver.
    pub reserved_bytes: u64,
    /// In use, blocks that wait for another stream included.
    pub active_bytes: u64,
    /// Handed out.
    pub allocated_bytes: u64,
    /// What was asked for, of the active blocks.
    pub requested_bytes: u64,
    /// Free in segments without a live block.
    pub empty_segment_bytes: u64,
    /// Free beside live blocks.
    pub stranded_bytes: u64,
    /// Holes beside live blocks.
    pub holes: u64,
    /// The largest of them.
    pub largest_hole_bytes: u64,
    /// The largest free block.
    pub largest_free_bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Segments with live and free bytes.
    pub partly_used_segments: u64,
    /// Allocated at the height of a typical step.
    pub typical_step_bytes: Option<u64>,
    /// Allocated at the height of the highest step.
    pub highest_step_bytes: Option<u64>,
    /// Number of steps these figures are based on.
    pub steps: u64,
    /// Reserved at the end beyond the highest step.
    pub unused_bytes: Option<u64>,
    /// Share of the requested bytes from sites whose sizes go up and down.
    pub varying_share: Option<f64>,
    /// The largest request of the last steps, or the one that failed.
    pub largest_request_bytes: Option<u64>,
    /// The largest free block that could serve it.
    pub largest_usable_bytes: u64,
    /// What the allocator could still get from the driver.
    pub room_bytes: Option<u64>,
    /// Whether such a request would be served.
    pub would_fit: Option<bool>,
    /// Why memory lies idle.
    pub cause: Option<String>,
    /// How much for that cause.
    pub idle_bytes: Option<u64>,
    /// Severity.
    pub severity: Option<Cow<'static, str>>,
    /// Whether expandable segments are on.
    pub expandable_segments: bool,
    /// The share of the free bytes that cannot serve a request of each size.
    pub unusable_free: Vec<Share>,
    /// Free blocks by stream, pool and kind.
    pub free_lists: Vec<FreeList>,
    /// Blocks that strand most, first.
    pub held_by: Vec<Holder>,
    /// What was asked of the driver in steady state.
    pub churn: Option<Churn>,
}

/// A point of the unusable-free curve.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Share {
    /// Size of the request.
    pub request_bytes: u64,
    /// Share of the free bytes that cannot serve it, 0..1.
    pub unusable: f64,
}

/// Free blocks that one stream can use for one kind of request in one pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FreeList {
    /// Stream.
    pub stream: u64,
    /// Pool.
    pub pool: String,
    /// `small` (requests up to 1 MiB) or `large`.
    pub kind: Cow<'static, str>,
    /// Bytes of its segments.
    pub reserved_bytes: u64,
    /// Its segments.
    pub segments: u64,
    /// Its free blocks.
    pub free_blocks: u64,
    /// Their bytes.
    pub free_bytes: u64,
    /// The largest.
    pub largest_free_bytes: u64,
    /// The share of these bytes that cannot serve a request of each size.
    pub unusable_free: Vec<Share>,
}

/// Live blocks of one site beside free memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "StrandingHolder"))]
pub struct Holder {
    /// Who allocated them; null when no stack was recorded.
    pub site: Option<Site>,
    /// Blocks.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// Segments they lie in.
    pub segments: u64,
    /// Free bytes of these segments, shared evenly by their live blocks.
    pub stranded_bytes: u64,
    /// Earliest birth.
    pub birth_epoch: u32,
    /// Earliest birth.
    pub birth_step: u64,
    /// Phase of the earliest birth.
    pub birth_phase: Option<String>,
}

/// Memory that was requested from the driver in steady state.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Churn {
    /// Steps looked at.
    pub steps: u64,
    /// Steps that took memory.
    pub steps_taking: u64,
    /// Steps that gave memory back.
    pub steps_returning: u64,
    /// Calls that took memory.
    pub takes: u64,
    /// Their bytes.
    pub taken_bytes: u64,
    /// Calls that gave memory back.
    pub returns: u64,
    /// Their bytes.
    pub returned_bytes: u64,
    /// Taken beyond what reserved memory grew by.
    pub taken_again_bytes: u64,
    /// Allocations per step.
    pub allocations_per_step: Option<f64>,
    /// Times the cache was emptied because a request found no room.
    pub alloc_retries: Option<u64>,
}

impl Fragmentation {
    /// The rank that wastes most.
    #[must_use]
    pub fn worst(&self) -> Option<&Rank> {
        self.ranks.iter().max_by_key(|rank| {
            (
                rank.severity.is_some(),
                rank.idle_bytes,
                rank.reserved_bytes.saturating_sub(rank.active_bytes),
                std::cmp::Reverse(rank.rank),
            )
        })
    }
}

impl Holder {
    /// The innermost frame of the user's own code.
    #[must_use]
    pub fn frame(&self) -> Option<&Frame> {
        self.site.as_ref().map(|site| &site.frame)
    }
}

/// Who pins free memory, in one sentence.
#[must_use]
pub fn pinned(holders: &[Holder]) -> Option<String> {
    let all: u64 = holders.iter().fold(0, |sum, holder| sum.saturating_add(holder.stranded_bytes));
    let named = holders.iter().filter(|holder| display_threshold::is_holder_named(holder.stranded_bytes, all));
    let parts: Vec<String> = named
        .take(SITES_NAMED)
        .map(|holder| {
            let blocks = if holder.live_blocks == 1 { "block" } else { "blocks" };
            let site = holder.frame().map_or_else(|| "an unknown site".to_owned(), place);
            let beside = HumanBytes::of(holder.stranded_bytes);
            format!("{} {blocks} of {site} beside {beside}", holder.live_blocks)
        })
        .collect();
    (!parts.is_empty()).then(|| format!("What pins free memory: {}.", parts.join("; ")))
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
    Rank(&'a Rank),
    Finding(&'a Finding),
}

impl Answer for Fragmentation {
    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        json::line(out, &Line::Job { job: &self.job, scope: &self.scope })?;
        self.ranks.iter().try_for_each(|rank| json::line(out, &Line::Rank(rank)))?;
        self.findings.iter().try_for_each(|finding| json::line(out, &Line::Finding(finding)))
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = [
            "rank",
            "device",
            "epoch",
            "step",
            "reserved_bytes",
            "active_bytes",
            "allocated_bytes",
            "requested_bytes",
            "empty_segment_bytes",
            "stranded_bytes",
            "holes",
            "largest_free_bytes",
            "typical_step_bytes",
            "unused_bytes",
            "varying_share",
            "largest_request_bytes",
            "largest_usable_bytes",
            "room_bytes",
            "would_fit",
            "cause",
            "idle_bytes",
            "severity",
            "process",
        ];
        csv::header(out, &names)?;
        for rank in &self.ranks {
            let cells = [
                Cell::plain(rank.rank),
                Cell::plain(rank.device),
                Cell::maybe(rank.epoch),
                Cell::maybe(rank.step),
                Cell::plain(rank.reserved_bytes),
                Cell::plain(rank.active_bytes),
                Cell::plain(rank.allocated_bytes),
                Cell::plain(rank.requested_bytes),
                Cell::plain(rank.empty_segment_bytes),
                Cell::plain(rank.stranded_bytes),
                Cell::plain(rank.holes),
                Cell::plain(rank.largest_free_bytes),
                Cell::maybe(rank.typical_step_bytes),
                Cell::maybe(rank.unused_bytes),
                Cell::maybe(rank.varying_share),
                Cell::maybe(rank.largest_request_bytes),
                Cell::plain(rank.largest_usable_bytes),
                Cell::maybe(rank.room_bytes),
                Cell::maybe(rank.would_fit),
                Cell::maybe_text(rank.cause.as_deref()),
                Cell::maybe(rank.idle_bytes),
                Cell::maybe(rank.severity.as_deref()),
                Cell::text(&rank.process),
            ];
            csv::record(out, &cells)?;
        }
        Ok(())
    }
}
