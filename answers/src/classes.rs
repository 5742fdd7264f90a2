//! The classes of a device's live memory at every boundary with a stored site table, for the stacked areas of a
//! timeline.
//!
//! Guarantees: the bytes of a point sum to the live bytes at that time; points are in the order of time. Between two
//! points, classes are known only if the range has few enough events for slots. The bytes of a slot sum to the
//! allocated bytes at its highest moment.

use serde::Serialize;

use crate::format::time::Time;
use crate::{Completeness, Job};

/// The classes of a device's live memory over time.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Classes {
    /// See [`SCHEMA`](crate::SCHEMA).
    pub schema: u32,
    /// The job.
    pub job: Job,
    /// What the answer rests on.
    pub completeness: Completeness,
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Device index in the process.
    pub device: u32,
    /// Names of the classes, in the order of a point's bytes.
    pub classes: Vec<&'static str>,
    /// The boundaries, by time.
    pub points: Vec<Point>,
    /// Boundaries between them that had no room in the answer.
    pub points_left_out: u64,
    /// Consecutive stretches of time, each with the classes of its highest moment; empty where there are too many
    /// events.
    #[cfg_attr(test, ts(as = "Option<Vec<Slot>>", optional))] // an older daemon does not send it
    pub slots: Vec<Slot>,
    /// Up to when steps were looked at, where there were too many; null where all were.
    pub looked_until: Option<String>,
}

/// A boundary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "ClassesPoint"))]
pub struct Point {
    /// When.
    pub at: String,
    /// `step`, `epoch`, `window` or `end`.
    pub boundary: &'static str,
    /// Epoch that ended or is under way.
    pub epoch: u32,
    /// Step that ended or was the last one.
    pub step: u64,
    /// Whether the figures are exact.
    pub exact: bool,
    /// Live bytes of each class.
    pub bytes: Vec<u64>,
}

/// A stretch of time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "ClassesSlot"))]
pub struct Slot {
    /// Its beginning.
    pub from: Time,
    /// Its end.
    pub until: Time,
    /// Allocated bytes of each class at its highest moment.
    pub bytes: Vec<u64>,
}
