//! Replays a recording under other allocator settings, for responses that include such advice: `diagnose`, `frag`,
//! `oom` and `report`.
//!
//! Guarantees: replays one device, once, up to a maximum number of events. If the recording cannot be replayed (dropped
//! events, no events, an unknown version, `cudaMallocAsync`), the advice gives the reason. Replays nothing if no
//! finding depends on an allocator setting.

use memctl_answers::advice::{Advice, is_called_for};
use memctl_answers::frag::{Fragmentation, pinned};
use memctl_answers::naming::{command, process_flag};
use memctl_answers::oom::{Failed, Oom};
use memctl_answers::replaying::{EVENTS_MAX, Limit, Question, Replaying};
use memctl_answers::report::{Rank, Report};
use memctl_answers::{Completeness, Job};
use memctl_model::FindingKind;
use memctl_proto::v1;

use crate::client::{self, same_job};
use crate::connect::Connection;

/// Whose memory is replayed.
struct Subject<'a> {
    job: &'a Job,
    completeness: Completeness,
    rank: u32,
    process: &'a str,
    device: Option<u32>,
    /// What pins its segments.
    pinned: Option<String>,
    /// One if the limit is known, two if only an interval is known.
    limits: Vec<Limit>,
}

/// For `diagnose`: advice on the rank that the diagnosis is about, if a finding depends on how memory is packed.
pub async fn on_note(
    connection: &mut Connection,
    report: &Report,
    rank: &Rank,
    selection: &v1::Selection,
) -> Option<Advice> {
    if !is_called_for(report) {
        return None;
    }
    let is_failed = report.findings.iter().any(|finding| finding.known_kind() == Some(FindingKind::Oom));
    let selection = same_job(selection.clone(), report, rank);
    let (mut holders, mut limits) = (Vec::new(), Vec::new());
    let is_it = |number: u32, process: &str| number == rank.rank && process == rank.process;
    if is_failed {
        if let Some(failed) = failure(connection, &selection, rank.rank, &rank.process).await {
            (limits, holders) = (failed.limits(), failed.held_by);
        }
    } else {
        let frag = client::fragmentation(connection, selection.clone()).await.ok();
        let found = frag.as_ref().and_then(|frag| frag.ranks.iter().find(|it| is_it(it.rank, &it.process)));
        holders = found.map_or_else(Vec::new, |found| found.held_by.clone());
    }
    let (completeness, device) = (rank.completeness, Some(rank.device));
    let (job, process, pinned) = (&report.job, rank.process.as_str(), pinned(&holders));
    let subject = Subject { job, completeness, rank: rank.rank, process, device, pinned, limits };
    Some(advise(connection, subject, selection).await)
}

/// For `frag`: advice on the rank that wastes most, if there is a finding.
pub async fn on_fragmentation(
    connection: &mut Connection,
    answer: &Fragmentation,
    selection: &v1::Selection,
) -> Option<Advice> {
    let found = answer.findings.iter().any(|finding| finding.known_kind() == Some(FindingKind::Fragmentation));
    let worst = answer.worst().filter(|_| found)?;
    let failed = failure(connection, selection, worst.rank, &worst.process).await;
    let subject = Subject {
        job: &answer.job,
        completeness: answer.completeness,
        rank: worst.rank,
        process: &worst.process,
        device: Some(worst.device),
        pinned: pinned(&worst.held_by),
        limits: failed.as_ref().map_or_else(Vec::new, Failed::limits),
    };
    Some(advise(connection, subject, selection.clone()).await)
}

/// For `oom`: advice on the first request that failed.
pub async fn on_failure(connection: &mut Connection, answer: &Oom, selection: &v1::Selection) -> Option<Advice> {
    let failed = answer.failures.first()?;
    let subject = Subject {
        job: &answer.job,
        completeness: answer.completeness,
        rank: failed.rank,
        process: &failed.process,
        device: Some(failed.device),
        pinned: pinned(&failed.held_by),
        limits: failed.limits(),
    };
    Some(advise(connection, subject, selection.clone()).await)
}

/// A process's failed request, if one failed.
pub async fn failure(
    connection: &mut Connection,
    selection: &v1::Selection,
    rank: u32,
    process: &str,
) -> Option<Failed> {
    let oom = client::oom(connection, selection.clone()).await.ok()?;
    oom.failures.into_iter().find(|failed| failed.rank == rank && failed.process == process)
}

async fn advise(connection: &mut Connection, subject: Subject<'_>, selection: v1::Selection) -> Advice {
    match replay(connection, &subject, selection).await {
        Ok(advice) => advice,
        Err(why) => Advice::none(subject.rank, subject.process, why, subject.pinned),
    }
}

/// The result of the replay, or why there is none.
async fn replay(
    connection: &mut Connection,
    subject: &Subject<'_>,
    selection: v1::Selection,
) -> Result<Advice, String> {
    let Completeness { events_stored, events_dropped, gaps, .. } = subject.completeness;
    if events_stored == 0 {
        return Err("no allocator events are stored, only counters".to_owned());
    }
    if events_dropped > 0 || gaps > 0 {
        return Err("events are missing in the recording, so its requests cannot be replayed".to_owned());
    }
    let processes = if subject.process.is_empty() { Vec::new() } else { vec![subject.process.to_owned()] };
    let selection = v1::Selection {
        job: subject.job.id.clone(),
        attempt: Some(subject.job.attempt),
        ranks: vec![subject.rank],
        devices: subject.device.into_iter().collect(),
        processes,
        ..selection
    };
    let mut limits = subject.limits.clone();
    limits.dedup();
    let is_interval = limits.len() > 1;
    let question = Question { limits, is_interval, events_max: Some(EVENTS_MAX), ..Question::default() };
    let mut replaying = replayed(connection, &selection, question.clone()).await?;
    if replaying.wants_other_rule {
        replaying = replayed(connection, &selection, Question { by_other_rule: true, ..question }).await?;
    }
    if replaying.is_too_long {
        let flag = process_flag(subject.process, subject.rank);
        let ask = command("what-if", subject.job, &flag, &connection.flags);
        return Err(format!("it has more than {EVENTS_MAX} events; `{ask}` replays them"));
    }
    let Some(device) = replaying.ranks.into_iter().next() else {
        let why = replaying.not_looked_at.first().map(|text| text.trim_end_matches('.').to_owned());
        return Err(why.unwrap_or_else(|| "nothing of it is stored".to_owned()));
    };
    if device.recorded.torch.is_none() {
        return Err("the recording does not name its version of torch".to_owned());
    }
    Ok(Advice::replayed(device, &replaying.not_looked_at, subject.pinned.clone()))
}

/// One pass over the stored events, up to the maximum.
async fn replayed(
    connection: &mut Connection,
    selection: &v1::Selection,
    question: Question,
) -> Result<Replaying, String> {
    let mut replaying = Replaying::new(question).map_err(|error| error.to_string())?;
    let request = v1::ExportRequest { selection: Some(selection.clone()), without_events: false };
    let words = |status: tonic::Status| status.message().to_owned();
    let mut parts = connection.query.export(request).await.map_err(words)?.into_inner();
    while let Some(part) = parts.message().await.map_err(words)? {
        if let Some(body) = part.body {
            replaying.part(body).map_err(|error| error.to_string())?;
        }
        if replaying.is_too_long {
            return Ok(replaying);
        }
    }
    replaying.finish();
    Ok(replaying)
}
