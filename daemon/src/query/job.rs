//! A job as a question means it: its sessions, how it is doing, how complete it is.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use memctl_model::{Completeness, SourceKind};
use memctl_proto::v1;

use super::error::QueryError;
use crate::clock::now_ns;
use crate::ingest::streams::Streams;
use crate::store::{DeviceRow, JobRow, SessionKey, SessionRow, Store};

/// A session that is not streaming and was not heard of for this long is lost: three times the longest wait between attempts to reach the daemon.
const LOST_AFTER_NS: u64 = 30_000_000_000;

/// A job with its sessions, the latest of each rank.
pub(crate) struct Found {
    pub job: JobRow,
    /// By rank.
    pub sessions: Vec<SessionRow>,
    /// Of these sessions.
    pub devices: Vec<DeviceRow>,
    /// Sessions that were followed by another one of the same rank, or were not asked for.
    pub others: Vec<SessionRow>,
}

/// Finds the job of a selection and narrows it to the ranks asked for.
pub(crate) async fn find(store: &dyn Store, selection: &v1::Selection) -> Result<Found, QueryError> {
    let name = (!selection.job.is_empty() && selection.job != "latest").then_some(selection.job.as_str());
    let job = store.job(name, selection.attempt).await?.ok_or_else(|| match (name, selection.attempt) {
        (Some(name), None) => QueryError::NoJob(name.into()),
        (Some(name), Some(attempt)) => QueryError::NoJob(format!("{name} (attempt {attempt})")),
        (None, _) => QueryError::Empty,
    })?;
    let all = store.sessions(job.key).await?;
    let known: Vec<u32> = all.iter().map(|session| session.info.rank).collect();
    if let Some(&rank) = selection.ranks.iter().find(|rank| !known.contains(rank)) {
        return Err(QueryError::NoRank { job: job.name, rank, known: ranks(&known) });
    }
    let (mut sessions, mut others): (Vec<SessionRow>, Vec<SessionRow>) = (Vec::new(), Vec::new());
    for session in all {
        if !selection.ranks.is_empty() && !selection.ranks.contains(&session.info.rank) {
            others.push(session);
        } else if let Some(last) = sessions.last_mut().filter(|last| last.info.rank == session.info.rank) {
            // Sessions of a rank come in the order of their start: the later one is the rank now.
            others.push(std::mem::replace(last, session));
        } else {
            sessions.push(session);
        }
    }
    let mut devices = store.devices(job.key).await?;
    devices.retain(|device| sessions.iter().any(|session| session.key == device.session));
    drop_unused(&mut devices);
    Ok(Found { job, sessions, devices, others })
}

/// The job with all its ranks: those that were not asked for still say what is usual.
pub(super) async fn everybody(
    store: &dyn Store,
    found: &Arc<Found>,
    selection: &v1::Selection,
) -> Result<Arc<Found>, QueryError> {
    match selection.ranks.is_empty() {
        true => Ok(found.clone()),
        false => Ok(Arc::new(find(store, &v1::Selection { ranks: Vec::new(), ..selection.clone() }).await?)),
    }
}

/// A process sees every device of its machine and mostly uses one: the others are no part of the answer. Of a session that
/// used none (yet) its first stands for it.
fn drop_unused(devices: &mut Vec<DeviceRow>) {
    let is_used = |device: &DeviceRow| {
        // Reading the allocator's state leaves an event on every device, whether it was used or not.
        device
            .latest
            .map_or(device.events > 0, |latest| latest.peaks.reserved_bytes > 0 || latest.counters.reserved_bytes > 0)
    };
    let used: HashSet<SessionKey> =
        devices.iter().filter(|device| is_used(device)).map(|device| device.session).collect();
    let mut first = HashSet::new();
    devices.retain(|device| match used.contains(&device.session) {
        true => is_used(device),
        false => first.insert(device.session),
    });
}

fn ranks(known: &[u32]) -> String {
    let mut known = known.to_vec();
    known.dedup();
    match known.as_slice() {
        [] => "none".into(),
        [only] => format!("rank {only}"),
        [first, .., last] if u64::from(last - first) + 1 == known.len() as u64 => format!("ranks {first}-{last}"),
        many => {
            let shown: Vec<String> = many.iter().take(16).map(u32::to_string).collect();
            format!("ranks {}{}", shown.join(", "), if many.len() > 16 { ", …" } else { "" })
        }
    }
}

impl Found {
    /// The job for an answer, over all its sessions.
    pub fn answer(&self, streams: &Streams) -> v1::Job {
        job_answer(&self.job, self.sessions.iter().chain(&self.others), streams)
    }

