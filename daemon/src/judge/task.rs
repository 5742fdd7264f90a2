//! The task that judges jobs as their data arrives.
//!
//! Guarantees: a job is judged soon after its new data was stored, and at most once a second. The task rests twenty
//! times as long as it worked, so judging takes at most a twentieth of a core. Forecasts have a share of their own and
//! do not lengthen rests, because they matter most when many devices are nearly full. A job that cannot be judged is
//! logged once a round and does not delay the others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use memctl_analysis::judge::Activity;
use memctl_model::{JobState, SourceKind, VerdictKind};
use memctl_proto::v1;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::holder_requests::Unasked;
use super::{Judge, Judgement, Range, figures};
use crate::alerts::{Alerts, JobFacts};
use crate::clock::now_ns;
use crate::job_data::job::Summary;
use crate::job_data::{FoundJob, ReadError, find};
use crate::notify::{ChangedJob, Notifier};
use crate::store::{JobRow, Scope, Scoped, Tenant, Which};
use crate::summaries::SHOWN_FOR;
use crate::supervise::Tasks;

/// The shortest time between two judgements of a job.
const ROUND: Duration = Duration::from_secs(1);
/// Waiting jobs are judged again after this time even without new data, because a rank that stopped sends nothing.
const IDLE_ROUND: Duration = Duration::from_secs(15);
/// Units of rest per unit of work.
const RESTS: u32 = 20;
/// The longest rest, so that even a job of thousands of ranks is judged every minute.
const REST_MAX: Duration = Duration::from_secs(60);
/// The most jobs that are judged again when the daemon starts; the metrics show as many.
const RECALLED_MAX: u32 = 256;
/// Time limit of the last round when the daemon shuts down.
const LAST_ROUND: Duration = Duration::from_secs(5);

/// The task, while it runs.
pub struct Judging {
    looking: Looking,
    task: JoinHandle<()>,
}

/// The services that a round uses.
#[derive(Clone)]
struct Looking {
    judge: Judge,
    notifier: Notifier,
    alerts: Alerts,
    /// Whether jobs are judged, or only read for their figures.
    judging: bool,
    /// Queries processes for the objects that hold the blocks of a leak, unless that is forbidden.
    unasked: Option<Unasked>,
}

impl Judging {
    /// Starts the task. With judging off, the task only puts the figures of jobs in the summaries; queries are still
    /// judged. `holders` permits queries to processes for the objects that hold the blocks of a leak.
    #[must_use]
    pub fn start(
        judge: Judge,
        notifier: Notifier,
        alerts: Alerts,
        (on, holders): (bool, bool),
        shutting_down: watch::Receiver<bool>,
        tasks: &Tasks,
    ) -> Self {
        let unasked = holders.then(|| Unasked::new(judge.store.clone(), judge.streams.clone(), notifier.clone()));
        let looking = Looking { judge, notifier, alerts, judging: on, unasked };
        let running = looking.clone();
        let task = tasks.supervise("judge", move || running.clone().run(shutting_down.clone()));
        Self { looking, task }
    }

    /// Judges the data that arrived since the last round, then ends. Everything must be stored before the call.
    pub async fn finish(self) {
        self.task.abort();
        if self.looking.judging && tokio::time::timeout(LAST_ROUND, self.looking.round(false)).await.is_err() {
            tracing::warn!("the last round of judging timed out; the rest is judged on demand");
        }
    }
}

