//! Answers `frag` and `oom` requests and adds, if requested, the effect of other allocator settings.
//!
//! Guarantees: at most one device is replayed, and only if there is a finding. If it cannot be replayed, the reason is
//! given.

use memctl_answers::Job;
use memctl_answers::advising::Subject;
use memctl_answers::frag::Fragmentation;
use memctl_answers::oom::{Failed, Oom};
use memctl_proto::v1;

use super::sources::Sources;
use super::{fragmentation, oom};
use crate::job_data::error::ReadError;

/// Answers a fragmentation request.
pub(super) async fn fragmentation(
    from: &Sources,
    request: v1::FragmentationRequest,
) -> Result<Fragmentation, ReadError> {
    let v1::FragmentationRequest { selection, replay, flags } = request;
    let selection = selection.unwrap_or_default();
    let mut answer = fragmentation::fragmentation(&from.store, &from.streams, &from.judge, &selection).await?;
    if replay && Subject::of_fragmentation(&answer, None).is_some() {
        let failures = failures(from, &selection).await.ok();
        if let Some(subject) = Subject::of_fragmentation(&answer, failures.as_ref()) {
            let run = same_run(selection, &answer.job);
            answer.replay = Some(from.advice((&run, &flags), subject).await);
        }
    }
    Ok(answer)
}

/// Answers an out-of-memory request.
pub(super) async fn oom(from: &Sources, request: v1::OomRequest) -> Result<Oom, ReadError> {
    let v1::OomRequest { selection, replay, flags } = request;
    let selection = selection.unwrap_or_default();
    let answer = failures(from, &selection).await?;
    let advice = match Subject::of_failure(&answer).filter(|_| replay) {
        Some(subject) => Some(from.advice((&same_run(selection, &answer.job), &flags), subject).await),
        None => None,
    };
    Ok(answer.with_replay(advice))
}

/// The failed request of a process, if a request failed and can be explained.
pub(super) async fn failure(from: &Sources, selection: &v1::Selection, rank: u32, process: &str) -> Option<Failed> {
    failures(from, selection).await.ok()?.failure_of(rank, process).cloned()
}

async fn failures(from: &Sources, selection: &v1::Selection) -> Result<Oom, ReadError> {
    oom::oom(&from.store, &from.streams, &from.judge, selection).await
}

/// A selection of the run of an answer. `latest` may have become another run since.
fn same_run(selection: v1::Selection, job: &Job) -> v1::Selection {
    v1::Selection { job: job.id.clone(), attempt: Some(job.attempt), ..selection }
}
