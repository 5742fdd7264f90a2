//! A store in memory: for tests, simulation and trying things out.
//!
//! Guarantees: everything the other stores do except to outlive the process; memory grows with what is stored.
//! Refuses: nothing of its own. Long, because the whole trait is one file here: what the databases do in SQL.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use memctl_model::{DeviceInfo, SessionId, SessionInfo};
use memctl_proto::v1::ItemKind;

use super::alert_records::{self, AlertKind, AlertPut, AlertRecord, AlertSelection, PutOutcome};
use super::expiry::{Candidate, victims};
use super::plan::{SUM_MAX, SessionState, add, plan, sessions_of};
use super::rows::{
    Append, ChunkRow, DeviceRow, DeviceUpdate, EpochEndRow, Expired, Gap, ItemRow, JobRow, NewItem, OpenedSession,
    Retention, Selection, SessionKey, SessionRow, StoreInfo, Totals,
};
use super::{Store, StoreError, wire_form};

const PLACE: &str = "memory:";

/// The store.
#[derive(Default)]
pub struct MemoryStore {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    closed: bool,
    last_key: i64,
    jobs: BTreeMap<i64, Job>,
    sessions: BTreeMap<SessionKey, Session>,
    by_id: BTreeMap<SessionId, SessionKey>,
    /// Events of jobs that expired whole.
    expired_whole: u64,
    alerts: BTreeMap<(AlertKind, u64), AlertRecord>,
}

struct Job {
    name: String,
    attempt: u32,
    started_ns: u64,
    world_size: Option<u32>,
    labels: Vec<(String, String)>,
}

struct Session {
    info: SessionInfo,
    state: SessionState,
    items: BTreeMap<u64, NewItem>,
    gaps: BTreeMap<u64, Gap>,
    devices: BTreeMap<u8, DeviceRow>,
    epoch_ends: BTreeMap<(u8, u32), EpochEndRow>,
}

impl MemoryStore {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn inner(&self) -> Result<MutexGuard<'_, Inner>, StoreError> {
        // Every change is made after everything that can fail, so a poisoned lock guards whole data.
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.closed { Err(StoreError::Closed { place: PLACE.into() }) } else { Ok(inner) }
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn info(&self) -> Result<StoreInfo, StoreError> {
        drop(self.inner()?);
        Ok(StoreInfo {
            kind: "memory",
            version: env!("CARGO_PKG_VERSION").into(),
            place: PLACE.into(),
            schema_version: super::migrations::NEWEST,
        })
    }

    async fn open_session(&self, info: &SessionInfo, now_ns: u64) -> Result<OpenedSession, StoreError> {
        super::plan::check_session(info)?;
        self.inner()?.open_session(info, now_ns.min(SUM_MAX))
    }

    async fn append(&self, appends: Vec<Append>) -> Result<(), StoreError> {
        self.inner()?.append(&appends)
    }

    async fn jobs(&self, limit: u32) -> Result<Vec<JobRow>, StoreError> {
        let inner = self.inner()?;
        let mut rows: Vec<JobRow> = inner.jobs.keys().filter_map(|&key| inner.job_row(key)).collect();
        rows.sort_by_key(|row| std::cmp::Reverse((row.started_ns, row.key)));
        rows.truncate(limit as usize);
        Ok(rows)
    }

    async fn job(&self, name: Option<&str>, attempt: Option<u32>) -> Result<Option<JobRow>, StoreError> {
        let inner = self.inner()?;
        let latest =
            inner.jobs.iter().max_by_key(|(key, job)| (job.started_ns, **key)).map(|(_, job)| job.name.as_str());
        let Some(name) = name.or(latest) else { return Ok(None) };
        let found = inner
            .jobs
            .iter()
            .filter(|(_, job)| job.name == name && attempt.is_none_or(|attempt| job.attempt == attempt))
            .max_by_key(|(_, job)| job.attempt);
        Ok(found.and_then(|(&key, _)| inner.job_row(key)))
    }

    async fn sessions(&self, job: i64) -> Result<Vec<SessionRow>, StoreError> {
        let inner = self.inner()?;
        let mut rows: Vec<SessionRow> = inner
            .sessions_of(job)
            .map(|(key, session)| session.state.clone().into_row(key, session.info.clone()))
            .collect();
        rows.sort_by_key(|row| (row.info.rank, row.info.started_ns, row.key));
        Ok(rows)
    }

