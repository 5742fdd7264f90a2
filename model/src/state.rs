//! The state of a job or of one of its sessions.

/// The state of a job or of one of its sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum JobState {
    /// It streams, or did so a moment ago.
    Running,
    /// It ended without a failure.
    Finished,
    /// It ended with a failure.
    Failed,
    /// It stopped sending without reporting its end.
    #[default]
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

    /// The state of a name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}
