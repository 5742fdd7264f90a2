//! The figures of a judged job for the summaries.
//!
//! Guarantees: the figures are the same as those of `memctl query` at the same moment. If a process has ended, they are
//! from before its teardown. If it reports no events, they are from the framework's own counters.

use std::collections::{BTreeMap, HashMap};

use memctl_model::{Counters, Finding, JobState};

use super::job_watch::Watched;
use super::judgement::Judgement;
use crate::job_data::FoundJob;
use crate::job_data::job::{Summary, completeness, state};
use crate::store::{DeviceRow, SessionKey, SessionRow};
use crate::streams::Streams;
use crate::summaries::{DeviceFigures, JobFigures};

/// The job's figures.
pub(super) fn of(
    found: &FoundJob,
    summary: &Summary,
    judgement: Option<&Judgement>,
    watched: &Watched,
    streams: &Streams,
    now_ns: u64,
) -> JobFigures {
    let sessions: HashMap<SessionKey, (&SessionRow, JobState)> =
        found.sessions.iter().map(|session| (session.key, (session, state(session, streams)))).collect();
    let mut processes = BTreeMap::new();
    sessions.values().for_each(|(_, state)| *processes.entry(*state).or_default() += 1);
    let counted = found.sessions.iter().map(|session| completeness(session, streams));
    let dropped = counted.map(|complete| complete.events_dropped).fold(0, u64::saturating_add);
    let device = |row: &DeviceRow| {
        let (session, state) = sessions.get(&row.session)?;
        let levels = judgement.and_then(|judgement| judgement.levels.get(&(row.session, row.info.index.0)));
        let levels = levels.filter(|_| session.end.is_some()).map(|levels| levels.counters);
        Some(figures(found, session, *state, row, levels, watched))
    };
    let mut devices: Vec<DeviceFigures> = found.devices.iter().filter_map(device).collect();
    devices.sort_by(|a, b| (a.rank, &a.process, a.gpu).cmp(&(b.rank, &b.process, b.gpu)));
    let most = |read: fn(&DeviceRow) -> u64| found.devices.iter().map(read).max().unwrap_or(0);
    let retries = || found.devices.iter().filter_map(|row| row.alloc_retries);
    let findings: &[Finding] = judgement.map_or(&[], |judgement| &judgement.findings);
    let mut kinds = BTreeMap::new();
    findings.iter().for_each(|finding| *kinds.entry((finding.severity, finding.kind)).or_default() += 1);
    let ahead = findings.iter().filter_map(|finding| finding.time_to_oom_seconds).filter(|seconds| seconds.is_finite());
    JobFigures {
        key: found.job.key,
        name: found.job.name.clone(),
        tenant: found.job.tenant.clone(),
        run: found.job.run,
        attempt: found.job.attempt,
        state: summary.state,
        expected_ranks: found.job.world_size,
        processes,
        epochs: most(|row| row.epochs),
        steps: most(|row| row.steps),
        events: summary.received_events,
        dropped,
        ooms: found.devices.iter().map(|row| row.ooms).fold(0, u64::saturating_add),
        alloc_retries: retries().next().map(|_| retries().fold(0, u64::saturating_add)),
        // A run that is over has no coming failure.
        time_to_oom_seconds: ahead.reduce(f64::min).filter(|_| summary.state == JobState::Running),
        findings: kinds,
        devices,
        taken_ns: now_ns,
    }
}

fn figures(
    found: &FoundJob,
    session: &SessionRow,
    state: JobState,
    row: &DeviceRow,
    before_teardown: Option<Counters>,
    watched: &Watched,
) -> DeviceFigures {
    let key = (row.session, row.info.index.0);
    let sample = watched.last.get(&key).copied().unwrap_or_default();
    let latest = row.latest.filter(|_| row.is_known());
    let counters = before_teardown.or(latest.map(|latest| latest.counters));
    let (allocated_bytes, reserved_bytes, peak_allocated_bytes) = match counters {
        Some(counters) => (
            Some(counters.allocated_bytes),
            Some(counters.reserved_bytes),
            latest.map(|latest| latest.peaks.allocated_bytes),
        ),
        None => (sample.allocated_bytes, sample.reserved_bytes, sample.peak_allocated_bytes),
    };
    DeviceFigures {
        rank: session.info.rank,
        process: found.process_name(session),
        host: session.info.host.clone().unwrap_or_default(),
        gpu: row.info.index.0,
        uuid: row.info.uuid.clone().unwrap_or_default(),
        is_lost: matches!(state, JobState::Lost | JobState::Failed),
        allocated_bytes,
        reserved_bytes,
        peak_allocated_bytes,
        used_bytes: sample.device_used_bytes.or(row.device_used_bytes),
        total_bytes: sample.device_total_bytes.or(row.info.total_bytes),
        growth_bytes_per_epoch: watched.growth.get(&key).copied(),
        fragmentation_ratio: counters.and_then(|counters| counters.fragmentation_ratio()),
        steps: row.steps,
    }
}
