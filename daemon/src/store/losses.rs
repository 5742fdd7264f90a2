//! Which jobs lost data to retention, and how much, for the log, the audit log, alerts and metrics.
//!
//! Guarantees: the sum over the jobs is what retention removed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::rows::Expired;

/// A job that lost data to retention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredJob {
    /// Its key.
    pub key: i64,
    /// Its tenant's name.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// The number of its run.
    pub run: u32,
    /// Its attempt.
    pub attempt: u32,
    /// The start of its first session, in nanoseconds since the Unix epoch.
    pub started_ns: u64,
    /// The removed data. If `jobs` is not 0, the job was removed whole.
    pub gone: Expired,
}

/// The losses so far, by the job's key.
#[derive(Default)]
pub(super) struct Losses(BTreeMap<i64, ExpiredJob>);

impl Losses {
    /// Adds what a job lost.
    pub(super) fn add(&mut self, lost: ExpiredJob) {
        if lost.gone == Expired::default() {
            return;
        }
        match self.0.entry(lost.key) {
            Entry::Vacant(entry) => {
                entry.insert(lost);
            }
            Entry::Occupied(mut entry) => entry.get_mut().gone += lost.gone,
        }
    }

    /// The jobs that lost data, in the order of their keys.
    pub(super) fn into_jobs(self) -> Vec<ExpiredJob> {
        self.0.into_values().collect()
    }
}
