//! The list of jobs with their verdicts, and a job with its processes.
//!
//! Guarantees: jobs that the filter removes do not count against the limit. A job that takes too long, or cannot be
//! judged, is listed without a verdict.

use std::sync::Arc;

use memctl_answers::jobs::Jobs;
use memctl_answers::processes::JobProcesses;
use memctl_answers::{JobVerdict, SCHEMA};
use memctl_model::limits::JOBS_LISTED;
use memctl_proto::v1;

use super::answer;
use crate::job_data::job::Summary;
use crate::job_data::{ReadError, find};
use crate::judge::{Judge, Range};
use crate::store::{JobRow, Scope, Scoped, Store, Tenant};
use crate::streams::Streams;

/// The most jobs in a list.
const JOBS_MAX: u32 = 10_000;

/// How long a list of jobs may take to judge its jobs. Jobs that were judged before are listed at once.
const JUDGING: std::time::Duration = std::time::Duration::from_secs(3);

/// The data that a list is made from.
pub(super) struct Listing<'l> {
    pub store: &'l Arc<dyn Store>,
    pub streams: &'l Streams,
    pub judge: &'l Judge,
}

impl Listing<'_> {
    /// The jobs of a scope, newest first.
    ///
    /// # Errors
    /// The same as for every request.
    pub(super) async fn jobs(&self, scope: &Scope, request: v1::ListJobsRequest) -> Result<Jobs, ReadError> {
        let limit = if request.limit == 0 { JOBS_LISTED } else { request.limit.min(JOBS_MAX) };
        let narrowed = !request.states.is_empty() || !request.labels.is_empty();
        let until = tokio::time::Instant::now() + JUDGING;
        let mut jobs = Vec::new();
        // Jobs that the filter removes do not count against the limit.
        for job in self.store.jobs_in(scope, if narrowed { JOBS_MAX } else { limit }).await? {
            if jobs.len() >= limit as usize {
                break;
            }
            let sessions = self.store.sessions(job.key).await?;
            let mut answer = answer::job(&job, Summary::new(&job, sessions.iter(), self.streams));
            let state = v1::JobState::from(answer.state) as i32;
            let has = |label: &v1::Label| answer.labels.get(&label.key) == Some(&label.value);
            let asked =
                (request.states.is_empty() || request.states.contains(&state)) && request.labels.iter().all(has);
            if !asked {
                continue;
            }
            if request.judge {
                // A job that takes too long, or cannot be judged, is listed without a verdict.
                answer.verdict = tokio::time::timeout_at(until, self.verdict(&job)).await.ok().and_then(Result::ok);
            }
            jobs.push(answer);
        }
        Ok(Jobs { schema: SCHEMA, jobs, ..Jobs::default() })
    }

    async fn verdict(&self, job: &JobRow) -> Result<JobVerdict, ReadError> {
        let selection =
            v1::Selection { job: job.address().to_string(), attempt: Some(job.attempt), ..Default::default() };
        let store = Scoped::of(self.store, &Scope::One(Tenant::stored(&job.tenant)));
        let found = Arc::new(find(&*store, &selection).await?);
        let judgement = self.judge.judgement(&found, &found, Range::default(), true).await?;
        let worst = judgement.findings.first();
        let decides = judgement.not_judged.iter().find(|not| not.decides());
        Ok(JobVerdict {
            verdict: Some((&judgement.verdict(self.judge.activity(&found), found.has_failed())).into()),
            severity: worst.map(|finding| finding.severity.name().into()),
            finding: worst.map(|finding| finding.kind.name().to_owned()),
            title: worst.map(|finding| finding.headline()).filter(|title| !title.is_empty()),
            findings: u32::try_from(judgement.findings.len()).unwrap_or(u32::MAX),
            inconclusive: decides.map(|not| not.reason.clone()).filter(|reason| !reason.is_empty()),
        })
    }
}

/// A job of a store and its processes, without an analysis.
///
/// # Errors
/// The same as for every request.
pub(super) async fn job(
    store: &dyn Store,
    streams: &Streams,
    selection: &v1::Selection,
) -> Result<JobProcesses, ReadError> {
    let found = find(store, selection).await?;
    Ok(JobProcesses {
        job: answer::found_job(&found, streams),
        completeness: found.completeness(streams, store).into(),
        processes: answer::processes(&found, streams),
    })
}
