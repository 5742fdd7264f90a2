//! A job as selected by a request: its sessions, its state and its completeness.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use memctl_model::{Completeness, JobState, SlurmJob, SourceKind};
use memctl_proto::v1;

use super::error::ReadError;
use super::processes::{Process, names, superseded};
use super::similar_names;
use crate::clock::now_ns;
use crate::store::{DeviceRow, JobRow, SessionKey, SessionRow, Store, StoreError, Which};
use crate::streams::Streams;

/// A session without a stream counts as lost after this time. It is three times the longest wait between attempts to
/// reach the daemon.
const LOST_AFTER_NS: u64 = 30_000_000_000;

/// A job with its sessions, one per process.
pub(crate) struct FoundJob {
    pub job: JobRow,
    /// By rank, then by start.
    pub sessions: Vec<SessionRow>,
    /// Devices of these sessions, by session, then by index.
    pub devices: Vec<DeviceRow>,
    /// Processes of the job that were not selected.
    pub others: Vec<SessionRow>,
    /// Sessions that a later one has replaced: its process attached again, its rank was imported again, or it had ended
    /// before another launch began.
    pub earlier: Vec<SessionRow>,
    /// The names of all its processes.
    processes: HashMap<SessionKey, Process>,
}

/// The number of newest jobs that are searched for a similar name.
const JOBS_ASKED: u32 = 1_000;
/// The number of newest jobs that are searched for a job of a scheduler.
const JOBS_SEARCHED: u32 = 20_000;
/// The most runs that an error names if the requested run does not exist.
const RUNS_NAMED: usize = 3;

/// The job that a selection refers to.
pub(crate) fn which(selection: &v1::Selection) -> Which {
    match selection.launcher {
        Some(launcher) => Which::OfLauncher(selection.job.clone(), launcher),
        None => Which::written(&selection.job),
    }
}

/// The error for a job that does not exist, with similar names.
pub(crate) async fn no_job(store: &dyn Store, which: &Which, attempt: Option<u32>) -> ReadError {
    if let Some(attempt) = attempt {
        match stored(store, which, None).await {
            Ok(Some(job)) => return ReadError::NoAttempt { job: job.label(), attempt, last: job.attempt },
            Ok(None) => {}
            Err(error) => return error.into(),
        }
    }
    let there = match store.jobs(JOBS_ASKED).await {
        Ok(jobs) => jobs,
        Err(error) => return error.into(),
    };
    let series = which.name().unwrap_or_default();
    let runs = there.iter().filter(|job| job.name == series).map(JobRow::label);
    let like = match which.run() {
        // The name is right, so the error lists the existing runs.
        Some(_) if there.iter().any(|job| job.name == series) => runs.take(RUNS_NAMED).collect(),
        _ => similar_names::names(series, there.iter().map(|job| job.name.clone())),
    };
    let name = attempt.map_or_else(|| which.to_string(), |attempt| format!("{which} (attempt {attempt})"));
    ReadError::NoJob { name, like }
}

/// The stored job that is meant, and its attempt if given. A job of a scheduler (`slurm:1234`) is the newest job with
/// its labels, unless a job has exactly this name.
pub(crate) async fn stored(
    store: &dyn Store,
    which: &Which,
    attempt: Option<u32>,
) -> Result<Option<JobRow>, StoreError> {
    if let Some(job) = store.job(which, attempt).await? {
        return Ok(Some(job));
    }
    let Some(slurm) = which.name().and_then(SlurmJob::written) else { return Ok(None) };
    let jobs = store.jobs(JOBS_SEARCHED).await?;
    let own = jobs.iter().find(|job| slurm.is(&job.labels));
    match own.or_else(|| jobs.iter().find(|job| slurm.is_array_of(&job.labels))) {
        Some(job) => store.job(&job.address(), attempt).await,
        None => Ok(None),
    }
}

