//! What a device's live memory was for, at every boundary of which a site table is stored: the stacked classes of a course.
//!
//! Guarantees: the bytes of a point sum to what was live then; points are in the order of time. Between two points nothing is
//! known of classes, and nothing is said.

use serde::Serialize;

use crate::{Completeness, Job};

/// See the module.
#[derive(Clone, Debug, Serialize)]
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
    /// Up to when steps were looked at, where there were too many; null where all were.
    pub looked_until: Option<String>,
}

/// A boundary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
