//! The contents of a [`super::RecordingStore`]: jobs, sessions and their items, in ordered maps.
//!
//! Guarantees: `plan` decides what an append changes, as in the databases. A change is applied completely or not at
//! all, because everything that can fail is checked before the first change.

use std::collections::{BTreeMap, BTreeSet};

use memctl_model::{SessionId, SessionInfo};

use crate::store::opening::{ExistingSession, Opening};
use crate::store::plan::{Plan, SUM_MAX, SessionState, add, plan, sessions_of};
use crate::store::rows::{
    Append, ChunkRow, DeviceRow, DeviceUpdate, EpochEndRow, Gap, ItemRow, JobRow, NewItem, OpenedSession, SessionKey,
    SessionRow, WatchRow,
};
use crate::store::runs::{Launched, Series, Which, is_process};
use crate::store::tenant::Scope;
use crate::store::wire_form::unannounced;
use crate::store::{StoreError, StoreInfo};

/// One attempt of a run.
pub(super) struct Job {
    key: i64,
    tenant: String,
    name: String,
    attempt: u32,
    run: u32,
    started_ns: u64,
    arrived_ns: u64,
    world_size: Option<u32>,
    labels: Vec<(String, String)>,
}

/// A session and everything stored of it.
pub(super) struct Session {
    id: SessionId,
    info: SessionInfo,
    owner: String,
    secret: Option<Vec<u8>>,
    pub(super) state: SessionState,
    /// All items by number, chunks among them.
    pub(super) items: BTreeMap<u64, NewItem>,
    pub(super) devices: BTreeMap<u8, DeviceRow>,
    pub(super) epoch_ends: BTreeMap<(u8, u32), EpochEndRow>,
    pub(super) gaps: Vec<Gap>,
    pub(super) watch: Option<WatchRow>,
}

/// Everything; see the module.
#[derive(Default)]
pub(super) struct RecordedData {
    newest: i64,
    jobs: BTreeMap<i64, Job>,
    pub(super) sessions: BTreeMap<SessionKey, Session>,
}

impl RecordedData {
    pub(super) fn info() -> StoreInfo {
        let place = "this process's memory".to_owned();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        StoreInfo { kind: "memory", version, place, schema_version: 0, is_read_only: false }
    }

    fn next_key(&mut self) -> i64 {
        self.newest += 1;
        self.newest
    }

    /// The session that is stored under this id.
    pub(super) fn held(&self, id: SessionId) -> Option<(OpenedSession, ExistingSession)> {
        let (key, session) = self.sessions.iter().find(|(_, session)| session.id == id)?;
        let ended = session.state.end.is_some();
        let SessionInfo { job, attempt, rank, .. } = &session.info;
        let (owner, secret) = (session.owner.clone(), session.secret.clone());
        let held = ExistingSession { job: job.clone(), attempt: *attempt, rank: *rank, owner, secret, ended };
        let SessionState { job, durable_seq, .. } = session.state;
        let run = self.jobs.get(&job).map_or(0, |job| job.run);
        Some((OpenedSession { key: *key, job, run, durable_seq, ended }, held))
    }

    /// Finds or creates job and session.
    pub(super) fn open(&mut self, opening: &Opening<'_>) -> Result<OpenedSession, StoreError> {
        let (id, now_ns) = (opening.stored_id(), opening.now_ns.min(SUM_MAX));
        if let Some((opened, held)) = self.held(id) {
            if !opening.may_continue(&held) {
                return Err(StoreError::Foreign);
            }
            if let Some(session) = self.sessions.get_mut(&opened.key) {
                session.state.heard_ns = session.state.heard_ns.max(now_ns);
            }
            return Ok(opened);
        }
        let (run, _) = self.series(opening).run_of(opening.info);
        let job = self.join(opening, run);
        let key = self.next_key();
        let Opening { info, owner, secret, .. } = opening;
        let device = |info: &memctl_model::DeviceInfo| (info.index.0, device(key, info.clone()));
        let session = Session {
            id,
            info: (*info).clone(),
            owner: (*owner).to_owned(),
            secret: secret.map(|hash| hash.to_vec()),
            state: SessionState { job, heard_ns: now_ns, ..SessionState::default() },
            items: BTreeMap::new(),
            devices: info.devices.iter().map(device).collect(),
            epoch_ends: BTreeMap::new(),
            gaps: Vec::new(),
            watch: None,
        };
        self.sessions.insert(key, session);
        Ok(OpenedSession { key, job, run, durable_seq: 0, ended: false })
    }

