//! Notifications about jobs with new data. Ingest sends them, and they wake the judge and the page's subscribers.
//!
//! Guarantees: memory is bounded, and ingest is never blocked. A subscriber that falls behind is notified of that.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::store::Tenant;

/// The most jobs that are remembered. A further job replaces another one, which is judged when it is queried or sends
/// again.
const JOBS_MAX: usize = 1_024;

/// An attempt of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChangedJob {
    /// The tenant that owns the job.
    pub tenant: Tenant,
    /// The job's name.
    pub job: String,
    /// The number of the run.
    pub run: u32,
    /// The attempt.
    pub attempt: u32,
}

/// The jobs with new data.
#[derive(Clone, Default)]
pub struct Notifier {
    /// When a job's oldest unprocessed notification arrived; `None` for a job without one.
    jobs: Arc<Mutex<BTreeMap<ChangedJob, Option<Instant>>>>,
    woken: Arc<Notify>,
    news: Arc<Mutex<News>>,
    /// The number of the latest notification.
    latest: Arc<watch::Sender<u64>>,
}

/// Notifications for subscribers: the number of the latest notification of each job.
#[derive(Default)]
struct News {
    latest: u64,
    jobs: BTreeMap<ChangedJob, u64>,
    /// Notifications up to this number may have been displaced.
    lost: u64,
}

impl News {
    fn tell(&mut self, changed: &ChangedJob) -> u64 {
        self.latest += 1;
        if let Some(number) = self.jobs.get_mut(changed) {
            *number = self.latest;
            return self.latest;
        }
        if self.jobs.len() >= JOBS_MAX {
            let oldest =
                self.jobs.iter().min_by_key(|(_, number)| **number).map(|(job, number)| (job.clone(), *number));
            if let Some((job, number)) = oldest {
                self.jobs.remove(&job);
                self.lost = self.lost.max(number);
            }
        }
        self.jobs.insert(changed.clone(), self.latest);
        self.latest
    }
}

impl Notifier {
    /// Reports that data of this job was stored, or will be stored in a moment.
    pub fn notify(&self, changed: &ChangedJob) {
        let number = self.news.lock().unwrap_or_else(PoisonError::into_inner).tell(changed);
        self.latest.send_replace(number);
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        match jobs.get_mut(changed) {
            Some(Some(_)) => return,
            Some(news) => *news = Some(Instant::now()),
            None => {
                if jobs.len() >= JOBS_MAX {
                    // An idle job is removed, if there is one.
                    let idle = jobs.iter().find(|(_, news)| news.is_none()).or_else(|| jobs.iter().next());
                    let idle = idle.map(|(job, _)| job.clone());
                    idle.and_then(|job| jobs.remove(&job));
                }
                jobs.insert(changed.clone(), Some(Instant::now()));
            }
        }
        self.woken.notify_one();
    }

    /// Returns when a notification has arrived.
    pub async fn woken(&self) {
        self.woken.notified().await;
    }

    /// The jobs to judge: those with new data, or all that are remembered.
    pub fn take(&self, all: bool) -> Vec<ChangedJob> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = jobs.iter_mut().filter(|(_, news)| all || news.is_some());
        wanted
            .map(|(job, news)| {
                *news = None;
                job.clone()
            })
            .collect()
    }

    /// Drops a job, unless new data of the job has arrived.
    pub fn forget(&self, job: &ChangedJob) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.get(job) == Some(&None) {
            jobs.remove(job);
        }
    }

    /// A watch whose value changes with every notification. The value is for [`Self::since`].
    #[must_use]
    pub fn follow(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }

    /// The jobs with notifications after this number; `None` if some of these notifications were displaced.
    #[must_use]
    pub fn since(&self, seen: u64) -> Option<Vec<ChangedJob>> {
        let news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        let later = news.jobs.iter().filter(|(_, number)| **number > seen).map(|(job, _)| job.clone());
        (news.lost <= seen).then(|| later.collect())
    }

    /// The age of the oldest unprocessed notification, and the number of jobs with one.
    #[must_use]
    pub fn lag(&self) -> (Duration, usize) {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = || jobs.values().filter_map(|news| *news);
        (waiting().min().map_or(Duration::ZERO, |since| since.elapsed()), waiting().count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: usize) -> ChangedJob {
        ChangedJob { tenant: Tenant::default(), job: name.to_string(), run: 1, attempt: 0 }
    }

    #[test]
    fn who_follows_is_told_what_came_since_and_who_fell_behind_that_it_did() {
        let notifier = Notifier::default();
        let followed = notifier.follow();
        assert_eq!(notifier.since(0), Some(vec![]));
        notifier.notify(&job(1));
        let seen = *followed.borrow();
        notifier.notify(&job(2));
        notifier.notify(&job(2));
        assert_eq!(notifier.since(seen), Some(vec![job(2)]));
        assert_eq!(notifier.since(*followed.borrow()), Some(vec![]));
        let before = *followed.borrow();
        for name in 0..JOBS_MAX + 9 {
            notifier.notify(&job(name));
        }
        assert_eq!(notifier.since(before), None, "more jobs than are kept");
        assert_eq!(notifier.since(*followed.borrow() - 5).map(|jobs| jobs.len()), Some(5));
        assert_eq!(notifier.news.lock().unwrap().jobs.len(), JOBS_MAX);
    }
}
