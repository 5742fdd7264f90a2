//! `memctl what-if` as data: the memory of a rank's recorded requests under other allocator settings and limits.
//!
//! Guarantees: a replay that does not reproduce the recording is not called exact; what was not examined is named. Does
//! not decide which setting is good: the replays' results include that.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::{Answer, Completeness, Frame, Job, SCHEMA};
use crate::format::csv::{self, Cell};
use crate::format::json;

/// Memory that no replay of an allocator covers.
pub const NEVER: [&str; 2] = [
    "Memory outside PyTorch's allocator: the context, libraries, other processes.",
    "When work on another stream would have ended: a free that waited for it completes where it did in the recording.",
];

/// The memory under other settings.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct WhatIf {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The job.
    pub job: Job,
    /// What the answer rests on.
    pub completeness: Completeness,
    /// By rank and device.
    pub ranks: Vec<Rank>,
    /// Ranks that were not replayed.
    pub ranks_left_out: usize,
    /// What no figure covers.
    pub not_looked_at: Vec<String>,
    /// Flags that reach the same store; `None` = no advice.
    #[serde(skip)]
    pub hint: Option<String>,
}

/// One device of a rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "RankReplays"))]
pub struct Rank {
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Device index in the process.
    pub device: u32,
    /// Whether the replay of the recorded settings repeats every segment and every address.
    pub exact: bool,
    /// What was recorded.
    pub recorded: Recorded,
    /// The same, replayed.
    pub replayed: Replayed,
    /// Other settings and limits.
    pub settings: Vec<Setting>,
    /// The one to take; null where none is worth it.
    pub recommended: Option<Recommended>,
    /// What the settings come to, in sentences; for answers that rest on a replay.
    #[serde(skip)]
    pub says: Vec<String>,
}

/// What was recorded.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Recorded {
    /// `PYTORCH_CUDA_ALLOC_CONF`.
    pub allocator_conf: String,
    /// Framework and version.
    pub torch: Option<String>,
    /// Highest reserved bytes.
    pub peak_reserved_bytes: u64,
    /// Highest allocated bytes.
    pub peak_allocated_bytes: u64,
    /// Highest requested bytes.
    pub peak_requested_bytes: u64,
    /// Segments and pages that the driver gave.
    pub device_allocs: u64,
    /// Segments and pages that went back.
    pub device_frees: u64,
    /// Requests that were served only after the whole cache was released; null if unknown.
    pub retries: Option<u64>,
}

/// The recorded settings, replayed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Replayed {
    /// `PYTORCH_CUDA_ALLOC_CONF`.
    pub allocator_conf: String,
    /// Whose rules.
    pub torch: Option<String>,
    /// Highest reserved bytes.
    pub peak_reserved_bytes: u64,
    /// Highest allocated bytes.
    pub peak_allocated_bytes: u64,
    /// Highest requested bytes.
    pub peak_requested_bytes: u64,
    /// Calls that gave memory.
    pub device_allocs: u64,
    /// Calls that took it back.
    pub device_frees: u64,
    /// Requests that were served only after the whole cache was released.
    pub retries: u64,
    /// The first event that differs from the recording.
    pub differs_at: Option<At>,
}

/// A point of a recording.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct At {
    /// Index of the event on its device.
    pub event: u64,
    /// The step, where steps are marked.
    pub step: Option<u64>,
}

/// One setting under one limit.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Setting {
    /// `PYTORCH_CUDA_ALLOC_CONF`.
    pub allocator_conf: String,
    /// The process's share of the device.
    pub limit_bytes: Option<u64>,
    /// Highest reserved bytes.
    pub peak_reserved_bytes: u64,
    /// Highest allocated bytes.
    pub peak_allocated_bytes: u64,
    /// Calls that gave memory.
    pub device_allocs: u64,
    /// Calls that took it back.
    pub device_frees: u64,
    /// Requests that were served only after the whole cache was released.
    pub retries: u64,
    /// Where it ended.
    pub out_of_memory: Option<Ended>,
    /// What to know before it is used.
    pub cautions: Vec<String>,
    /// Lowest and highest peak of reserved bytes where no replay is possible; null where it is.
    pub bounds: Option<Vec<u64>>,
}

/// A request that fails.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Ended {
    /// Index of the event on its device.
    pub event: u64,
    /// The step, where steps are marked.
    pub step: Option<u64>,
    /// What was asked.
    pub requested_bytes: u64,
    /// By whom.
    pub site: Option<Frame>,
}

/// The recommended setting.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Recommended {
    /// `PYTORCH_CUDA_ALLOC_CONF`.
    pub allocator_conf: String,
    /// Reserved bytes less than under the recorded settings.
    pub saves_bytes: u64,
    /// One sentence.
    pub why: String,
}

/// A line of NDJSON.
#[derive(Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
enum Line<'a> {
    Job {
        #[serde(flatten)]
        job: &'a Job,
        not_looked_at: &'a [String],
    },
    Rank(&'a Rank),
}

impl WhatIf {
    /// Makes an answer about a job.
    #[must_use]
    pub fn new(job: Job, completeness: Completeness, ranks: Vec<Rank>, ranks_left_out: usize) -> Self {
        Self { schema: SCHEMA, job, completeness, ranks, ranks_left_out, not_looked_at: Vec::new(), hint: None }
    }
}

impl Answer for WhatIf {
    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        json::line(out, &Line::Job { job: &self.job, not_looked_at: &self.not_looked_at })?;
        self.ranks.iter().try_for_each(|rank| json::line(out, &Line::Rank(rank)))
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = [
            "rank",
            "device",
            "allocator_conf",
            "limit_bytes",
            "peak_reserved_bytes",
            "peak_allocated_bytes",
            "device_allocs",
            "device_frees",
            "retries",
            "out_of_memory_event",
            "exact",
            "process",
        ];
        csv::header(out, &names)?;
        for rank in &self.ranks {
            for setting in &rank.settings {
                let cells = [
                    Cell::plain(rank.rank),
                    Cell::plain(rank.device),
                    Cell::text(&setting.allocator_conf),
                    Cell::maybe(setting.limit_bytes),
                    Cell::plain(setting.peak_reserved_bytes),
                    Cell::plain(setting.peak_allocated_bytes),
                    Cell::plain(setting.device_allocs),
                    Cell::plain(setting.device_frees),
                    Cell::plain(setting.retries),
                    Cell::maybe(setting.out_of_memory.as_ref().map(|ended| ended.event)),
                    Cell::plain(rank.exact),
                    Cell::text(&rank.process),
                ];
                csv::record(out, &cells)?;
            }
        }
        Ok(())
    }
}