/// Finds the job of a selection and narrows it to the selected processes and devices.
pub(crate) async fn find(store: &dyn Store, selection: &v1::Selection) -> Result<FoundJob, ReadError> {
    let which = which(selection);
    let Some(job) = stored(store, &which, selection.attempt).await? else {
        return match which {
            Which::Latest => Err(ReadError::Empty),
            which => Err(no_job(store, &which, selection.attempt).await),
        };
    };
    let all = store.sessions(job.key).await?;
    let gone = superseded(&all);
    let (earlier, present): (Vec<SessionRow>, Vec<SessionRow>) =
        all.into_iter().partition(|session| gone.contains(&session.key));
    let processes = names(present.iter());
    check(&job, &present, &processes, selection)?;
    let (sessions, others): (Vec<SessionRow>, Vec<SessionRow>) = present.into_iter().partition(|session| {
        let is_named = |name: &String| processes.get(&session.key).is_some_and(|process| answers_to(process, name));
        (selection.ranks.is_empty() || selection.ranks.contains(&session.info.rank))
            && (selection.processes.is_empty() || selection.processes.iter().any(is_named))
    });
    let mut devices = store.devices(job.key).await?;
    let asked: HashSet<SessionKey> = sessions.iter().map(|session| session.key).collect();
    devices.retain(|device| asked.contains(&device.session));
    drop_unused(&mut devices);
    let mut found = FoundJob { job, sessions, devices, others, earlier, processes };
    found.narrow(&selection.devices)?;
    Ok(found)
}

/// Whether a process matches a name or a role: `worker` selects all workers.
fn answers_to(process: &Process, name: &str) -> bool {
    process.name == name || process.role.as_deref() == Some(name)
}

/// Checks that the job has the selected ranks and processes.
fn check(
    job: &JobRow,
    sessions: &[SessionRow],
    processes: &HashMap<SessionKey, Process>,
    selection: &v1::Selection,
) -> Result<(), ReadError> {
    let known: BTreeSet<u32> = sessions.iter().map(|session| session.info.rank).collect();
    if let Some(&rank) = selection.ranks.iter().find(|rank| !known.contains(rank)) {
        return Err(ReadError::NoRank { job: job.label(), rank, known: ranks(&known) });
    }
    let is_known = |name: &&String| processes.values().any(|process| answers_to(process, name));
    if let Some(name) = selection.processes.iter().find(|name| !is_known(name)) {
        let mut known: Vec<&str> = processes.values().map(|process| process.name.as_str()).collect();
        known.sort_unstable();
        let known = listed(known.iter().map(|name| (*name).to_owned()), known.len());
        return Err(ReadError::NoProcess { job: job.label(), process: name.clone(), known });
    }
    Ok(())
}

/// The job with all its processes. Processes that are not selected are also needed to determine the usual values.
pub(crate) async fn with_all_processes(
    store: &dyn Store,
    found: &Arc<FoundJob>,
    selection: &v1::Selection,
) -> Result<Arc<FoundJob>, ReadError> {
    let v1::Selection { ranks, processes, devices, .. } = selection;
    if ranks.is_empty() && processes.is_empty() && devices.is_empty() {
        return Ok(found.clone());
    }
    let (ranks, processes, devices) = (Vec::new(), Vec::new(), Vec::new());
    Ok(Arc::new(find(store, &v1::Selection { ranks, processes, devices, ..selection.clone() }).await?))
}

