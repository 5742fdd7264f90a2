//! Holds the observations that are not yet processed: the latest one of each run.
//!
//! Guarantees: putting never waits. Memory is bounded by the number of runs, not of judgements. Tenants take turns, and
//! the runs of a tenant are taken in the order of their start. The runs of one tenant leave room for those of others.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::alert::{JobFacts, Sighting};

/// The most runs with a waiting observation.
const RUNS_MAX: usize = 4_096;

/// The findings in a job.
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
    /// By tenant; no entry is empty.
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

    /// Puts a judgement, replacing an earlier one of the same run; `false` if there is no room.
    pub(super) fn put(&self, observation: Observation) -> bool {
        self.waiting().put(observation, true)
    }

    /// Puts back an observation that could not be processed, unless a later one has arrived.
    pub(super) fn put_back(&self, observation: Observation) {
        self.waiting().put(observation, false);
    }

    /// Takes the observation of the run that began first, of the tenant whose turn it is.
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
        // A tenant may use at most half of the room that others leave.
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
        };
        Observation { job, sightings: Vec::new(), now_ns }
    }

    #[test]
    fn a_tenant_with_many_runs_leaves_room_and_turns_to_others() {
        let mailbox = Mailbox::default();
        let taken = (0..RUNS_MAX as u64).filter(|&start| mailbox.put(observed("many", start, 1))).count();
        assert_eq!(taken, RUNS_MAX / 2, "as many as stay free");
        assert!(mailbox.put(observed("many", 0, 2)), "a later judgement of the same run has its place");
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
