//! Answers: the content of JSON, NDJSON, CSV and diagnoses, made from the daemon's responses.
//!
//! Guarantees: fields are only added to `"schema": 2`; bytes are integers named `*_bytes`, times RFC 3339, ratios 0..1;
//! unknown values are null, never 0. This crate does not depend on a terminal, a command line or a connection: the
//! caller shows the answer.

#![forbid(unsafe_code)]

pub mod access;
pub mod advice;
pub mod advising;
pub mod alerts;
mod alignment;
pub mod anatomy;
pub mod assert;
pub mod baseline;
pub mod blocks;
pub mod classes;
pub mod conditions;
pub mod diagnose;
pub mod diff;
pub mod dossier;
pub mod finding;
pub mod fit;
pub mod fitting;
pub mod format;
pub mod frag;
pub mod heat;
pub mod holders;
pub mod jobs;
pub mod judged;
pub mod leaks;
pub mod ledger;
pub mod naming;
pub mod need;
pub mod oom;
pub mod processes;
pub mod profile;
pub mod ranks;
pub mod replaying;
pub mod report;
pub mod sites;
pub mod sparkline;
pub mod step_memory;
pub mod tile;
pub mod timeline;
#[cfg(test)]
mod typescript;
pub mod verdict;
pub mod what_if;
pub mod wire;

use memctl_model::JobState;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use format::csv::{self, Cell};
use format::json;
use format::time::Time;
use verdict::Verdict;

/// The schema of every JSON answer.
pub const SCHEMA: u32 = 2;

/// An answer that can be written as data in every format.
pub trait Answer: Serialize + Sized {
    /// One object.
    ///
    /// # Errors
    /// The writer's.
    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        json::pretty(out, self)
    }

    /// One object per line.
    ///
    /// # Errors
    /// The writer's.
    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()>;

    /// A header and records.
    ///
    /// # Errors
    /// The writer's.
    fn csv(&self, out: &mut dyn Write) -> io::Result<()>;
}

/// An answer that is a list: a row is one line of NDJSON and one record of CSV.
trait Listing: Serialize {
    type Row: Serialize;
    /// The names of the CSV columns.
    const COLUMNS: &'static [&'static str];

    fn rows(&self) -> &[Self::Row];

    /// The cells of a row, by column.
    fn cells(row: &Self::Row) -> Vec<Cell>;
}

impl<T: Listing> Answer for T {
    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        self.rows().iter().try_for_each(|row| json::line(out, row))
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        csv::header(out, T::COLUMNS)?;
        self.rows().iter().try_for_each(|row| csv::record(out, &T::cells(row)))
    }
}

/// A job.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Job {
    /// What it is asked for by: its name, and behind `#` its run where the name has several.
    pub id: String,
    /// Its name, which its runs share.
    pub name: String,
    /// The number of the run; null where the daemon knows no runs.
    pub run: Option<u32>,
    /// `running`, `finished`, `failed` or `lost`.
    #[serde(with = "state_by_name")]
    #[cfg_attr(test, ts(as = "crate::typescript::ByName<JobState>"))]
    pub state: JobState,
    /// When it began.
    pub started_at: Time,
    /// When it was started, or imported.
    pub arrived_at: Time,
    /// When it ended.
    pub ended_at: Option<Time>,
    /// Ranks it should have.
    pub world_size: Option<u32>,
    /// Which attempt this is.
    pub attempt: u32,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Events in the store.
    pub events: u64,
    /// Bytes in the store.
    pub stored_bytes: u64,
    /// Ranks that are stored.
    pub ranks: u32,
    /// Processes that allocated.
    pub processes: u32,
    /// Sessions that a later one of the same place followed: not shown and not judged.
    pub earlier_sessions: u32,
    /// Attempts that are stored.
    pub attempts: u32,
    /// `live` or `import`.
    pub source: Option<Cow<'static, str>>,
    /// The tenant that owns the job.
    pub tenant: String,
    /// What judging it came to; null where it was not judged for this answer.
    pub verdict: Option<JobVerdict>,
}

impl Job {
    /// The verdict on its memory, if it was judged for this answer.
    #[must_use]
    pub fn memory(&self) -> Option<&Verdict> {
        self.verdict.as_ref().and_then(|job| job.verdict.as_ref())
    }
}