    async fn devices(&self, job: i64) -> Result<Vec<DeviceRow>, StoreError> {
        Ok(self.inner()?.sessions_of(job).flat_map(|(_, session)| session.devices.values().cloned()).collect())
    }

    async fn epoch_ends(&self, job: i64) -> Result<Vec<EpochEndRow>, StoreError> {
        let inner = self.inner()?;
        let mut rows: Vec<EpochEndRow> =
            inner.sessions_of(job).flat_map(|(_, session)| session.epoch_ends.values().cloned()).collect();
        rows.sort_by_key(|row| (row.session, row.device, row.time_ns, row.epoch));
        Ok(rows)
    }

    async fn chunks(&self, session: SessionKey, device: u8, selection: Selection) -> Result<Vec<ChunkRow>, StoreError> {
        let inner = self.inner()?;
        let Some(session) = inner.sessions.get(&session) else { return Ok(Vec::new()) };
        Ok(session.items.values().filter_map(|item| chunk_row(item, device, &selection)).collect())
    }

    async fn payloads(&self, session: SessionKey, seqs: &[u64]) -> Result<Vec<(u64, Bytes)>, StoreError> {
        let inner = self.inner()?;
        let Some(session) = inner.sessions.get(&session) else { return Ok(Vec::new()) };
        Ok(seqs.iter().filter_map(|seq| session.items.get(seq).map(|item| (*seq, item.payload.clone()))).collect())
    }

    async fn items_at(&self, session: SessionKey, seqs: &[u64]) -> Result<Vec<ItemRow>, StoreError> {
        let inner = self.inner()?;
        let Some(session) = inner.sessions.get(&session) else { return Ok(Vec::new()) };
        let found = seqs.iter().filter_map(|seq| session.items.get(seq));
        Ok(found.filter(|item| !item.is_chunk()).map(item_row).collect())
    }

    async fn items_after(
        &self,
        session: SessionKey,
        kind: ItemKind,
        after: u64,
        limit: u32,
    ) -> Result<Vec<ItemRow>, StoreError> {
        let inner = self.inner()?;
        let Some(session) = inner.sessions.get(&session) else { return Ok(Vec::new()) };
        let later = session.items.range((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded));
        let wanted = later.map(|(_, item)| item).filter(|item| item.kind == kind && !item.is_chunk());
        Ok(wanted.take(limit as usize).map(item_row).collect())
    }

    async fn items(
        &self,
        session: SessionKey,
        kind: ItemKind,
        device: Option<u8>,
        selection: Selection,
    ) -> Result<Vec<ItemRow>, StoreError> {
        let inner = self.inner()?;
        let Some(session) = inner.sessions.get(&session) else { return Ok(Vec::new()) };
        let wanted = |item: &&NewItem| {
            item.kind == kind
                && !item.is_chunk()
                && device.is_none_or(|device| item.index.device == Some(device))
                && selection.overlaps(&item.index, false)
        };
        Ok(session.items.values().filter(wanted).map(item_row).collect())
    }

    async fn keyframe_before(
        &self,
        session: SessionKey,
        device: u8,
        event: u64,
    ) -> Result<Option<ItemRow>, StoreError> {
        let inner = self.inner()?;
        let Some(session) = inner.sessions.get(&session) else { return Ok(None) };
        let before = session.keyframes(device).filter(|item| item.index.first_event <= event);
        Ok(before.max_by_key(|item| (item.index.first_event, item.seq)).map(item_row))
    }

    async fn gaps(&self, job: i64) -> Result<Vec<(SessionKey, Gap)>, StoreError> {
        let inner = self.inner()?;
        Ok(inner
            .sessions_of(job)
            .flat_map(|(key, session)| session.gaps.values().map(move |gap| (key, *gap)))
            .collect())
    }

    async fn expire(&self, policy: Retention, now_ns: u64) -> Result<Expired, StoreError> {
        let mut inner = self.inner()?;
        let mut gone = Expired::default();
        if let Some(age_ns) = policy.age_ns {
            for job in inner.jobs_unheard_since(now_ns.saturating_sub(age_ns)) {
                gone += inner.delete_job(job, true);
            }
        }
        if let Some(bytes) = policy.bytes {
            gone += inner.expire_bytes(bytes);
        }
        Ok(gone)
    }