/// Drops unused devices, because a process sees every device of its machine and mostly uses one. A session that has not
/// used any device (yet) keeps its first one.
fn drop_unused(devices: &mut Vec<DeviceRow>) {
    let is_used = |device: &DeviceRow| {
        // Reading the allocator's state leaves an event on every device, whether it is used or not.
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

fn ranks(known: &BTreeSet<u32>) -> String {
    match (known.first(), known.last()) {
        (Some(only), Some(last)) if only == last => format!("rank {only}"),
        (Some(first), Some(last)) if u64::from(last - first) + 1 == known.len() as u64 => {
            format!("ranks {first}-{last}")
        }
        (Some(_), Some(_)) => format!("ranks {}", listed(known.iter().map(u32::to_string), known.len())),
        _ => "none".into(),
    }
}

/// The first 16 of these names.
fn listed(all: impl Iterator<Item = String>, count: usize) -> String {
    let shown: Vec<String> = all.take(16).collect();
    format!("{}{}", shown.join(", "), if count > 16 { ", …" } else { "" })
}

impl FoundJob {
    /// The devices of a session. This is a binary search, because a job may have thousands of sessions and most
    /// responses loop over all of them.
    pub fn devices_of(&self, session: SessionKey) -> &[DeviceRow] {
        let first = self.devices.partition_point(|device| device.session < session);
        let rest = self.devices.get(first..).unwrap_or_default();
        &rest[..rest.partition_point(|device| device.session == session)]
    }

    /// The sessions by their keys.
    pub fn by_key(&self) -> HashMap<SessionKey, &SessionRow> {
        self.sessions.iter().map(|session| (session.key, session)).collect()
    }

    /// The name of a session's process.
    pub fn process(&self, session: SessionKey) -> &Process {
        static NOBODY: Process = Process { name: String::new(), role: None, is_child: false };
        self.processes.get(&session).unwrap_or(&NOBODY)
    }

    /// The name of a session's process, for a response.
    pub fn process_name(&self, session: &SessionRow) -> String {
        self.process(session.key).name.clone()
    }

    /// Whether one of its processes still runs, as far as is known.
    pub fn goes_on(&self, streams: &Streams) -> bool {
        self.sessions.iter().any(|session| state(session, streams) == JobState::Running)
    }

    /// Whether a request or a process of the job failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.devices.iter().any(|device| device.ooms > 0) || self.failures().next().is_some()
    }

    /// The recorded failures of its processes, in no particular order.
    pub fn failures(&self) -> impl Iterator<Item = &str> {
        self.sessions.iter().filter_map(|session| session.end.as_ref()?.failure.as_deref())
    }

    /// Keeps the devices with these indexes, and the processes that use one of them.
    fn narrow(&mut self, wanted: &[u32]) -> Result<(), ReadError> {
        if wanted.is_empty() {
            return Ok(());
        }
        let known: BTreeSet<u32> = self.devices.iter().map(|device| u32::from(device.info.index.0)).collect();
        if let Some(&device) = wanted.iter().find(|device| !known.contains(device)) {
            let known = listed(known.iter().map(u32::to_string), known.len());
            return Err(ReadError::NoDevice { job: self.job.label(), device, known });
        }
        self.devices.retain(|device| wanted.contains(&u32::from(device.info.index.0)));
        let uses = |session: &SessionRow| !self.devices_of(session.key).is_empty();
        let (sessions, others): (Vec<_>, Vec<_>) = self.sessions.clone().into_iter().partition(uses);
        self.sessions = sessions;
        self.others.extend(others);
        Ok(())
    }

    /// The number of ranks in the response.
    pub fn rank_count(&self) -> usize {
        self.sessions.iter().map(|session| session.info.rank).collect::<HashSet<_>>().len()
    }

    /// The summary of the job over all its sessions.
    pub fn summary(&self, streams: &Streams) -> Summary {
        Summary::new(&self.job, self.sessions.iter().chain(&self.others).chain(&self.earlier), streams)
    }

    /// The completeness of the data that the response uses.
    ///
    /// Damage is found when data is read, so call this at the end.
    pub fn completeness(&self, streams: &Streams, store: &dyn Store) -> Completeness {
        let all = self.sessions.iter().chain(&self.others).chain(&self.earlier);
        let is_own = |(session, _): &(SessionKey, u64)| self.sessions.iter().any(|own| own.key == *session);
        let items_damaged = store.damaged().iter().filter(|damaged| is_own(damaged)).count() as u64;
        let exact = items_damaged == 0 && !is_partial_import(&self.job, all);
        let whole = Completeness { exact, items_damaged, ..Completeness::default() };
        // Saturating: the figures come from the network.
        self.sessions.iter().map(|session| completeness(session, streams)).fold(whole, |sum, one| Completeness {
            exact: sum.exact && one.exact,
            events_stored: sum.events_stored.saturating_add(one.events_stored),
            events_dropped: sum.events_dropped.saturating_add(one.events_dropped),
            events_expired: sum.events_expired.saturating_add(one.events_expired),
            gaps: sum.gaps.saturating_add(one.gaps),
            items_damaged,
        })
    }
}

/// The summary of a job over all its sessions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    pub state: JobState,
    /// Set if the job no longer runs.
    pub ended_ns: Option<u64>,
    /// The source of its first session.
    pub source: Option<SourceKind>,
    pub ranks: u32,
    pub processes: u32,
    /// The number of sessions that a later one has replaced.
    pub earlier_sessions: u32,
    /// Events in the store.
    pub events: u64,
    /// Events that were received. Retention does not lower this number.
    pub received_events: u64,
    pub stored_bytes: u64,
}

