//! The processes of a job as data: one row each, for any rank and any number of devices.

use memctl_model::JobState;
use memctl_proto::v1;
use serde::Serialize;

use super::Completeness;
use crate::format::time;

/// A process that allocated.
#[derive(Clone, Debug, Serialize)]
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
    /// Events stored.
    pub events: u64,
    /// Bytes in the store.
    pub stored_bytes: u64,
    /// `running`, `finished`, `failed` or `lost`.
    #[serde(with = "super::state_by_name")]
    pub state: JobState,
    /// How it ended, when it did not end well.
    pub failure: Option<String>,
    /// When it was first heard of.
    pub started_at: String,
    /// When it ended.
    pub ended_at: Option<String>,
    /// Framework and version.
    pub framework: Option<String>,
    /// What its figures rest on.
    pub completeness: Completeness,
}

impl From<v1::ProcessReport> for Process {
    fn from(wire: v1::ProcessReport) -> Self {
        let state = wire.state().into();
        let v1::ProcessReport {
            process,
            role,
            rank,
            host,
            pid,
            parent_pid,
            devices,
            events,
            stored_bytes,
            state: _,
            failure,
            completeness,
            started_ns,
            ended_ns,
            framework,
        } = wire;
        Self {
            process,
            role,
            rank,
            host,
            pid,
            parent_pid,
            devices,
            events,
            stored_bytes,
            state,
            failure,
            started_at: time::rfc3339(started_ns),
            ended_at: ended_ns.map(time::rfc3339),
            framework,
            completeness: completeness.unwrap_or_default().into(),
        }
    }
}

impl Process {
    /// Whether its rank alone names it.
    #[must_use]
    pub fn is_rank(&self) -> bool {
        self.process.is_empty() || self.process == format!("rank {}", self.rank)
    }
}
