//! `memctl timeline` as data.

use std::io::{self, Write};

use memctl_proto::v1;
use serde::Serialize;

use super::{Answer, Completeness, Job, PartMissing, SCHEMA, part};
use crate::format::csv::{self, Cell};
use crate::format::{json, time};

/// Memory over time.
#[derive(Clone, Debug, Serialize)]
pub struct Timeline {
    /// See [`SCHEMA`].
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

/// One rank's.
#[derive(Clone, Debug, Serialize)]
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
}

/// What happened within one stretch of time.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Its beginning.
    pub first_at: String,
    /// Its end.
    pub last_at: String,
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
    /// For the plot.
    #[serde(skip)]
    pub first_ns: u64,
    /// For the plot.
    #[serde(skip)]
    pub last_ns: u64,
}

/// A mark.
#[derive(Clone, Debug, Serialize)]
pub struct Mark {
    /// When.
    pub at: String,
    /// What it says: `epoch_begin`, `step_end`, `note`, …
    pub kind: &'static str,
    /// The epoch or step, where it has one.
    pub value: Option<u64>,
    /// The phase's, region's or note's name, where it has one.
    pub name: Option<String>,
}

impl Timeline {
    /// From the wire.
    ///
    /// # Errors
    /// An answer without a job.
    pub fn new(wire: v1::Timeline, chosen: bool, hint: Option<String>) -> Result<Self, PartMissing> {
        let v1::Timeline { job, completeness, ranks, points } = wire;
        let mut ranks: Vec<RankTimeline> = ranks.into_iter().map(RankTimeline::from).collect();
        ranks.sort_by_key(|rank| (rank.rank, rank.device));
        Ok(Self {
            schema: SCHEMA,
            job: part(job, "job")?.into(),
            completeness: part(completeness, "completeness")?.into(),
            ranks,
            points,
            chosen,
            hint,
        })
    }
}

impl From<v1::RankTimeline> for RankTimeline {
    fn from(wire: v1::RankTimeline) -> Self {
        let v1::RankTimeline { rank, device, points, marks, process } = wire;
        Self {
            rank,
            process,
            device,
            points: points.into_iter().map(Point::from).collect(),
            marks: marks.into_iter().map(Mark::from).collect(),
        }
    }
}

impl From<v1::TimelinePoint> for Point {
    fn from(wire: v1::TimelinePoint) -> Self {
        let v1::TimelinePoint {
            first_ns,
            last_ns,
            epoch,
            step,
            allocated_bytes,
            reserved_bytes,
            peak_allocated_bytes,
            peak_reserved_bytes,
            min_allocated_bytes,
        } = wire;
        Self {
            first_at: time::rfc3339(first_ns),
            last_at: time::rfc3339(last_ns),
            epoch,
            step,
            allocated_bytes,
            reserved_bytes,
            peak_allocated_bytes,
            peak_reserved_bytes,
            min_allocated_bytes,
            first_ns,
            last_ns,
        }
    }
}

impl From<v1::TimelineMark> for Mark {
    fn from(wire: v1::TimelineMark) -> Self {
        use v1::MarkKind as Kind;
        let (kind, counted) = match wire.kind() {
            Kind::EpochBegin => ("epoch_begin", true),
            Kind::EpochEnd => ("epoch_end", true),
            Kind::StepBegin => ("step_begin", true),
            Kind::StepEnd => ("step_end", true),
            Kind::PhaseBegin => ("phase_begin", false),
            Kind::PhaseEnd => ("phase_end", false),
            Kind::RegionBegin => ("region_begin", false),
            Kind::RegionEnd => ("region_end", false),
            Kind::WindowEnd => ("window_end", true),
            // A mark of a newer daemon is worth a note.
            Kind::Note | Kind::Unspecified => ("note", false),
        };
        let v1::TimelineMark { time_ns, kind: _, value, name } = wire;
        Self {
            at: time::rfc3339(time_ns),
            kind,
            value: counted.then_some(value),
            name: (!name.is_empty()).then_some(name),
        }
    }
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
    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        json::pretty(out, self)
    }

    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        self.ranks.iter().try_for_each(|of| {
            let RankTimeline { rank, process, device, points, marks } = of;
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
                    Cell::plain(&point.first_at),
                    Cell::plain(&point.last_at),
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
