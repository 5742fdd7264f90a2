//! `memctl timeline` as data.

use std::borrow::Cow;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::{Answer, Completeness, Job};
use crate::format::csv::{self, Cell};
use crate::format::json;
use crate::format::time::Time;

/// Memory over time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Timeline {
    /// See [`super::SCHEMA`].
    pub schema: u32,
    /// The job.
    pub job: Job,
    /// What the answer rests on.
    pub completeness: Completeness,
    /// By rank.
    pub ranks: Vec<RankTimeline>,
    /// Points that each device has at most: fewer than were asked for where the job has many devices.
    pub points: u32,
    /// For the page: the ranks were chosen, so each of them is drawn.
    #[serde(skip)]
    pub chosen: bool,
    /// For the page: flags that reach the same store; `None` = no advice.
    #[serde(skip)]
    pub hint: Option<String>,
}

/// The timeline of one rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct RankTimeline {
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Device index in the process.
    pub device: u32,
    /// In the order of time.
    pub points: Vec<Point>,
    /// In the order of time.
    pub marks: Vec<Mark>,
    /// For the page: the lowest level from each moment up to the last boundary, in the order of time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub floor: Vec<FloorStep>,
}

/// A step of the floor: it holds from the previous step's end to its own.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct FloorStep {
    /// Its end; that of the last step is the last boundary.
    pub until: Time,
    /// The lowest level from anywhere within it up to the last boundary.
    pub allocated_bytes: u64,
}

/// The levels within one stretch of time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Point {
    /// Its beginning.
    pub first_at: Time,
    /// Its end.
    pub last_at: Time,
    /// Epoch at its end.
    pub epoch: u32,
    /// Step at its end.
    pub step: u64,
    /// At its end.
    pub allocated_bytes: u64,
    /// At its end.
    pub reserved_bytes: u64,
    /// Highest within.
    pub peak_allocated_bytes: u64,
    /// Highest within.
    pub peak_reserved_bytes: u64,
    /// Lowest within.
    pub min_allocated_bytes: u64,
}

/// A mark.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Mark {
    /// When.
    pub at: Time,
    /// What it says: `epoch_begin`, `step_end`, `note`, …
    pub kind: Cow<'static, str>,
    /// The epoch or step, where it has one.
    pub value: Option<u64>,
    /// The phase's, region's or note's name, where it has one.
    pub name: Option<String>,
}

/// One line of NDJSON.
#[derive(Serialize)]
struct Line<'a, T> {
    record: &'static str,
    rank: u32,
    process: &'a str,
    device: u32,
    #[serde(flatten)]
    what: &'a T,
}

impl Answer for Timeline {
    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        self.ranks.iter().try_for_each(|of| {
            let RankTimeline { rank, process, device, points, marks, floor: _ } = of;
            let (rank, device) = (*rank, *device);
            let point = |what| Line { record: "point", rank, process, device, what };
            let mark = |what| Line { record: "mark", rank, process, device, what };
            points.iter().try_for_each(|what| json::line(out, &point(what)))?;
            marks.iter().try_for_each(|what| json::line(out, &mark(what)))
        })
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        csv::header(
            out,
            &[
                "rank",
                "device",
                "first_at",
                "last_at",
                "epoch",
                "step",
                "allocated_bytes",
                "reserved_bytes",
                "peak_allocated_bytes",
                "peak_reserved_bytes",
                "min_allocated_bytes",
                "process",
            ],
        )?;
        for of in &self.ranks {
            for point in &of.points {
                let cells = [
                    Cell::plain(of.rank),
                    Cell::plain(of.device),
                    Cell::plain(point.first_at),
                    Cell::plain(point.last_at),
                    Cell::plain(point.epoch),
                    Cell::plain(point.step),
                    Cell::plain(point.allocated_bytes),
                    Cell::plain(point.reserved_bytes),
                    Cell::plain(point.peak_allocated_bytes),
                    Cell::plain(point.peak_reserved_bytes),
                    Cell::plain(point.min_allocated_bytes),
                    Cell::text(&of.process),
                ];
                csv::record(out, &cells)?;
            }
        }
        Ok(())
    }
}
