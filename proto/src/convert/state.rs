//! Converts the state of a job and the severity of a finding.

use memctl_model::{JobState, Severity};

use crate::v1;

impl From<JobState> for v1::JobState {
    fn from(state: JobState) -> Self {
        match state {
            JobState::Running => Self::Running,
            JobState::Finished => Self::Finished,
            JobState::Failed => Self::Failed,
            JobState::Lost => Self::Lost,
        }
    }
}

impl From<v1::JobState> for JobState {
    fn from(wire: v1::JobState) -> Self {
        match wire {
            v1::JobState::Running => Self::Running,
            v1::JobState::Finished => Self::Finished,
            v1::JobState::Failed => Self::Failed,
            // An unknown state of a newer daemon is an end that this version has no name for.
            v1::JobState::Lost | v1::JobState::Unspecified => Self::Lost,
        }
    }
}

impl From<Severity> for v1::Severity {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Info => Self::Info,
            Severity::Warning => Self::Warning,
            Severity::Critical => Self::Critical,
        }
    }
}
