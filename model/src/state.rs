//! How a job, or one of its sessions, is doing.

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum JobState {
    /// It streams, or was heard of a moment ago.
    Running,
    /// It ended and named no failure.
    Finished,
    /// It ended with a failure.
    Failed,
    /// It was not heard of any more, and never said that it ended.
    Lost,
}

impl JobState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Running, Self::Finished, Self::Failed, Self::Lost];

    /// Its name on screen, in JSON and as a flag's value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Lost => "lost",
        }
    }
}
