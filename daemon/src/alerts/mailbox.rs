//! What was observed and not yet looked at: the latest of each run.
//!
//! Guarantees: putting never waits; memory is bounded by runs, not by judgements; runs are taken in the order of their start.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::alert::{JobFacts, Sighting};

/// Runs that wait.
const RUNS_MAX: usize = 4_096;

/// What was found in a job.
#[derive(Clone, Debug)]
pub(super) struct Observation {
    pub(super) job: JobFacts,
    pub(super) sightings: Vec<Sighting>,
    pub(super) now_ns: u64,
}

/// By start, name and attempt.
type Runs = BTreeMap<(u64, String, u32), Observation>;

#[derive(Default)]
pub(super) struct Mailbox {
    runs: Mutex<Runs>,
}

impl Mailbox {
    fn runs(&self) -> MutexGuard<'_, Runs> {
        // Every change is one call, so a poisoned lock guards whole data.
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a judgement in the place of an earlier one of the same run; `false` when there is no room.
    pub(super) fn put(&self, observation: Observation) -> bool {
        let mut runs = self.runs();
        let key = key(&observation.job);
        let fits = runs.len() < RUNS_MAX || runs.contains_key(&key);
        if fits {
            runs.insert(key, observation);
        }
        fits
    }

    /// Puts back one that could not be dealt with, unless a later one has come.
    pub(super) fn put_back(&self, observation: Observation) {
        let mut runs = self.runs();
        if runs.len() < RUNS_MAX {
            runs.entry(key(&observation.job)).or_insert(observation);
        }
    }

    /// Takes the run that began first.
    pub(super) fn take(&self) -> Option<Observation> {
        self.runs().pop_first().map(|(_, observation)| observation)
    }
}

fn key(job: &JobFacts) -> (u64, String, u32) {
    (job.started_ns, job.name.clone(), job.attempt)
}