    async fn delete_job(&self, job: i64) -> Result<Expired, StoreError> {
        Ok(self.inner()?.delete_job(job, false))
    }

    async fn totals(&self) -> Result<Totals, StoreError> {
        let inner = self.inner()?;
        let mut totals = Totals {
            jobs: inner.jobs.len() as u64,
            sessions: inner.sessions.len() as u64,
            events: inner.expired_whole,
            expired_events: inner.expired_whole,
            ..Totals::default()
        };
        for Session { state, .. } in inner.sessions.values() {
            for (sum, more) in [
                (&mut totals.events, state.events),
                (&mut totals.stored_bytes, state.stored_bytes),
                (&mut totals.duplicates, state.duplicates),
                (&mut totals.missing_items, state.missing_items),
                (&mut totals.expired_events, state.expired_events),
            ] {
                *sum = sum.saturating_add(more);
            }
        }
        Ok(totals)
    }

    async fn alert_records(&self, selection: AlertSelection<'_>) -> Result<Vec<AlertRecord>, StoreError> {
        let inner = self.inner()?;
        let of_kind = |kind| inner.alerts.values().filter(move |record| record.kind == kind);
        Ok(match selection {
            AlertSelection::All(kind) => of_kind(kind).cloned().collect(),
            AlertSelection::OfJob(job) => {
                of_kind(AlertKind::Alert).filter(|record| record.job == job).cloned().collect()
            }
            AlertSelection::Ids(ids) => {
                ids.iter().filter_map(|id| inner.alerts.get(&(AlertKind::Alert, *id))).cloned().collect()
            }
            AlertSelection::Due { before_ns, limit } => {
                let mut due: Vec<_> =
                    of_kind(AlertKind::Alert).filter(|record| record.due_ns <= before_ns).cloned().collect();
                due.sort_by_key(|record| record.due_ns);
                due.truncate(limit as usize);
                due
            }
        })
    }

    async fn put_alert_records(&self, puts: &[AlertPut]) -> Result<Vec<PutOutcome>, StoreError> {
        alert_records::check(puts)?;
        let mut inner = self.inner()?;
        Ok(puts.iter().map(|put| inner.put_alert(put)).collect())
    }

    async fn close(&self) -> Result<(), StoreError> {
        *self.inner.lock().unwrap_or_else(PoisonError::into_inner) = Inner { closed: true, ..Inner::default() };
        Ok(())
    }
}

impl Inner {
    fn put_alert(&mut self, put: &AlertPut) -> PutOutcome {
        let key = (put.record.kind, put.record.id);
        let found = self.alerts.get(&key).map_or(0, |record| record.version);
        if found != put.expected_version {
            return PutOutcome::Conflict;
        }
        if put.remove {
            self.alerts.remove(&key);
            return PutOutcome::Done;
        }
        if found == 0 && self.alerts.keys().filter(|(kind, _)| *kind == key.0).count() as u64 >= key.0.most() {
            return PutOutcome::Full;
        }
        self.alerts.insert(key, AlertRecord { version: found + 1, ..put.record.clone() });
        PutOutcome::Done
    }

    fn next_key(&mut self) -> i64 {
        self.last_key += 1;
        self.last_key
    }

    fn sessions_of(&self, job: i64) -> impl Iterator<Item = (SessionKey, &Session)> {
        self.sessions.iter().filter(move |(_, session)| session.state.job == job).map(|(key, session)| (*key, session))
    }

    fn job_row(&self, key: i64) -> Option<JobRow> {
        let job = self.jobs.get(&key)?;
        Some(JobRow {
            key,
            name: job.name.clone(),
            attempt: job.attempt,
            started_ns: job.started_ns,
            world_size: job.world_size,
            labels: job.labels.clone(),
            attempts: self.jobs.values().filter(|other| other.name == job.name).count() as u32,
        })
    }

