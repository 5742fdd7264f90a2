//! `memctl fit` as data: a training was recorded at one or two sizes; its memory is forecast for other sizes and with
//! changes.
//!
//! Guarantees: every forecast has an interval; requests that are in only one recording or in doubt are counted;
//! memory that no figure covers is named. Whether a size fits is decided by the replays, not here.

mod changes;
mod recording;

use std::io::{self, Write};

pub use changes::{Checkpoint, Gone, Held, Holder, LeftOut, Measure, Peak, Under, Without};
pub use recording::{Growing, Recording, Replayed};
use serde::{Deserialize, Serialize};

use super::{Answer, SCHEMA};
use crate::format::csv::{self, Cell};
use crate::format::json;

/// The forecast for other sizes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Fit {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The recordings, the smaller size first.
    pub recordings: Vec<Recording>,
    /// How the requests of two recordings were aligned.
    pub aligned: Option<Aligned>,
    /// How the requests of the only recording are assumed to scale, if other sizes were requested.
    pub scaled: Option<Scaled>,
    /// The bytes that the process may reserve, if they were given.
    pub device_memory_bytes: Option<u64>,
    /// By size, as asked.
    pub at: Vec<At>,
    /// The largest size that fits; null if none fits or if `device_memory_bytes` is null.
    pub largest_that_fits: Option<u64>,
    /// The forecast without the blocks of a site, if it was requested.
    pub without: Option<Without>,
    /// The forecast with activation checkpointing, if it was requested.
    pub checkpoint: Option<Checkpoint>,
    /// The recordings whose memory grows. Empty for the page's forecast, because that is not about a run.
    pub growing: Vec<Growing>,
    /// The explanation of the peak, if `--under` was given.
    pub peak: Option<Peak>,
    /// The changes that reduce the peak below the bytes of `--under`.
    pub under: Option<Under>,
    /// What no figure covers.
    pub not_looked_at: Vec<String>,
}

/// How requests were aligned, counted in the larger recording.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Aligned {
    /// Requests for memory.
    pub requests: u64,
    /// The same bytes in both.
    pub constant: u64,
    /// In proportion to the size.
    pub linear: u64,
    /// In proportion to its square.
    pub quadratic: u64,
    /// Changed otherwise.
    pub other: u64,
    /// Only in the larger recording.
    pub unmatched: u64,
    /// Bytes of these.
    pub unmatched_bytes: u64,
}

/// How the requests of one recording are assumed to scale.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Scaled {
    /// Requests for memory.
    pub requests: u64,
    /// Certainly or probably the same at every size.
    pub fixed: u64,
    /// Bytes of these.
    pub fixed_bytes: u64,
    /// Certainly or probably in proportion to the size.
    pub proportional: u64,
    /// Bytes of these.
    pub proportional_bytes: u64,
    /// Those among them that are in doubt.
    pub doubtful: u64,
    /// Bytes of these.
    pub doubtful_bytes: u64,
}

/// One size.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "FitSize"))]
pub struct At {
    /// The number.
    pub size: u64,
    /// Highest allocated bytes.
    pub peak_allocated_bytes: u64,
    /// Highest reserved bytes.
    pub peak_reserved_bytes: u64,
    /// Lowest likely peak of reserved bytes.
    pub low: u64,
    /// Highest likely peak of reserved bytes.
    pub high: u64,
    /// Whether every request is served; null if `device_memory_bytes` is null.
    pub fits: Option<bool>,
}

/// A line of NDJSON.
#[derive(Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
enum Line<'a> {
    Recording(&'a Recording),
    Growing(&'a Growing),
    Size(&'a At),
    Without(&'a Without),
    Checkpoint(&'a Checkpoint),
    Peak(&'a Peak),
    Under(&'a Under),
}

impl Answer for Fit {
    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        self.recordings.iter().try_for_each(|recording| json::line(out, &Line::Recording(recording)))?;
        self.growing.iter().try_for_each(|growing| json::line(out, &Line::Growing(growing)))?;
        self.at.iter().try_for_each(|at| json::line(out, &Line::Size(at)))?;
        let changes = [
            self.without.as_ref().map(Line::Without),
            self.checkpoint.as_ref().map(Line::Checkpoint),
            self.peak.as_ref().map(Line::Peak),
            self.under.as_ref().map(Line::Under),
        ];
        changes.iter().flatten().try_for_each(|line| json::line(out, line))
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        csv::header(out, &["size", "peak_allocated_bytes", "peak_reserved_bytes", "low", "high", "fits"])?;
        for at in &self.at {
            let cells = [
                Cell::plain(at.size),
                Cell::plain(at.peak_allocated_bytes),
                Cell::plain(at.peak_reserved_bytes),
                Cell::plain(at.low),
                Cell::plain(at.high),
                Cell::maybe(at.fits),
            ];
            csv::record(out, &cells)?;
        }
        Ok(())
    }
}

impl Fit {
    /// An answer without figures.
    #[must_use]
    pub fn new(recordings: Vec<Recording>, device_memory_bytes: Option<u64>) -> Self {
        Self {
            schema: SCHEMA,
            recordings,
            aligned: None,
            scaled: None,
            device_memory_bytes,
            at: Vec::new(),
            largest_that_fits: None,
            without: None,
            checkpoint: None,
            growing: Vec::new(),
            peak: None,
            under: None,
            not_looked_at: Vec::new(),
        }
    }
}