    /// The state of the series that a recording belongs to. Recordings have no group.
    fn series(&self, opening: &Opening<'_>) -> Series {
        let (tenant, info) = (opening.tenant.name(), opening.info);
        let of_series = |job: &&Job| job.tenant == tenant && job.name == info.job;
        let newest = self.jobs.values().filter(of_series).map(|job| job.run).max().unwrap_or(0);
        let launched = self
            .sessions
            .values()
            .filter(|session| info.launch.launcher.is_some() && session.info.launch.launcher == info.launch.launcher);
        let launched: Vec<(u32, &SessionInfo)> = launched
            .filter_map(|session| Some((self.jobs.get(&session.state.job).filter(of_series)?.run, &session.info)))
            .collect();
        let of_launcher = launched.iter().map(|(run, _)| *run).max().map(|run| Launched {
            run,
            has_process: launched.iter().any(|(of, known)| *of == run && is_process(known, info)),
        });
        Series { newest, of_launcher, of_group: None }
    }

    /// The key of the job's attempt, which is created if it is missing.
    fn join(&mut self, opening: &Opening<'_>, run: u32) -> i64 {
        let (info, arrived_ns) = (opening.info, opening.arrived_ns());
        let known = self.jobs.values_mut().find(|job| {
            job.tenant == opening.tenant.name()
                && (job.name.as_str(), job.run, job.attempt) == (info.job.as_str(), run, info.attempt)
        });
        if let Some(job) = known {
            job.started_ns = job.started_ns.min(info.started_ns);
            job.arrived_ns = job.arrived_ns.min(arrived_ns);
            job.world_size = job.world_size.or(info.world_size);
            if job.labels.is_empty() {
                job.labels.clone_from(&info.labels);
            }
            return job.key;
        }
        let key = self.next_key();
        let job = Job {
            key,
            tenant: opening.tenant.name().to_owned(),
            name: info.job.clone(),
            attempt: info.attempt,
            run,
            started_ns: info.started_ns,
            arrived_ns,
            world_size: info.world_size,
            labels: info.labels.clone(),
        };
        self.jobs.insert(key, job);
        key
    }

    /// Stores appends.
    pub(super) fn append(&mut self, appends: &[Append]) -> Result<(), StoreError> {
        let (mut states, mut present) = (BTreeMap::new(), BTreeSet::new());
        for key in sessions_of(appends) {
            let Some(session) = self.sessions.get(&key) else { continue };
            present.extend(session.items.range(session.state.durable_seq + 1..).map(|(seq, _)| (key, *seq)));
            states.insert(key, session.state.clone());
        }
        let Plan { items, gaps, devices, epoch_ends, sessions } = plan(&Self::info().place, appends, states, present)?;
        for (key, state) in sessions {
            if let Some(session) = self.sessions.get_mut(&key) {
                session.state = state;
            }
        }
        for item in items {
            if let Some(session) = self.sessions.get_mut(&item.session) {
                session.items.insert(item.item.seq, item.item.clone());
            }
        }
        for (key, gap) in gaps {
            if let Some(session) = self.sessions.get_mut(&key) {
                session.gaps.push(gap);
                session.gaps.sort_by_key(|gap| gap.first);
            }
        }
        for ((key, index), update) in devices {
            if let Some(session) = self.sessions.get_mut(&key) {
                let row = session.devices.entry(index).or_insert_with(|| device(key, unannounced(index)));
                take(row, update);
            }
        }
        for ((key, device, epoch), end) in epoch_ends {
            if let Some(session) = self.sessions.get_mut(&key) {
                session.epoch_ends.insert((device, epoch), end.clone());
            }
        }
        Ok(())
    }

    fn row(&self, job: &Job) -> JobRow {
        let of_series = |other: &&Job| other.tenant == job.tenant && other.name == job.name;
        let attempts = self.jobs.values().filter(of_series).filter(|other| other.run == job.run).count();
        JobRow {
            key: job.key,
            tenant: job.tenant.clone(),
            name: job.name.clone(),
            attempt: job.attempt,
            started_ns: job.started_ns,
            world_size: job.world_size,
            labels: job.labels.clone(),
            attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
            run: job.run,
            has_other_runs: self.jobs.values().filter(of_series).any(|other| other.run != job.run),
            arrived_ns: job.arrived_ns,
        }
    }

