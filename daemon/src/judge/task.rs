//! The task that judges jobs as their data arrives.
//!
//! Guarantees: a job is judged soon after something of it was stored, and at most once a second; the task rests twenty times
//! as long as it worked, so that judging takes a twentieth of one core at most. A job that cannot be judged is logged once
//! a round and does not hold up the others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use memctl_proto::v1;
use tokio::sync::{Notify, watch};

use super::{Judge, Range};
use crate::query::find;

/// A job is judged at most this often.
const ROUND: Duration = Duration::from_secs(1);
/// Jobs that wait are looked at again after this, whether something came or not: a rank that stopped sends nothing.
const IDLE_ROUND: Duration = Duration::from_secs(15);
/// Rests for each unit of work.
const RESTS: u32 = 20;
/// The longest rest: a job of thousands of ranks is still looked at every minute.
const REST_MAX: Duration = Duration::from_secs(60);
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
                    jobs.pop_first();
                }
                jobs.insert((job.to_owned(), attempt), true);
            }
        }
        self.woken.notify_one();
    }

    /// The jobs to look at: those with news, or all that are kept in mind.
    fn take(&self, all: bool) -> Vec<(String, u32)> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = jobs.iter_mut().filter(|(_, news)| all || **news);
        wanted
            .map(|(job, news)| {
                *news = false;
                job.clone()
            })
            .collect()
    }

    fn forget(&self, job: &(String, u32)) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.get(job) == Some(&false) {
            jobs.remove(job);
        }
    }
}

/// Judges jobs until the daemon shuts down, unless it shall not.
pub async fn run(judge: Judge, pokes: Pokes, judging: bool, mut shutting_down: watch::Receiver<bool>) {
    if !judging {
        return;
    }
    loop {
        let idle = tokio::select! {
            () = pokes.woken.notified() => false,
            () = tokio::time::sleep(IDLE_ROUND) => true,
            _ = shutting_down.wait_for(|down| *down) => return,
        };
        let begun = Instant::now();
        for job in pokes.take(idle) {
            match look(&judge, &job).await {
                Ok(true) => {}
                Ok(false) => pokes.forget(&job),
                Err(error) => tracing::warn!(job = job.0, attempt = job.1, %error, "the job cannot be judged now"),
            }
        }
        let rest = ROUND.max((begun.elapsed() * RESTS).min(REST_MAX));
        tokio::select! {
            () = tokio::time::sleep(rest) => {}
            _ = shutting_down.wait_for(|down| *down) => return,
        }
    }
}

/// Judges one job; says whether it goes on.
async fn look(judge: &Judge, (name, attempt): &(String, u32)) -> Result<bool, crate::query::QueryError> {
    let selection = v1::Selection { job: name.clone(), attempt: Some(*attempt), ..Default::default() };
    let found = match find(&*judge.store, &selection).await {
        Ok(found) => found,
        Err(crate::query::QueryError::NoJob(_)) => return Ok(false),
        Err(error) => return Err(error),
    };
    let findings = judge.findings(&found, Range::default()).await?;
    tracing::debug!(job = name, attempt, findings = findings.len(), "judged");
    Ok(found.answer(&judge.streams).state() == v1::JobState::Running)
}
