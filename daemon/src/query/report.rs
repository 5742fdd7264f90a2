//! What `memctl query` prints: a job, its ranks at their latest boundary, their epoch ends, what grew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memctl_analysis::growth::{EpochBytes, growth_bytes_per_epoch};
use memctl_model::Sample;
use memctl_proto::convert::finding::to_wire as finding_to_wire;
use memctl_proto::v1;

use super::answer;
use super::growth::{explained, growth};
use super::standing;
use crate::judge::{Judge, Judgement, Levels, Range};
use crate::read::error::ReadError;
use crate::read::job::{Found, completeness, everybody, find, state};
use crate::read::samples;
use crate::store::{DeviceRow, EpochEndRow, SessionKey, SessionRow, Store};
use crate::streams::Streams;

/// Answers a report request.
pub(super) async fn report(
    store: &Arc<dyn Store>,
    streams: &Streams,
    judge: &Judge,
    request: v1::ReportRequest,
) -> Result<v1::Report, ReadError> {
    let selection = request.selection.unwrap_or_default();
    let found = Arc::new(find(&**store, &selection).await?);
    let mut epoch_ends = store.epoch_ends(found.job.key).await?;
    epoch_ends.retain(|end| found.sessions.iter().any(|session| session.key == end.session));
    let known = (epoch_ends.iter().map(|end| end.epoch).min(), epoch_ends.iter().map(|end| end.epoch).max());
    epoch_ends.retain(|end| wanted(end, &selection));
    if let ((Some(first), Some(last)), true) = (known, epoch_ends.is_empty()) {
        return Err(ReadError::Nothing { job: found.job.name.clone(), first, last });
    }
    let judgement = judgement(store, judge, &found, &selection).await?;
    let mut ranks = rank_reports(&found, &epoch_ends, streams, &judgement);
    let samples = samples::latest(&**store, &found).await?;
    for (session, rank) in &mut ranks {
        let sample = samples.get(&(*session, rank.device as u8));
        rank.sample = sample.map(Into::into);
        if let Some(sample) = sample {
            measured_only(rank, sample);
        }
    }
    // What the judge has seen of all measurements.
    let highest = judge.highest(found.job.key).await;
    for (session, rank) in &mut ranks {
        let highest = highest.get(&(*session, rank.device as u8));
        rank.highest = highest.map(Into::into);
    }
    let mut ranks: Vec<v1::RankReport> = ranks.into_iter().map(|(_, rank)| rank).collect();
    let mut growth = growth(store, &found, &epoch_ends).await?;
    let job = &found.job.name;
    let growth_through = explained(&mut growth, &judgement.findings, job);
    let spread = standing::compare(&mut ranks);
    standing::tell_apart(&mut ranks, &judgement.findings, job);
    Ok(v1::Report {
        job: Some(answer::found_job(&found, streams)),
        completeness: Some(answer::completeness(found.completeness(streams))),
        ranks,
        growth,
        findings: judgement.findings.iter().map(|finding| finding_to_wire(finding, job)).collect(),
        judged: Some((&judgement.judged).into()),
        not_judged: judgement.not_judged.iter().map(Into::into).collect(),
        boundaries: Some(judgement.boundaries),
        spread,
        growth_through,
        processes: processes(&found, streams),
    })
}

/// What is wrong, judged over all ranks and told of those that were asked for.
async fn judgement(
    store: &Arc<dyn Store>,
    judge: &Judge,
    found: &Arc<Found>,
    selection: &v1::Selection,
) -> Result<Judgement, ReadError> {
    let epochs = (selection.first_epoch.is_some() || selection.last_epoch.is_some())
        .then(|| (selection.first_epoch.unwrap_or(0), selection.last_epoch.unwrap_or(u32::MAX)));
    let times_ns = (selection.since_ns.is_some() || selection.until_ns.is_some())
        .then(|| (selection.since_ns.unwrap_or(0), selection.until_ns.unwrap_or(u64::MAX)));
    let range = Range { epochs, times_ns };
    let is_whole = selection.ranks.is_empty() && selection.processes.is_empty() && selection.devices.is_empty();
    let everybody = everybody(&**store, found, selection).await?;
    let mut judgement = judge.judgement(&everybody, found, range, is_whole).await?;
    let names: BTreeSet<String> = found.sessions.iter().map(|session| found.process_name(session)).collect();
    judgement.findings.retain(|finding| {
        let is_of_rank = || finding.ranks.iter().any(|rank| found.sessions.iter().any(|own| own.info.rank == *rank));
        is_whole
            || finding.processes.iter().any(|name| names.contains(name))
            || (finding.processes.is_empty() && is_of_rank())
    });
    Ok(judgement)
}

/// A framework that tells no events (JAX) has only what was measured: its own counters stand for the figures that events
/// would give.
fn measured_only(rank: &mut v1::RankReport, sample: &Sample) {
    let is_silent = rank.events == 0 && rank.reserved_bytes.unwrap_or(0) == 0 && rank.allocated_bytes.unwrap_or(0) == 0;
    if is_silent && sample.allocated_bytes.is_some() {
        rank.allocated_bytes = sample.allocated_bytes;
        rank.reserved_bytes = sample.reserved_bytes;
        rank.peak_allocated_bytes = sample.peak_allocated_bytes;
        rank.peak_reserved_bytes = sample.peak_reserved_bytes;
        rank.fragmentation_ratio = None;
    }
}

