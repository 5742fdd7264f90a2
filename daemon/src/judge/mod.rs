//! The judge: keeps a watch over jobs and says what is wrong with them, for questions and for alerts.
//!
//! Guarantees: never in the way of ingest (it reads what is stored, behind the commit, and rests twenty times as long as it
//! worked); memory is bounded by [`DEVICES_MAX`] watched devices, of which idle jobs go first.
//! Refuses to keep verdicts: they are made anew from what is known, so that nothing stale is ever told.

mod explaining;
mod lost;
mod task;
mod watching;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use memctl_analysis::{judge, oom};
use memctl_model::{Finding, Sample};

use crate::ingest::streams::Streams;
use crate::query::{Explained, Found, QueryError, explain, state};
use crate::store::{SessionKey, Store};
pub use task::{Judging, Pokes};
use watching::JobWatch;
pub use watching::Range;

/// Devices watched at once, over all jobs: about 0.4 MB each with 500 sites.
pub const DEVICES_MAX: usize = 4_096;

/// See the module.
#[derive(Clone)]
pub struct Judge {
    store: Arc<dyn Store>,
    streams: Streams,
    jobs: Arc<Mutex<Jobs>>,
}

#[derive(Default)]
struct Jobs {
    /// Counts questions: the order in which jobs were last asked for.
    clock: u64,
    known: HashMap<i64, Known>,
}

struct Known {
    asked: u64,
    devices: usize,
    watch: Arc<tokio::sync::Mutex<Seen>>,
}

/// What is known of a job.
#[derive(Default)]
struct Seen {
    watch: JobWatch,
    explained: Option<explaining::Kept>,
}

impl Judge {
    /// A judge over a store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, streams: Streams) -> Self {
        Self { store, streams, jobs: Arc::default() }
    }

    /// What is wrong with a job, the worst first. `found` has to hold all its ranks.
    ///
    /// # Errors
    /// The store fails, or what is stored does not open.
    pub(crate) async fn findings(&self, found: &Arc<Found>, range: Range) -> Result<Vec<Finding>, QueryError> {
        let counts =
            |session, device| found.devices.iter().any(|row| row.session == session && row.info.index.0 == device);
        let mut findings = if range == Range::default() {
            let seen = self.watch(found.job.key);
            let mut seen = seen.lock().await;
            let Seen { watch, explained } = &mut *seen;
            // Single events are replayed by tasks of their own, so both go on at the same time.
            let (explained, ()) = tokio::try_join!(
                explaining::look(&self.store, found, explained),
                watch.catch_up(&self.store, &found.sessions)
            )?;
            self.keep(found.job.key, watch.devices());
            explained.unwrap_or_default().settle(judge::findings(&watch.watches(counts)))
        } else {
            let mut watch = JobWatch::over(range);
            watch.catch_up(&self.store, &found.sessions).await?;
            judge::findings(&watch.watches(counts))
        };
        let told = lost::tell(&*self.store, found, |session| state(session, &self.streams)).await?;
        oom::outcome::add_consequences(&mut findings, &told.after_oom);
        findings.extend(told.findings);
        judge::sort(&mut findings);
        Ok(findings)
    }

    /// What single events explain of the ranks that were `asked` for, and what is wrong with them: leaks of all are known
    /// to it, because what one of them caused is no cause of its own.
    ///
    /// # Errors
    /// The store fails, or what is stored does not open.
    pub(crate) async fn explained(
        &self,
        asked: &Arc<Found>,
        everybody: &Arc<Found>,
    ) -> Result<(Explained, Vec<Finding>), QueryError> {
        let seen = self.watch(everybody.job.key);
        let mut seen = seen.lock().await;
        let (mut explained, ()) =
            tokio::try_join!(explain(&self.store, asked), seen.watch.catch_up(&self.store, &everybody.sessions))?;
        self.keep(everybody.job.key, seen.watch.devices());
        let counts =
            |session, device| asked.devices.iter().any(|row| row.session == session && row.info.index.0 == device);
        let findings = explained.settle(judge::findings(&seen.watch.watches(counts)));
        Ok((explained, findings))
    }

    /// The highest of each quantity that was measured of a job, as far as it was judged as a whole.
    pub(crate) async fn highest(&self, job: i64) -> HashMap<(SessionKey, u8), Sample> {
        let watch = self.lock().known.get(&job).map(|known| known.watch.clone());
        match watch {
            Some(seen) => seen.lock().await.watch.highest(),
            None => HashMap::new(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, job: i64) -> Arc<tokio::sync::Mutex<Seen>> {
        let mut jobs = self.lock();
        jobs.clock += 1;
        let clock = jobs.clock;
        let known = jobs.known.entry(job).or_insert_with(|| Known { asked: 0, devices: 1, watch: Arc::default() });
        known.asked = clock;
        known.watch.clone()
    }

    /// Notes how much a job holds, and lets the jobs go that were not asked for longest.
    fn keep(&self, job: i64, devices: usize) {
        let mut jobs = self.lock();
        if let Some(known) = jobs.known.get_mut(&job) {
            known.devices = devices;
        }
        while jobs.known.len() > 1 && jobs.known.values().map(|known| known.devices).sum::<usize>() > DEVICES_MAX {
            let oldest = jobs.known.iter().filter(|(key, _)| **key != job).min_by_key(|(_, known)| known.asked);
            let Some(oldest) = oldest.map(|(key, _)| *key) else { break };
            jobs.known.remove(&oldest);
        }
    }
}