impl Looking {
    async fn run(self, mut shutting_down: watch::Receiver<bool>) {
        self.recall().await;
        loop {
            let idle = tokio::select! {
                () = self.notifier.woken() => false,
                () = tokio::time::sleep(IDLE_ROUND) => true,
                _ = shutting_down.wait_for(|down| *down) => return,
            };
            let (begun, ahead) = (Instant::now(), self.judge.looked_ahead());
            self.round(idle).await;
            let judged = begun.elapsed().saturating_sub(self.judge.looked_ahead().saturating_sub(ahead));
            let rest = ROUND.max((judged * RESTS).min(REST_MAX));
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                _ = shutting_down.wait_for(|down| *down) => return,
            }
        }
    }

    /// Marks the jobs that were heard from shortly before the daemon started. Otherwise they would have no figures in the
    /// metrics, and a job that died meanwhile would not be found lost.
    async fn recall(&self) {
        let since_ns = now_ns().saturating_sub(SHOWN_FOR.as_nanos() as u64);
        match self.judge.store.jobs_heard(since_ns, RECALLED_MAX).await {
            Ok(jobs) => {
                for JobRow { tenant, name: job, run, attempt, .. } in jobs {
                    self.notifier.notify(&ChangedJob { tenant: Tenant::stored(&tenant), job, run, attempt });
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the jobs of the last minutes cannot be read; their metrics are missing until they send again")
            }
        }
    }

    async fn round(&self, all: bool) {
        for job in self.notifier.take(all) {
            match self.look(&job).await {
                Ok(true) => {}
                Ok(false) => self.notifier.forget(&job),
                Err(error) => {
                    tracing::warn!(tenant = %job.tenant, job = job.job, run = job.run, attempt = job.attempt, %error, "the job cannot be judged now")
                }
            }
        }
    }

    /// Judges one job; returns whether it must be judged again without new data: it still runs, or its lost processes
    /// may reach this daemon yet.
    async fn look(&self, changed: &ChangedJob) -> Result<bool, ReadError> {
        let ChangedJob { tenant, job: name, run, attempt } = changed;
        let job = Which::Run(name.clone(), *run).to_string();
        let selection = v1::Selection { job, attempt: Some(*attempt), ..Default::default() };
        let store = Scoped::of(&self.judge.store, &Scope::One(tenant.clone()));
        let found = match find(&*store, &selection).await {
            Ok(found) => Arc::new(found),
            Err(ReadError::NoJob { .. } | ReadError::NoAttempt { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let summary = found.summary(&self.judge.streams);
        let judgement = match self.judging {
            true => Some(self.judge.judgement(&found, &found, Range::default(), true).await?),
            false => None,
        };
        let watched = self.judge.watched(found.job.key).await;
        let figures = figures::of(&found, &summary, judgement.as_ref(), &watched, &self.judge.streams, now_ns());
        let heard_ns = found.sessions.iter().map(|session| session.heard_ns).max().unwrap_or_else(now_ns);
        let silent = Duration::from_nanos(now_ns().saturating_sub(heard_ns));
        self.judge.summaries.put(found.job.key, figures, silent);
        // Until then a lost process is no finding. Alerts about it, of an earlier daemon, stay as they are.
        let is_awaited = self.judge.awaits(&found);
        if let Some(judgement) = judgement {
            tracing::debug!(job = name, run, attempt, findings = judgement.findings.len(), "judged");
            if is_awaited {
                return Ok(true);
            }
            self.alerts.observe(&facts(&found, &summary, &judgement), &judgement.findings, now_ns());
            if let Some(unasked) = &self.unasked {
                unasked.look(changed, &found, &judgement.findings);
            }
        }
        Ok(summary.state == JobState::Running)
    }
}

fn facts(found: &FoundJob, summary: &Summary, judgement: &Judgement) -> JobFacts {
    let imported = summary.source == Some(SourceKind::Import);
    // A recording may have ended long ago. For alerts, it ended when it was imported.
    let heard_ns = found.sessions.iter().map(|session| session.heard_ns).max();
    let is_running = summary.state == JobState::Running;
    let verdict = judgement.verdict(if is_running { Activity::Running } else { Activity::Ended }, found.has_failed());
    JobFacts {
        tenant: found.job.tenant.clone(),
        name: found.job.name.clone(),
        run: found.job.run,
        attempt: found.job.attempt,
        labels: found.job.labels.clone(),
        state: Some(summary.state),
        // The start of the run that is judged, not of the first run of that name.
        started_ns: found.sessions.iter().map(|session| session.info.started_ns).min().unwrap_or(found.job.started_ns),
        ended_ns: if imported { heard_ns } else { summary.ended_ns },
        epochs: found.devices.iter().map(|device| device.epochs as u32).max(),
        imported,
        not_judged: judgement.kinds_not_judged(),
        grows: matches!(verdict.kind, VerdictKind::Growing | VerdictKind::NotEnoughData),
    }
}
