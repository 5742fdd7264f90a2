//! One recording with all its trials, in one pass.
//!
//! Guarantees: every trial sees every request once, in order. Refuses to look back.

use memctl_model::Event;

use crate::follow::Follow;
use crate::trial::Trial;

/// See the module.
#[derive(Clone, Debug)]
pub struct SideBySide {
    follow: Follow,
    trials: Vec<Trial>,
}

impl SideBySide {
    /// A recording that is followed from its beginning, and trials from the same.
    #[must_use]
    pub fn new(follow: Follow, trials: Vec<Trial>) -> Self {
        Self { follow, trials }
    }

    /// The next event of the recording.
    pub fn event(&mut self, event: &Event) {
        let trials = &mut self.trials;
        self.follow.event(event, |at, request| trials.iter_mut().for_each(|trial| trial.request(at, request)));
    }

    /// The recording so far.
    #[must_use]
    pub fn follow(&self) -> &Follow {
        &self.follow
    }

    /// The trials so far.
    #[must_use]
    pub fn trials(&self) -> &[Trial] {
        &self.trials
    }

    /// After the last event.
    #[must_use]
    pub fn finish(mut self) -> (Follow, Vec<Trial>) {
        let trials = &mut self.trials;
        self.follow.finish(|at, request| trials.iter_mut().for_each(|trial| trial.request(at, request)));
        (self.follow, self.trials)
    }
}
