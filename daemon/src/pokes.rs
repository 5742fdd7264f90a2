//! Which jobs have something new: what comes in says so; the judge asks, and who follows the page is told.
//!
//! Guarantees: bounded, and never in the way of what comes in: nobody is waited for, and who falls behind is told so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
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
    /// The number of the run.
    pub run: u32,
    /// The attempt.
    pub attempt: u32,
}

/// Which jobs have something new.
#[derive(Clone, Default)]
pub struct Pokes {
    /// Since when something has been waiting to be looked at; `None` for a job that is only kept in mind.
    jobs: Arc<Mutex<BTreeMap<Poked, Option<Instant>>>>,
    woken: Arc<Notify>,
    news: Arc<Mutex<News>>,
    /// The number of the latest news.
    latest: Arc<watch::Sender<u64>>,
}

/// What came, for those who follow: of each job the number of its latest news.
#[derive(Default)]
struct News {
    latest: u64,
    jobs: BTreeMap<Poked, u64>,
    /// News up to this number may have been put out by others.
    lost: u64,
}

impl News {
    fn tell(&mut self, poked: &Poked) -> u64 {
        self.latest += 1;
        if let Some(number) = self.jobs.get_mut(poked) {
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
        self.jobs.insert(poked.clone(), self.latest);
        self.latest
    }
}

impl Pokes {
    /// Something of this job was stored, or will be in a moment.
    pub fn poke(&self, poked: &Poked) {
        let number = self.news.lock().unwrap_or_else(PoisonError::into_inner).tell(poked);
        self.latest.send_replace(number);
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

    /// Changes with every news; its value is for [`Self::since`].
    #[must_use]
    pub fn follow(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }

    /// The jobs with news behind a number; `None` where there were more than are kept.
    #[must_use]
    pub fn since(&self, seen: u64) -> Option<Vec<Poked>> {
        let news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        let later = news.jobs.iter().filter(|(_, number)| **number > seen).map(|(job, _)| job.clone());
        (news.lost <= seen).then(|| later.collect())
    }

    /// For how long the oldest news has been waiting, and how many jobs have some.
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

    fn job(name: usize) -> Poked {
        Poked { tenant: Tenant::default(), job: name.to_string(), run: 1, attempt: 0 }
    }

    #[test]
    fn who_follows_is_told_what_came_since_and_who_fell_behind_that_it_did() {
        let pokes = Pokes::default();
        let followed = pokes.follow();
        assert_eq!(pokes.since(0), Some(vec![]));
        pokes.poke(&job(1));
        let seen = *followed.borrow();
        pokes.poke(&job(2));
        pokes.poke(&job(2));
        assert_eq!(pokes.since(seen), Some(vec![job(2)]));
        assert_eq!(pokes.since(*followed.borrow()), Some(vec![]));
        let before = *followed.borrow();
        for name in 0..JOBS_MAX + 9 {
            pokes.poke(&job(name));
        }
        assert_eq!(pokes.since(before), None, "more jobs than are kept");
        assert_eq!(pokes.since(*followed.borrow() - 5).map(|jobs| jobs.len()), Some(5));
        assert_eq!(pokes.news.lock().unwrap().jobs.len(), JOBS_MAX);
    }
}
