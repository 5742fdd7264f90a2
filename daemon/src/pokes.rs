//! Which jobs have something new: what comes in says so, the judge asks.
//!
//! Guarantees: bounded, and never in the way of what comes in.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// Jobs that are kept in mind; one more takes the place of another, which is judged when it is asked for or sends again.
const JOBS_MAX: usize = 1_024;

/// Which jobs have something new.
#[derive(Clone, Default)]
pub struct Pokes {
    jobs: Arc<Mutex<BTreeMap<(String, u32), bool>>>,
    woken: Arc<Notify>,
}

impl Pokes {
    /// Something of this job was stored, or will be in a moment.
    pub fn poke(&self, job: &str, attempt: u32) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        match jobs.get_mut(&(job.to_owned(), attempt)) {
            Some(true) => return,
            Some(news) => *news = true,
            None => {
                if jobs.len() >= JOBS_MAX {
                    // One that waits for nothing, if there is one.
                    let idle = jobs.iter().find(|(_, news)| !**news).or_else(|| jobs.iter().next());
                    let idle = idle.map(|(job, _)| job.clone());
                    idle.and_then(|job| jobs.remove(&job));
                }
                jobs.insert((job.to_owned(), attempt), true);
            }
        }
        self.woken.notify_one();
    }

    /// Ends when something has come.
    pub async fn woken(&self) {
        self.woken.notified().await;
    }

    /// The jobs to look at: those with news, or all that are kept in mind.
    pub fn take(&self, all: bool) -> Vec<(String, u32)> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = jobs.iter_mut().filter(|(_, news)| all || **news);
        wanted
            .map(|(job, news)| {
                *news = false;
                job.clone()
            })
            .collect()
    }

    /// Nobody need look at this job any more, unless something of it came since.
    pub fn forget(&self, job: &(String, u32)) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.get(job) == Some(&false) {
            jobs.remove(job);
        }
    }
}
