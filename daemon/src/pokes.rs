//! Which jobs have something new: what comes in says so, the judge asks.
//!
//! Guarantees: bounded, and never in the way of what comes in.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::store::Tenant;

/// Jobs that are kept in mind; one more takes the place of another, which is judged when it is asked for or sends again.
const JOBS_MAX: usize = 1_024;

/// An attempt of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Poked {
    /// Whose it is.
    pub tenant: Tenant,
    /// The job's name.
    pub job: String,
    /// The attempt.
    pub attempt: u32,
}

/// Which jobs have something new.
#[derive(Clone, Default)]
pub struct Pokes {
    /// Since when something has been waiting to be looked at; `None` for a job that is only kept in mind.
    jobs: Arc<Mutex<BTreeMap<Poked, Option<Instant>>>>,
    woken: Arc<Notify>,
}

impl Pokes {
    /// Something of this job was stored, or will be in a moment.
    pub fn poke(&self, poked: &Poked) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        match jobs.get_mut(poked) {
            Some(Some(_)) => return,
            Some(news) => *news = Some(Instant::now()),
            None => {
                if jobs.len() >= JOBS_MAX {
                    // One that waits for nothing, if there is one.
                    let idle = jobs.iter().find(|(_, news)| news.is_none()).or_else(|| jobs.iter().next());
                    let idle = idle.map(|(job, _)| job.clone());
                    idle.and_then(|job| jobs.remove(&job));
                }
                jobs.insert(poked.clone(), Some(Instant::now()));
            }
        }
        self.woken.notify_one();
    }

    /// Ends when something has come.
    pub async fn woken(&self) {
        self.woken.notified().await;
    }

    /// The jobs to look at: those with news, or all that are kept in mind.
    pub fn take(&self, all: bool) -> Vec<Poked> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = jobs.iter_mut().filter(|(_, news)| all || news.is_some());
        wanted
            .map(|(job, news)| {
                *news = None;
                job.clone()
            })
            .collect()
    }

    /// Nobody need look at this job any more, unless something of it came since.
    pub fn forget(&self, job: &Poked) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.get(job) == Some(&None) {
            jobs.remove(job);
        }
    }

    /// For how long the oldest news has been waiting, and how many jobs have some.
    #[must_use]
    pub fn lag(&self) -> (Duration, usize) {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = || jobs.values().filter_map(|news| *news);
        (waiting().min().map_or(Duration::ZERO, |since| since.elapsed()), waiting().count())
    }
}