    /// The jobs of a scope, the last arrived first.
    pub(super) fn jobs(&self, scope: &Scope) -> Vec<JobRow> {
        let is_seen = |job: &&Job| scope.name().is_none_or(|tenant| job.tenant == tenant);
        let mut jobs: Vec<JobRow> = self.jobs.values().filter(is_seen).map(|job| self.row(job)).collect();
        jobs.sort_by_key(|job| std::cmp::Reverse((job.arrived_ns, job.key)));
        jobs
    }

    /// One job of a scope.
    pub(super) fn job(&self, scope: &Scope, which: &Which, attempt: Option<u32>) -> Option<JobRow> {
        let jobs = self.jobs(scope);
        let (name, run) = match which.name() {
            Some(name) => (name.to_owned(), which.run()),
            None => jobs.first().map(|job| (job.name.clone(), Some(job.run)))?,
        };
        let has_launched = |job: &JobRow| match which.launcher() {
            None => true,
            launcher => self.sessions_of(job.key).any(|(_, session)| session.info.launch.launcher == launcher),
        };
        let of_name = jobs.into_iter().filter(|job| job.name == name && run.is_none_or(|run| job.run == run));
        let fits = of_name.filter(|job| attempt.is_none_or(|attempt| job.attempt == attempt)).filter(has_launched);
        fits.max_by_key(|job| (job.run, job.attempt, job.started_ns))
    }

    /// The first `most` tenants that have a job of this name.
    pub(super) fn tenants_of(&self, name: &str, most: usize) -> Vec<String> {
        let tenants: BTreeSet<&String> =
            self.jobs.values().filter(|job| job.name == name).map(|job| &job.tenant).collect();
        tenants.into_iter().take(most).cloned().collect()
    }

    pub(super) fn sessions_of(&self, job: i64) -> impl Iterator<Item = (SessionKey, &Session)> {
        self.sessions.iter().filter(move |(_, session)| session.state.job == job).map(|(key, session)| (*key, session))
    }

    /// The sessions of a job, by rank, then by start.
    pub(super) fn rows_of(&self, job: i64) -> Vec<SessionRow> {
        let row = |(key, session): (SessionKey, &Session)| session.state.clone().into_row(key, session.info.clone());
        let mut rows: Vec<SessionRow> = self.sessions_of(job).map(row).collect();
        rows.sort_by_key(|row| (row.info.rank, row.info.started_ns, row.key));
        rows
    }

    /// Removes a job; returns its sessions.
    pub(super) fn remove(&mut self, job: i64) -> Vec<Session> {
        self.jobs.remove(&job);
        let keys: Vec<SessionKey> = self.sessions_of(job).map(|(key, _)| key).collect();
        keys.into_iter().filter_map(|key| self.sessions.remove(&key)).collect()
    }
}

fn device(session: SessionKey, info: memctl_model::DeviceInfo) -> DeviceRow {
    DeviceRow {
        session,
        info,
        events: 0,
        ooms: 0,
        epochs: 0,
        steps: 0,
        latest: None,
        device_used_bytes: None,
        alloc_retries: None,
    }
}

/// Adds the counts of an update, and replaces the latest values.
fn take(row: &mut DeviceRow, update: DeviceUpdate) {
    row.events = add(row.events, update.events);
    row.ooms = add(row.ooms, update.ooms);
    row.epochs = add(row.epochs, update.epochs);
    row.steps = add(row.steps, update.steps);
    row.latest = update.latest.or(row.latest);
    row.device_used_bytes = update.device_used_bytes.or(row.device_used_bytes);
    row.alloc_retries = update.alloc_retries.or(row.alloc_retries);
}

/// An item as it is read; `None` for a chunk.
pub(super) fn item_row(item: &NewItem) -> Option<ItemRow> {
    let NewItem { seq, kind, payload, unpacked_bytes, index, levels } = item;
    let row = || ItemRow {
        seq: *seq,
        kind: *kind as i32,
        payload: payload.clone(),
        unpacked_bytes: *unpacked_bytes,
        index: *index,
    };
    levels.is_none().then(row)
}

/// A chunk as it is listed; `None` for any other item.
pub(super) fn chunk_row(item: &NewItem) -> Option<ChunkRow> {
    let NewItem { seq, payload, index, levels, .. } = item;
    Some(ChunkRow { seq: *seq, index: *index, levels: (*levels)?, payload_bytes: payload.len() as u64 })
}
