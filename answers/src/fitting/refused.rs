//! Why a query about recordings has no answer, and whether the answer is still wanted.

use memctl_replay::fit::FitError;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The recordings, or their sizes.
    #[error("{jobs}: {error}")]
    Recordings {
        /// Their names.
        jobs: String,
        /// What is wrong.
        error: FitError,
    },
    /// No request is of the site.
    #[error("no request was made at {site}; those that hold most at the peak: {known}")]
    NoSite {
        /// As it was asked for.
        site: String,
        /// Sites that there are.
        known: String,
    },
    /// Nothing is known of modules.
    #[error(
        "no request was made in a module's forward, so forward and backward passes cannot be distinguished; record with \
         memctl run, or with _record_memory_history(context=\"all\", stacks=\"python\")"
    )]
    NoModules,
    /// There is no such module.
    #[error("no module {name} was called; modules of this recording: {known}")]
    NoModule {
        /// As it was asked for.
        name: String,
        /// Modules that there are.
        known: String,
    },
    /// The modules keep nothing for a backward pass.
    #[error(
        "nothing that {0} allocated was freed in a backward pass: the recording has no backward pass after it, or \
         these modules are checkpointed already"
    )]
    NothingKept(String),
    /// The answer is no longer wanted.
    #[error("the client disconnected")]
    Unwanted,
}

/// Whether an answer is still wanted.
#[derive(Clone, Copy)]
pub struct Wanted<'a>(pub &'a dyn Fn() -> bool);

impl Wanted<'_> {
    /// Called before each replay that is not the only one.
    pub(super) fn check(self) -> Result<(), Refused> {
        if (self.0)() { Ok(()) } else { Err(Refused::Unwanted) }
    }
}