impl Summary {
    pub fn new<'a>(job: &JobRow, sessions: impl Iterator<Item = &'a SessionRow> + Clone, streams: &Streams) -> Self {
        let all: Vec<SessionRow> = sessions.clone().cloned().collect();
        let gone = superseded(&all);
        let present = || all.iter().filter(|session| !gone.contains(&session.key));
        let processes = names(present());
        let ranks: HashSet<u32> = all.iter().map(|session| session.info.rank).collect();
        let states: Vec<(JobState, bool)> = present()
            .map(|session| {
                let is_child = processes.get(&session.key).is_some_and(|process| process.is_child);
                (state(session, streams), is_child)
            })
            .collect();
        let is_partial = is_partial_import(job, sessions.clone());
        let state = overall(&states, is_partial);
        let ended = sessions.clone().filter_map(|session| session.end.as_ref().map(|end| end.time_ns)).max();
        Self {
            state,
            ended_ns: ended.filter(|_| state != JobState::Running),
            source: sessions.clone().next().map(|session| session.info.source),
            ranks: ranks.len() as u32,
            processes: states.len() as u32,
            earlier_sessions: gone.len() as u32,
            events: sessions.clone().map(SessionRow::events_stored).sum(),
            received_events: sessions.clone().map(|session| session.events).sum(),
            stored_bytes: sessions.map(|session| session.stored_bytes).sum(),
        }
    }
}

/// The state of a job from the states of its processes. Each state comes with whether another process of the job
/// started that process.
fn overall(states: &[(JobState, bool)], is_partial: bool) -> JobState {
    let has = |wanted| states.iter().any(|&(state, _)| state == wanted);
    // The main processes decide how a job ended. They see the ends of the processes that they start, and they mostly
    // cause them.
    let of_mains = |wanted| states.iter().any(|&(state, is_child)| state == wanted && !is_child);
    if has(JobState::Running) {
        JobState::Running
    } else if of_mains(JobState::Failed) {
        JobState::Failed
    } else if of_mains(JobState::Lost) || states.is_empty() || is_partial {
        JobState::Lost
    } else {
        JobState::Finished
    }
}

/// Whether an import is incomplete: its files give the number of ranks, and some ranks are missing.
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

/// The state of a session.
pub(crate) fn state(session: &SessionRow, streams: &Streams) -> JobState {
    match &session.end {
        Some(end) if end.failure.is_some() => JobState::Failed,
        Some(_) => JobState::Finished,
        None if streams.is_streaming(session.key) || now_ns().saturating_sub(session.heard_ns) < LOST_AFTER_NS => {
            JobState::Running
        }
        None => JobState::Lost,
    }
}

/// The completeness of a session. After its end, produced = stored + dropped must hold. A session that neither streams nor
/// has ended may have recorded more than it delivered.
pub(crate) fn completeness(session: &SessionRow, streams: &Streams) -> Completeness {
    let dropped = session.end.as_ref().map_or(session.dropped, |end| end.dropped).total();
    let whole = match &session.end {
        Some(end) => end.produced == session.events.saturating_add(dropped),
        None => streams.is_streaming(session.key),
    };
    Completeness {
        exact: dropped == 0 && session.missing_items == 0 && session.expired_events == 0 && whole,
        events_stored: session.events_stored(),
        events_dropped: dropped,
        events_expired: session.expired_events,
        gaps: session.missing_items,
        items_damaged: 0,
    }
}