/// A job's verdict in brief.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct JobVerdict {
    /// What its memory did.
    #[serde(flatten)]
    #[cfg_attr(test, ts(skip))] // see EXTENDS in typescript.rs
    pub verdict: Option<Verdict>,
    /// Of the worst finding; null where nothing was found.
    #[cfg_attr(test, ts(as = "Option<crate::typescript::ByName<memctl_model::Severity>>"))]
    pub severity: Option<Cow<'static, str>>,
    /// Its kind.
    pub finding: Option<String>,
    /// Its sentence.
    pub title: Option<String>,
    /// Findings in all.
    pub findings: u32,
    /// Why no finding means nothing; null where it does mean something.
    pub inconclusive: Option<String>,
}

/// How complete the data behind an answer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Completeness {
    /// Nothing is missing.
    pub exact: bool,
    /// Events in the store.
    pub events_stored: u64,
    /// Events that agents dropped and counted.
    pub events_dropped: u64,
    /// Items that never arrived.
    pub gaps: u64,
    /// Events removed by retention.
    pub events_expired: u64,
    /// Stored items that were found damaged when they were read: the answer is given without them.
    #[serde(default)]
    pub items_damaged: u64,
}

impl From<memctl_model::Completeness> for Completeness {
    fn from(completeness: memctl_model::Completeness) -> Self {
        let memctl_model::Completeness { exact, events_stored, events_dropped, events_expired, gaps, items_damaged } =
            completeness;
        Self { exact, events_stored, events_dropped, gaps, events_expired, items_damaged }
    }
}

/// One line of a call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Frame {
    /// Function.
    pub function: String,
    /// File, as recorded.
    pub file: String,
    /// Line; null when unknown.
    pub line: Option<u32>,
}

impl Frame {
    /// Whether it is the user's own code.
    #[must_use]
    pub fn is_user_code(&self) -> bool {
        self.as_model().is_user_code()
    }

    /// Whether it is a C or C++ frame.
    #[must_use]
    pub fn is_native(&self) -> bool {
        self.as_model().is_native()
    }

    fn as_model(&self) -> memctl_model::Frame {
        memctl_model::Frame { function: self.function.as_str().into(), file: self.file.as_str().into(), line: 0 }
    }
}

/// The frame by which a stack is named, innermost frame first: see [`memctl_model::site_of`].
#[must_use]
pub fn site_of(stack: &[Frame]) -> Option<Frame> {
    let model = |frame: &Frame| memctl_model::Frame {
        function: frame.function.as_str().into(),
        file: frame.file.as_str().into(),
        line: frame.line.unwrap_or(0),
    };
    let frames: Vec<memctl_model::Frame> = stack.iter().map(model).collect();
    memctl_model::site_of(frames.iter()).map(Frame::from)
}

/// The owner of a stack's memory, if the process named it, and the stack's calls, innermost first.
#[must_use]
pub fn owned(mut stack: Vec<Frame>) -> (Option<String>, Vec<Frame>) {
    let model = |frame: &Frame| memctl_model::Frame {
        function: frame.function.as_str().into(),
        file: frame.file.as_str().into(),
        line: 0,
    };
    let owner = stack.first().and_then(|frame| model(frame).owner().map(str::to_owned));
    stack.drain(..usize::from(owner.is_some()));
    (owner, stack)
}

impl From<&memctl_model::Frame> for Frame {
    fn from(frame: &memctl_model::Frame) -> Self {
        let memctl_model::Frame { function, file, line } = frame;
        Self { function: function.to_string(), file: file.to_string(), line: Some(*line).filter(|&line| line > 0) }
    }
}

/// A number; `None` if it is not finite.
#[must_use]
pub fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// A rate in whole bytes; `None` if it is not finite.
#[must_use]
pub fn whole(rate: f64) -> Option<i64> {
    // The cast saturates, which is right for rates beyond 8 EiB.
    rate.is_finite().then(|| rate.round() as i64)
}

/// A job's state by its name.
mod state_by_name {
    use memctl_model::JobState;
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(state: &JobState, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(state.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<JobState, D::Error> {
        let name = String::deserialize(from)?;
        JobState::of_name(&name).ok_or_else(|| de::Error::custom(format!("{name} is no state of a job")))
    }
}