    fn open_session(&mut self, info: &SessionInfo, now_ns: u64) -> Result<OpenedSession, StoreError> {
        if let Some(session) = self.by_id.get(&info.id).and_then(|key| self.sessions.get_mut(key)) {
            session.state.heard_ns = session.state.heard_ns.max(now_ns);
        } else {
            let job = self.open_job(info);
            let key = self.next_key();
            let devices = info.devices.iter().map(|device| (device.index.0, device_row(key, device.clone()))).collect();
            self.by_id.insert(info.id, key);
            self.sessions.insert(
                key,
                Session {
                    info: info.clone(),
                    state: SessionState { job, heard_ns: now_ns, ..SessionState::default() },
                    items: BTreeMap::new(),
                    gaps: BTreeMap::new(),
                    devices,
                    epoch_ends: BTreeMap::new(),
                },
            );
        }
        let opened = self.by_id.get(&info.id).and_then(|key| Some((*key, &self.sessions.get(key)?.state)));
        let (key, state) = opened.ok_or(StoreError::NoSession { place: PLACE.into(), session: 0 })?;
        Ok(OpenedSession { key, job: state.job, durable_seq: state.durable_seq, ended: state.end.is_some() })
    }

    fn open_job(&mut self, info: &SessionInfo) -> i64 {
        let found = self.jobs.iter_mut().find(|(_, job)| job.name == info.job && job.attempt == info.attempt);
        if let Some((key, job)) = found {
            job.started_ns = job.started_ns.min(info.started_ns);
            job.world_size = job.world_size.or(info.world_size);
            if job.labels.is_empty() {
                job.labels.clone_from(&info.labels);
            }
            return *key;
        }
        let key = self.next_key();
        let job = Job {
            name: info.job.clone(),
            attempt: info.attempt,
            started_ns: info.started_ns,
            world_size: info.world_size,
            labels: info.labels.clone(),
        };
        self.jobs.insert(key, job);
        key
    }

    fn append(&mut self, appends: &[Append]) -> Result<(), StoreError> {
        let mut states = BTreeMap::new();
        let mut present = BTreeSet::new();
        for key in sessions_of(appends) {
            let Some(session) = self.sessions.get(&key) else { continue };
            states.insert(key, session.state.clone());
            present
                .extend(session.items.range(session.state.durable_seq.saturating_add(1)..).map(|(seq, _)| (key, *seq)));
        }
        // Nothing below can fail, so nothing is ever half done.
        let plan = plan(PLACE, appends, states, present)?;
        for planned in plan.items {
            if let Some(session) = self.sessions.get_mut(&planned.session) {
                session.items.insert(planned.item.seq, planned.item.clone());
            }
        }
        for (key, gap) in plan.gaps {
            if let Some(session) = self.sessions.get_mut(&key) {
                session.gaps.insert(gap.first, gap);
            }
        }
        for ((key, device), update) in plan.devices {
            if let Some(session) = self.sessions.get_mut(&key) {
                let row =
                    session.devices.entry(device).or_insert_with(|| device_row(key, wire_form::unannounced(device)));
                update_device(row, update);
            }
        }
        for ((key, device, epoch), end) in plan.epoch_ends {
            if let Some(session) = self.sessions.get_mut(&key) {
                session.epoch_ends.insert((device, epoch), EpochEndRow { session: key, ..end.clone() });
            }
        }
        for (key, state) in plan.sessions {
            if let Some(session) = self.sessions.get_mut(&key) {
                session.state = state;
            }
        }
        Ok(())
    }

    fn jobs_unheard_since(&self, cutoff_ns: u64) -> Vec<i64> {
        let heard = |job: i64| self.sessions_of(job).map(|(_, session)| session.state.heard_ns).max();
        self.jobs
            .iter()
            .filter(|(key, job)| heard(**key).unwrap_or(job.started_ns) < cutoff_ns)
            .map(|(key, _)| *key)
            .collect()
    }

    fn delete_job(&mut self, job: i64, by_age: bool) -> Expired {
        let mut gone = Expired::default();
        if self.jobs.remove(&job).is_none() {
            return gone;
        }
        gone.jobs = 1;
        let sessions: Vec<SessionKey> = self.sessions_of(job).map(|(key, _)| key).collect();
        for session in sessions.iter().filter_map(|key| self.sessions.remove(key)) {
            let SessionState { events, expired_events, stored_bytes, .. } = session.state;
            self.by_id.remove(&session.info.id);
            self.expired_whole = add(self.expired_whole, if by_age { events } else { expired_events });
            gone += Expired {
                jobs: 0,
                sessions: 1,
                chunks: session.items.values().filter(|item| item.is_chunk()).count() as u64,
                events: events.saturating_sub(expired_events),
                bytes: stored_bytes,
            };
        }
        gone
    }