/// Whether an epoch end is in the selection.
pub(super) fn wanted(end: &EpochEndRow, selection: &v1::Selection) -> bool {
    selection.first_epoch.is_none_or(|first| end.epoch >= first)
        && selection.last_epoch.is_none_or(|last| end.epoch <= last)
        && selection.since_ns.is_none_or(|since| end.time_ns >= since)
        && selection.until_ns.is_none_or(|until| end.time_ns <= until)
}

/// Every process of the selection.
fn processes(found: &Found, streams: &Streams) -> Vec<v1::ProcessReport> {
    let process = |session: &SessionRow| {
        let called = found.process(session.key);
        let devices = found.devices.iter().filter(|device| device.session == session.key);
        v1::ProcessReport {
            process: called.name.clone(),
            role: called.role.clone(),
            rank: session.info.rank,
            host: session.info.host.clone(),
            pid: session.info.pid,
            parent_pid: session.info.parent_pid,
            devices: devices.map(|device| u32::from(device.info.index.0)).collect(),
            events: session.events,
            stored_bytes: session.stored_bytes,
            state: v1::JobState::from(state(session, streams)) as i32,
            failure: session.end.as_ref().and_then(|end| end.failure.clone()),
            completeness: Some(answer::completeness(completeness(session, streams))),
            started_ns: session.info.started_ns,
            ended_ns: session.end.as_ref().map(|end| end.time_ns),
            framework: session.info.framework.clone(),
        }
    };
    found.sessions.iter().map(process).collect()
}

fn rank_reports(
    found: &Found,
    epoch_ends: &[EpochEndRow],
    streams: &Streams,
    judgement: &Judgement,
) -> Vec<(SessionKey, v1::RankReport)> {
    let mut by_device: BTreeMap<(i64, u8), Vec<&EpochEndRow>> = BTreeMap::new();
    for end in epoch_ends {
        by_device.entry((end.session, end.device)).or_default().push(end);
    }
    let mut reports = Vec::new();
    for session in &found.sessions {
        for device in found.devices.iter().filter(|device| device.session == session.key) {
            let ends = by_device.remove(&(session.key, device.info.index.0)).unwrap_or_default();
            let process = found.process_name(session);
            let mut report = v1::RankReport { process, ..rank_report(session, device, &ends, streams) };
            if session.end.is_some() {
                let levels = judgement.levels.get(&(session.key, device.info.index.0));
                before_teardown(&mut report, levels);
            }
            reports.push((session.key, report));
        }
    }
    reports
}

/// A session that has ended is shown as its last boundary left it: the end of the record is what teardown has left.
fn before_teardown(report: &mut v1::RankReport, levels: Option<&Levels>) {
    let Some(Levels { boundary, counters }) = levels else { return };
    report.end_allocated_bytes = report.allocated_bytes.replace(counters.allocated_bytes);
    report.end_reserved_bytes = report.reserved_bytes.replace(counters.reserved_bytes);
    report.fragmentation_ratio = counters.fragmentation_ratio();
    report.levels_at = format!("{}_end", boundary.name());
}

fn rank_report(session: &SessionRow, device: &DeviceRow, ends: &[&EpochEndRow], streams: &Streams) -> v1::RankReport {
    let series: Vec<EpochBytes> =
        ends.iter().map(|end| EpochBytes { epoch: end.epoch, bytes: end.counters.allocated_bytes }).collect();
    let latest = device.latest.as_ref().filter(|_| device.is_known());
    v1::RankReport {
        rank: session.info.rank,
        host: session.info.host.clone(),
        pid: session.info.pid,
        device: u32::from(device.info.index.0),
        gpu_uuid: device.info.uuid.clone(),
        gpu_name: device.info.name.clone(),
        framework: session.info.framework.clone(),
        allocator_conf: session.info.settings.conf.clone(),
        epochs: device.epochs,
        steps: device.steps,
        events: device.events,
        allocated_bytes: latest.map(|latest| latest.counters.allocated_bytes),
        reserved_bytes: latest.map(|latest| latest.counters.reserved_bytes),
        peak_allocated_bytes: latest.map(|latest| latest.peaks.allocated_bytes),
        peak_reserved_bytes: latest.map(|latest| latest.peaks.reserved_bytes),
        device_used_bytes: device.device_used_bytes,
        device_total_bytes: device.info.total_bytes,
        fragmentation_ratio: latest.and_then(|latest| latest.counters.fragmentation_ratio()),
        growth_bytes_per_epoch: growth_bytes_per_epoch(&series),
        alloc_retries: device.alloc_retries,
        ooms: device.ooms,
        epoch_ends: ends.iter().map(|end| epoch_end(end)).collect(),
        completeness: Some(answer::completeness(completeness(session, streams))),
        failure: session.end.as_ref().and_then(|end| end.failure.clone()),
        state: v1::JobState::from(state(session, streams)) as i32,
        stored_bytes: session.stored_bytes,
        sample: None,
        highest: None,
        process: String::new(),
        stands_out: Vec::new(),
        levels_at: "end".to_owned(),
        end_allocated_bytes: None,
        end_reserved_bytes: None,
        findings: Vec::new(),
    }
}

fn epoch_end(end: &EpochEndRow) -> v1::EpochEnd {
    v1::EpochEnd {
        epoch: end.epoch,
        step: end.step,
        time_ns: end.time_ns,
        counters: Some((&end.counters).into()),
        peaks: Some(end.peaks.into()),
        peaks_within: Some(end.peaks_within.into()),
        exact: end.exact,
    }
}
