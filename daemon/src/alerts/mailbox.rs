//! Holds the observations that are not processed yet: the latest one of each run.
//!
//! Guarantees: putting an observation never waits. The memory is bounded by the number of runs, not by the number of
//! observations. Tenants take turns. The runs of one tenant are taken in the order in which they started, and they
//! leave room for the runs of other tenants.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::alert::{JobFacts, Sighting};

/// The maximum number of runs with a waiting observation.
const RUNS_MAX: usize = 4_096;

/// The findings in one run of a job.
#[derive(Clone, Debug)]
pub(super) struct Observation {
    pub(super) job: JobFacts,
    pub(super) sightings: Vec<Sighting>,
    pub(super) now_ns: u64,
}

/// A run by start, name, number and attempt.
type Run = (u64, String, u32, u32);

#[derive(Default)]
struct Waiting {
    /// The observations by tenant. Every tenant in the map has at least one.
    tenants: BTreeMap<String, BTreeMap<Run, Observation>>,
    /// The tenant whose turn was last.
    last: String,
    count: usize,
}

#[derive(Default)]
pub(super) struct Mailbox {
    waiting: Mutex<Waiting>,
}

impl Mailbox {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an observation. It replaces an earlier observation of the same run. Returns `false` if there is no room.
    pub(super) fn put(&self, observation: Observation) -> bool {
        self.waiting().put(observation, true)
    }

    /// Puts back an observation that could not be processed. If a later one has arrived, nothing changes.
    pub(super) fn put_back(&self, observation: Observation) {
        self.waiting().put(observation, false);
    }

    /// Takes an observation of the tenant whose turn it is. Of this tenant's runs, it is the one that started first.
    pub(super) fn take(&self) -> Option<Observation> {
        self.waiting().take()
    }
}

impl Waiting {
    fn put(&mut self, observation: Observation, replaces: bool) -> bool {
        let JobFacts { tenant, name, started_ns, run, attempt, .. } = &observation.job;
        let key = (*started_ns, name.clone(), *run, *attempt);
        let own = self.tenants.get(tenant);
        if own.is_some_and(|runs| runs.contains_key(&key)) {
            if replaces && let Some(runs) = self.tenants.get_mut(tenant) {
                runs.insert(key, observation);
            }
            return true;
        }
        // A tenant may use at most half of the room that the other tenants leave.
        if own.map_or(0, BTreeMap::len) >= RUNS_MAX.saturating_sub(self.count) {
            return false;
        }
        self.tenants.entry(tenant.clone()).or_default().insert(key, observation);
        self.count += 1;
        true
    }

    fn take(&mut self) -> Option<Observation> {
        let after = (Bound::Excluded(&self.last), Bound::Unbounded);
        let next = self.tenants.range::<String, _>(after).next().or_else(|| self.tenants.first_key_value());
        self.last = next?.0.clone();
        let runs = self.tenants.get_mut(&self.last)?;
        let (_, observation) = runs.pop_first()?;
        if runs.is_empty() {
            self.tenants.remove(&self.last);
        }
        self.count -= 1;
        Some(observation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(tenant: &str, started_ns: u64, now_ns: u64) -> Observation {
        let job = JobFacts {
            tenant: tenant.into(),
            name: "job".into(),
            run: 1,
            attempt: 0,
            labels: Vec::new(),
            state: None,
            started_ns,
            ended_ns: None,
            epochs: None,
            imported: false,
            not_judged: Vec::new(),
            grows: false,
        };
        Observation { job, sightings: Vec::new(), now_ns }
    }

    #[test]
    fn a_tenant_with_many_runs_leaves_room_and_turns_to_others() {
        let mailbox = Mailbox::default();
        let taken = (0..RUNS_MAX as u64).filter(|&start| mailbox.put(observed("many", start, 1))).count();
        assert_eq!(taken, RUNS_MAX / 2, "a single tenant gets half of the room");
        assert!(mailbox.put(observed("many", 0, 2)), "a later observation of the same run has its place");
        for tenant in ["few", "other"] {
            assert!((0..9).all(|start| mailbox.put(observed(tenant, start, 1))), "{tenant}");
        }
        let first: Vec<_> =
            (0..4).filter_map(|_| mailbox.take()).map(|it| (it.job.tenant, it.job.started_ns)).collect();
        let turn = |tenant: &str, start| (tenant.to_owned(), start);
        assert_eq!(first, [turn("few", 0), turn("many", 0), turn("other", 0), turn("few", 1)]);
        // An observation that is put back does not replace a later one.
        assert!(mailbox.put(observed("few", 5, 7)));
        mailbox.put_back(observed("few", 5, 3));
        let rest: Vec<Observation> = std::iter::from_fn(|| mailbox.take()).collect();
        assert_eq!(rest.len(), RUNS_MAX / 2 + 18 - 4);
        assert!(rest.iter().any(|it| (it.job.started_ns, it.now_ns) == (5, 7)));
        assert!(mailbox.take().is_none() && mailbox.put(observed("many", 1, 1)));
    }
}