    /// How complete what the answer rests on is.
    pub fn completeness(&self, streams: &Streams) -> Completeness {
        let all = self.sessions.iter().chain(&self.others);
        let whole = Completeness { exact: !is_partial_import(&self.job, all), ..Completeness::default() };
        // Saturating: the figures came over the wire.
        self.sessions.iter().map(|session| completeness(session, streams)).fold(whole, |sum, one| Completeness {
            exact: sum.exact && one.exact,
            events_stored: sum.events_stored.saturating_add(one.events_stored),
            events_dropped: sum.events_dropped.saturating_add(one.events_dropped),
            events_expired: sum.events_expired.saturating_add(one.events_expired),
            gaps: sum.gaps.saturating_add(one.gaps),
        })
    }
}

/// A job for an answer.
pub(super) fn job_answer<'a>(
    job: &JobRow,
    sessions: impl Iterator<Item = &'a SessionRow> + Clone,
    streams: &Streams,
) -> v1::Job {
    // A rank is as its latest session is: one that was followed by another does not count.
    let mut latest: BTreeMap<u32, &SessionRow> = BTreeMap::new();
    for session in sessions.clone() {
        let kept = latest.entry(session.info.rank).or_insert(session);
        if (session.info.started_ns, session.key) > (kept.info.started_ns, kept.key) {
            *kept = session;
        }
    }
    let states: Vec<v1::JobState> = latest.values().map(|session| state(session, streams)).collect();
    let has = |state| states.contains(&state);
    let overall = if has(v1::JobState::Running) {
        v1::JobState::Running
    } else if has(v1::JobState::Failed) {
        v1::JobState::Failed
    } else if has(v1::JobState::Lost) || states.is_empty() || is_partial_import(job, sessions.clone()) {
        v1::JobState::Lost
    } else {
        v1::JobState::Finished
    };
    let ended = sessions.clone().filter_map(|session| session.end.as_ref().map(|end| end.time_ns)).max();
    let source = match sessions.clone().next().map(|session| session.info.source) {
        Some(SourceKind::Import) => v1::SourceKind::Import,
        Some(SourceKind::Live) => v1::SourceKind::Live,
        None => v1::SourceKind::Unspecified,
    };
    v1::Job {
        id: job.name.clone(),
        attempt: job.attempt,
        state: overall as i32,
        started_ns: job.started_ns,
        ended_ns: ended.filter(|_| overall != v1::JobState::Running),
        world_size: job.world_size,
        ranks: latest.len() as u32,
        events: sessions.clone().map(|session| session.events).sum(),
        stored_bytes: sessions.map(|session| session.stored_bytes).sum(),
        labels: job.labels.iter().map(|(key, value)| v1::Label { key: key.clone(), value: value.clone() }).collect(),
        attempts: job.attempts,
        source: source as i32,
    }
}

/// Whether an import was cut short: its files told how many ranks there are, and some never came.
fn is_partial_import<'a>(job: &JobRow, sessions: impl Iterator<Item = &'a SessionRow>) -> bool {
    let mut ranks: Vec<u32> = Vec::new();
    for session in sessions {
        if session.info.source != SourceKind::Import {
            return false;
        }
        ranks.push(session.info.rank);
    }
    ranks.sort_unstable();
    ranks.dedup();
    job.world_size.is_some_and(|world| (ranks.len() as u64) < u64::from(world))
}

/// How a session is doing.
pub(crate) fn state(session: &SessionRow, streams: &Streams) -> v1::JobState {
    match &session.end {
        Some(end) if end.failure.is_some() => v1::JobState::Failed,
        Some(_) => v1::JobState::Finished,
        None if streams.is_streaming(session.key) || now_ns().saturating_sub(session.heard_ns) < LOST_AFTER_NS => {
            v1::JobState::Running
        }
        None => v1::JobState::Lost,
    }
}

/// How complete a session is. After its end the law must hold: produced = stored + dropped; one that was lost did not say what it produced.
pub(super) fn completeness(session: &SessionRow, streams: &Streams) -> Completeness {
    let dropped = session.end.as_ref().map_or(session.dropped, |end| end.dropped).total();
    let whole = match &session.end {
        Some(end) => end.produced == session.events.saturating_add(dropped),
        None => state(session, streams) != v1::JobState::Lost,
    };
    Completeness {
        exact: dropped == 0 && session.missing_items == 0 && session.expired_events == 0 && whole,
        events_stored: session.events - session.expired_events.min(session.events),
        events_dropped: dropped,
        events_expired: session.expired_events,
        gaps: session.missing_items,
    }
}

/// Completeness for an answer.
pub(super) fn completeness_answer(completeness: Completeness) -> v1::Completeness {
    let Completeness { exact, events_stored, events_dropped, events_expired, gaps } = completeness;
    v1::Completeness { exact, events_stored, events_dropped, events_expired, gaps }
}
