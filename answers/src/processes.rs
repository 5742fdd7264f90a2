//! The processes of a job as data: one row each, for any rank and any number of devices.

use memctl_model::JobState;
use serde::{Deserialize, Serialize};

use super::{Completeness, Job};
use crate::format::time::Time;

/// A process that allocated.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Process {
    /// Its name within the job: what `--process` takes.
    pub process: String,
    /// Its role; null if unknown.
    pub role: Option<String>,
    /// Its rank.
    pub rank: u32,
    /// Host name.
    pub host: Option<String>,
    /// Process id.
    pub pid: Option<u32>,
    /// Its parent's.
    pub parent_pid: Option<u32>,
    /// Indexes of the devices that it used.
    pub devices: Vec<u32>,
    /// Events in the store.
    pub events: u64,
    /// Bytes in the store.
    pub stored_bytes: u64,
    /// `running`, `finished`, `failed` or `lost`.
    #[serde(with = "super::state_by_name")]
    #[cfg_attr(test, ts(as = "crate::typescript::ByName<JobState>"))]
    pub state: JobState,
    /// How it ended, when it did not end well.
    pub failure: Option<String>,
    /// When it was first heard of.
    pub started_at: Time,
    /// When it ended.
    pub ended_at: Option<Time>,
    /// Framework and version.
    pub framework: Option<String>,
    /// What its figures rest on.
    pub completeness: Completeness,
}

impl Process {
    /// Whether its rank alone identifies it.
    #[must_use]
    pub fn is_rank(&self) -> bool {
        self.process.is_empty() || self.process == format!("rank {}", self.rank)
    }
}

/// A job and its processes, without an analysis.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct JobProcesses {
    /// The job.
    pub job: Job,
    /// What is stored of the selection.
    pub completeness: Completeness,
    /// By rank, then by start.
    pub processes: Vec<Process>,
}
