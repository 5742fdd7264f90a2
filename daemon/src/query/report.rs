//! Answers `memctl query`: a job, its ranks at their latest boundary, their epoch ends, and the sites that grew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memctl_answers::SCHEMA;
use memctl_answers::finding as answers;
use memctl_answers::judged::Scope;
use memctl_answers::report::{Growth, Report};
use memctl_model::Finding;
use memctl_proto::v1;

use super::answer;
use super::growth::{explained, growth};
use super::rank::Rank;
use super::rank_comparison;
use crate::job_data::error::ReadError;
use crate::job_data::job::{FoundJob, find, with_all_processes};
use crate::job_data::samples;
use crate::judge::{Judge, Judgement, Range};
use crate::store::{EpochEndRow, SessionKey, Store};
use crate::streams::Streams;

/// The growth rates of one leak differ by at most this share, because other memory is allocated and freed.
const SAME_RATE: f64 = 0.05;

/// Answers a report request.
pub(super) async fn report(
    store: &Arc<dyn Store>,
    streams: &Streams,
    judge: &Judge,
    request: v1::ReportRequest,
) -> Result<Report, ReadError> {
    let selection = request.selection.unwrap_or_default();
    let found = Arc::new(find(&**store, &selection).await?);
    let mut epoch_ends = store.epoch_ends(found.job.key).await?;
    let by_key = found.by_key();
    epoch_ends.retain(|end| by_key.contains_key(&end.session));
    let known = (epoch_ends.iter().map(|end| end.epoch).min(), epoch_ends.iter().map(|end| end.epoch).max());
    epoch_ends.retain(|end| wanted(end, &selection));
    if let ((Some(first), Some(last)), true) = (known, epoch_ends.is_empty()) {
        return Err(ReadError::Nothing { job: found.job.name.clone(), first, last });
    }
    let range = range(&selection);
    let judgement = judgement(store, judge, &found, (&selection, range)).await?;
    let verdict = judgement.verdict(judge.activity_in(&found, range), found.has_failed());
    let mut ranks = ranks(&found, &epoch_ends, streams, &judgement);
    let (samples, mut growth) =
        tokio::try_join!(samples::latest(&**store, &found), growth(store, &found, &epoch_ends))?;
    // The highest values of all measurements that the judge has read.
    let highest = judge.highest(found.job.key).await;
    for rank in &mut ranks {
        rank.measured(samples.get(&rank.key()), highest.get(&rank.key()));
    }
    let job = &found.job.name;
    let growth_through = explained(&mut growth, &judgement.findings, job);
    // The usual values among ranks are computed from the rates that are shown.
    one_rate(&mut ranks, &judgement.findings);
    let spread = rank_comparison::compare(&mut ranks);
    rank_comparison::tell_apart(&mut ranks, &judgement.findings, job);
    let mut ranks: Vec<_> = ranks.into_iter().map(Rank::into_answer).collect();
    ranks.sort_by_key(|rank| (rank.rank, rank.device));
    Ok(Report {
        schema: SCHEMA,
        job: answer::found_job(&found, streams),
        completeness: found.completeness(streams, &**store).into(),
        ranks,
        processes: answer::processes(&found, streams),
        findings: judgement.findings.iter().map(|finding| answers::Finding::new(finding, job)).collect(),
        growth: growth.into_iter().map(Growth::from).collect(),
        scope: Scope::new(&judgement.judged, &judgement.not_judged),
        boundaries: judgement.boundaries,
        spread,
        growth_through,
        verdict: Some((&verdict).into()),
        ..Report::default()
    })
}

/// Reports one rate for one leak: if a single leak explains a rank's growth, the rank gets the finding's rate. The
/// rates of all live memory and of one line differ, because other memory is allocated and freed.
fn one_rate(ranks: &mut [Rank<'_>], findings: &[Finding]) {
    for rank in ranks {
        let of_rank = |finding: &&Finding| {
            finding.kind.fills()
                && finding.ranks.contains(&rank.number())
                && (finding.processes.is_empty() || finding.processes.contains(&rank.process))
        };
        let mut rates = findings.iter().filter(of_rank).filter_map(|finding| finding.bytes_per_epoch);
        let (Some(rate), None) = (rates.next(), rates.next()) else { continue };
        let explains = |measured: f64| (measured - rate.value).abs() <= SAME_RATE * rate.value.abs();
        if rank.growth_bytes_per_epoch.is_some_and(explains) {
            rank.growth_bytes_per_epoch = Some(rate.value);
        }
    }
}

/// The selected part of a job.
fn range(selection: &v1::Selection) -> Range {
    let epochs = (selection.first_epoch.is_some() || selection.last_epoch.is_some())
        .then(|| (selection.first_epoch.unwrap_or(0), selection.last_epoch.unwrap_or(u32::MAX)));
    let times_ns = (selection.since_ns.is_some() || selection.until_ns.is_some())
        .then(|| (selection.since_ns.unwrap_or(0), selection.until_ns.unwrap_or(u64::MAX)));
    Range { epochs, times_ns }
}

/// The findings, judged over all ranks and reported for the selected ones.
async fn judgement(
    store: &Arc<dyn Store>,
    judge: &Judge,
    found: &Arc<FoundJob>,
    (selection, range): (&v1::Selection, Range),
) -> Result<Judgement, ReadError> {
    let is_whole = selection.ranks.is_empty() && selection.processes.is_empty() && selection.devices.is_empty();
    let whole_job = with_all_processes(&**store, found, selection).await?;
    let mut judgement = judge.judgement(&whole_job, found, range, is_whole).await?;
    let names: BTreeSet<String> = found.sessions.iter().map(|session| found.process_name(session)).collect();
    let ranks: BTreeSet<u32> = found.sessions.iter().map(|session| session.info.rank).collect();
    judgement.findings.retain(|finding| {
        let is_of_rank = || finding.ranks.iter().any(|rank| ranks.contains(rank));
        is_whole
            || finding.processes.iter().any(|name| names.contains(name))
            || (finding.processes.is_empty() && is_of_rank())
    });
    Ok(judgement)
}

/// Whether an epoch end is in the selection.
pub(super) fn wanted(end: &EpochEndRow, selection: &v1::Selection) -> bool {
    selection.first_epoch.is_none_or(|first| end.epoch >= first)
        && selection.last_epoch.is_none_or(|last| end.epoch <= last)
        && selection.since_ns.is_none_or(|since| end.time_ns >= since)
        && selection.until_ns.is_none_or(|until| end.time_ns <= until)
}

/// The devices of the selection, by session.
fn ranks<'a>(
    found: &'a FoundJob,
    epoch_ends: &'a [EpochEndRow],
    streams: &Streams,
    judgement: &Judgement,
) -> Vec<Rank<'a>> {
    let mut by_device: BTreeMap<(SessionKey, u8), Vec<&EpochEndRow>> = BTreeMap::new();
    for end in epoch_ends {
        by_device.entry((end.session, end.device)).or_default().push(end);
    }
    let mut ranks = Vec::new();
    for session in &found.sessions {
        for device in found.devices_of(session.key).iter() {
            let ends = by_device.remove(&(session.key, device.info.index.0)).unwrap_or_default();
            let mut rank = Rank::new(found, session, device, ends, streams);
            rank.before_teardown(judgement.levels.get(&rank.key()));
            ranks.push(rank);
        }
    }
    ranks
}