    fn expire_bytes(&mut self, limit: u64) -> Expired {
        let mut gone = Expired::default();
        for ended in [true, false] {
            let stored = self.sessions.values().fold(0, |sum, session| add(sum, session.state.stored_bytes));
            let mut candidates: Vec<(u64, Candidate)> = self
                .sessions
                .iter()
                .filter(|(_, session)| session.state.end.is_some() == ended)
                .flat_map(|(key, session)| session.items.values().filter_map(|item| candidate(*key, session, item)))
                .collect();
            candidates.sort_by_key(|(last_ns, candidate)| (*last_ns, candidate.session, candidate.seq));
            let candidates = candidates.into_iter().map(|(_, candidate)| candidate).collect();
            for chunk in victims(candidates, stored.saturating_sub(limit)) {
                if let Some(session) = self.sessions.get_mut(&chunk.session) {
                    gone += session.expire(chunk);
                }
            }
        }
        gone
    }
}

impl Session {
    fn keyframes(&self, device: u8) -> impl Iterator<Item = &NewItem> {
        let is_keyframe = move |item: &&NewItem| item.kind == ItemKind::Keyframe && item.index.device == Some(device);
        self.items.values().filter(is_keyframe)
    }

    /// Removes a chunk and the keyframes that only older events needed.
    fn expire(&mut self, chunk: Candidate) -> Expired {
        let mut gone = Expired { chunks: 1, events: chunk.events, bytes: chunk.bytes, ..Expired::default() };
        self.items.remove(&chunk.seq);
        let chunks = self.items.values().filter(|item| item.is_chunk() && item.index.device == Some(chunk.device));
        let first_event = chunks.map(|item| item.index.first_event).min().unwrap_or(u64::MAX);
        let needed = self
            .keyframes(chunk.device)
            .filter(|item| item.index.first_event <= first_event)
            .map(|item| item.seq)
            .max();
        let idle: Vec<u64> = self
            .keyframes(chunk.device)
            .map(|item| item.seq)
            .filter(|seq| needed.is_some_and(|needed| *seq < needed))
            .collect();
        for seq in idle {
            gone.bytes += self.items.remove(&seq).map_or(0, |item| item.payload.len() as u64);
        }
        self.state.expired_events = add(self.state.expired_events, gone.events);
        self.state.stored_bytes = self.state.stored_bytes.saturating_sub(gone.bytes);
        gone
    }
}

fn candidate(key: SessionKey, session: &Session, item: &NewItem) -> Option<(u64, Candidate)> {
    let device = item.index.device.filter(|_| item.is_chunk())?;
    let (events, bytes) = (item.index.count, item.payload.len() as u64);
    Some((item.index.last_ns, Candidate { job: session.state.job, session: key, device, seq: item.seq, events, bytes }))
}

fn chunk_row(item: &NewItem, device: u8, selection: &Selection) -> Option<ChunkRow> {
    let levels = item.levels.filter(|_| item.index.device == Some(device) && selection.overlaps(&item.index, true))?;
    Some(ChunkRow { seq: item.seq, index: item.index, levels, payload_bytes: item.payload.len() as u64 })
}

fn item_row(item: &NewItem) -> ItemRow {
    let NewItem { seq, kind, payload, unpacked_bytes, index, levels: _ } = item.clone();
    ItemRow { seq, kind: kind as i32, payload, unpacked_bytes, index }
}

fn device_row(session: SessionKey, info: DeviceInfo) -> DeviceRow {
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

fn update_device(row: &mut DeviceRow, update: DeviceUpdate) {
    row.events = add(row.events, update.events);
    row.ooms = add(row.ooms, update.ooms);
    row.epochs = add(row.epochs, update.epochs);
    row.steps = add(row.steps, update.steps);
    row.latest = update.latest.or(row.latest);
    row.device_used_bytes = update.device_used_bytes.or(row.device_used_bytes);
    row.alloc_retries = update.alloc_retries.or(row.alloc_retries);
}
