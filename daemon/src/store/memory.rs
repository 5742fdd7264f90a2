//! A store in memory: for tests, simulation and trying things out.
//!
//! Guarantees: it does everything the other stores do except outlive the process. Memory grows with what is stored.
//! (Over 400 lines: the whole trait in one file; the databases do this in SQL.)

mod expire;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use memctl_model::{DeviceInfo, SessionId, SessionInfo};
use memctl_proto::v1::ItemKind;

use super::access_rows::{AUDIT_DONE_MAX, AUDIT_REFUSED_MAX, AuditRow, TOKENS_MAX, TokenRow};
use super::alert_records::{self, AlertKind, AlertPut, AlertRecord, AlertSelection, PutOutcome};
use super::expiry::{self, FUTURE_NS, Kept, Part, Shrink, Spending};
use super::holders::{self, HoldersIndex, HoldersRow};
use super::opening::{Held, Opening, stored_id};
use super::plan::{SUM_MAX, SessionState, add, plan, sessions_of};
use super::rows::{
    Append, ChunkRow, DeviceRow, DeviceUpdate, EpochEndRow, Expired, Gap, ItemPage, ItemRow, JobRow, NewItem,
    OpenedSession, PAGE_BYTES, Retention, Selection, SessionKey, SessionRow, StoreInfo, Totals, WatchRow,
};
use super::runs::{self, Grouped, Launched, Series, Which};
use super::tenant::{Scope, Tenant};
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
    tokens: BTreeMap<u64, TokenRow>,
    audit: Vec<AuditRow>,
    last_audit: i64,
}

struct Job {
    tenant: Tenant,
    name: String,
    attempt: u32,
    started_ns: u64,
    world_size: Option<u32>,
    labels: Vec<(String, String)>,
    run: u32,
    group: String,
    arrived_ns: u64,
}

struct Session {
    info: SessionInfo,
    held: Held,
    state: SessionState,
    items: BTreeMap<u64, NewItem>,
    gaps: BTreeMap<u64, Gap>,
    devices: BTreeMap<u8, DeviceRow>,
    epoch_ends: BTreeMap<(u8, u32), EpochEndRow>,
    watch: Option<WatchRow>,
    holders: BTreeMap<u64, HoldersRow>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn inner(&self) -> Result<MutexGuard<'_, Inner>, StoreError> {
        // Every change follows everything that can fail, so a poisoned lock still guards valid data.
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

    async fn open(&self, opening: &Opening<'_>) -> Result<OpenedSession, StoreError> {
        super::plan::check_session(opening.info)?;
        self.inner()?.open_session(opening)
    }

    async fn held(&self, tenant: &Tenant, id: SessionId) -> Result<Option<Held>, StoreError> {
        let inner = self.inner()?;
        let session = inner.by_id.get(&stored_id(tenant, id)).and_then(|key| inner.sessions.get(key));
        Ok(session.map(Session::held))
    }

    async fn append(&self, appends: Vec<Append>) -> Result<(), StoreError> {
        self.inner()?.append(&appends)
    }

    async fn jobs_in(&self, scope: &Scope, limit: u32) -> Result<Vec<JobRow>, StoreError> {
        let inner = self.inner()?;
        let mut rows: Vec<JobRow> = inner.jobs_in(scope).filter_map(|(&key, _)| inner.job_row(key)).collect();
        rows.sort_by_key(|row| std::cmp::Reverse((row.arrived_ns, row.key)));
        rows.truncate(limit as usize);
        Ok(rows)
    }

    async fn job_in(&self, scope: &Scope, which: &Which, attempt: Option<u32>) -> Result<Option<JobRow>, StoreError> {
        let inner = self.inner()?;
        let latest = inner.jobs_in(scope).max_by_key(|(key, job)| (job.arrived_ns, **key)).map(|(_, job)| job);
        let (name, scope, run) = match (which.name(), latest) {
            (Some(name), _) => (name, scope.clone(), which.run()),
            (None, Some(latest)) => (latest.name.as_str(), Scope::One(latest.tenant.clone()), Some(latest.run)),
            (None, None) => return Ok(None),
        };
        let is_of_launcher = |key: i64| {
            let of_launcher = |session: &Session| session.info.launch.launcher == which.launcher();
            which.launcher().is_none() || inner.sessions_of(key).any(|(_, session)| of_launcher(session))
        };
        let found = inner
            .jobs_in(&scope)
            .filter(|(_, job)| job.name == name && attempt.is_none_or(|attempt| job.attempt == attempt))
            .filter(|(key, job)| run.is_none_or(|run| job.run == run) && is_of_launcher(**key))
            .max_by_key(|(_, job)| (job.run, job.attempt, job.started_ns));
        Ok(found.and_then(|(&key, _)| inner.job_row(key)))
    }

    async fn tenants_of(&self, job: &str) -> Result<Vec<String>, StoreError> {
        let inner = self.inner()?;
        let tenants: BTreeSet<&str> =
            inner.jobs.values().filter(|it| it.name == job).map(|it| it.tenant.name()).collect();
        Ok(tenants.into_iter().take(16).map(str::to_owned).collect())
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
    ) -> Result<ItemPage, StoreError> {
        let inner = self.inner()?;
        let Some(session) = inner.sessions.get(&session) else { return Ok(ItemPage::default()) };
        let later = session.items.range((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded));
        let wanted = later.map(|(_, item)| item).filter(|item| item.kind == kind && !item.is_chunk());
        let (mut items, mut bytes) = (Vec::new(), 0);
        for item in wanted.take(limit as usize) {
            items.push(item_row(item));
            bytes += item.payload.len() as u64;
            if bytes >= PAGE_BYTES {
                break;
            }
        }
        let Some(last) = items.last().map(|item| item.seq) else { return Ok(ItemPage::default()) };
        let rows = items.len();
        Ok(ItemPage::new(items, limit, rows, bytes, last))
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
        let mut gone = Expired::default();
        if let Some(age_ns) = policy.age_ns {
            let mut inner = self.inner()?;
            let latest_ns = inner.heard_latest(now_ns);
            for job in inner.jobs_unheard_since(expiry::cutoff(now_ns, latest_ns, age_ns)) {
                gone += inner.delete_job(job, true);
            }
        }
        gone += expiry::shrink(self, &policy).await?;
        Ok(gone)
    }

    async fn delete_job(&self, job: i64) -> Result<Expired, StoreError> {
        Ok(self.inner()?.delete_job(job, false))
    }

    async fn totals_in(&self, scope: &Scope) -> Result<Totals, StoreError> {
        let inner = self.inner()?;
        let expired_whole = if *scope == Scope::All { inner.expired_whole } else { 0 };
        let jobs: BTreeSet<i64> = inner.jobs_in(scope).map(|(&key, _)| key).collect();
        let mut totals = Totals {
            jobs: jobs.len() as u64,
            events: expired_whole,
            expired_events: expired_whole,
            ..Totals::default()
        };
        for Session { state, .. } in inner.sessions.values().filter(|session| jobs.contains(&session.state.job)) {
            totals.sessions += 1;
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

    async fn watch(&self, session: SessionKey) -> Result<Option<WatchRow>, StoreError> {
        Ok(self.inner()?.sessions.get(&session).and_then(|session| session.watch.clone()))
    }

    async fn put_watch(&self, session: SessionKey, watch: &WatchRow) -> Result<(), StoreError> {
        if let Some(session) = self.inner()?.sessions.get_mut(&session) {
            session.watch = Some(watch.clone());
        }
        Ok(())
    }

    async fn holders_kept(&self, job: i64) -> Result<Vec<HoldersIndex>, StoreError> {
        Ok(self.inner()?.holders_kept(job))
    }

    async fn holders(&self, job: i64, session: SessionKey, asked_ns: u64) -> Result<Option<HoldersRow>, StoreError> {
        let inner = self.inner()?;
        let session = inner.sessions.get(&session).filter(|session| session.state.job == job);
        Ok(session.and_then(|session| session.holders.get(&asked_ns).cloned()))
    }

    async fn put_holders(&self, row: &HoldersRow) -> Result<(), StoreError> {
        let mut inner = self.inner()?;
        let Some(job) = inner.sessions.get(&row.index.session).map(|session| session.state.job) else { return Ok(()) };
        let (asked_ns, gone) = holders::put(&inner.holders_kept(job), row);
        if let Some(session) = inner.sessions.get_mut(&row.index.session) {
            let index = HoldersIndex { asked_ns, bytes: row.answer.len() as u64, ..row.index.clone() };
            session.holders.insert(asked_ns, HoldersRow { index, answer: row.answer.clone() });
        }
        inner.delete_holders(&gone);
        Ok(())
    }

    async fn kept_bytes(&self) -> Result<Vec<(i64, u64)>, StoreError> {
        Ok(self.inner()?.spending().into_iter().map(|spending| (spending.job, spending.bytes)).collect())
    }

    async fn heard_latest(&self) -> Result<Option<u64>, StoreError> {
        Ok(self.inner()?.sessions.values().map(|session| session.state.heard_ns).max())
    }

    async fn size_bytes(&self) -> Result<u64, StoreError> {
        Ok(self.inner()?.spending().iter().fold(0, |sum, spending| add(sum, spending.bytes)))
    }

    async fn alert_records(&self, selection: AlertSelection<'_>) -> Result<Vec<AlertRecord>, StoreError> {
        let inner = self.inner()?;
        let of_kind = |kind| inner.alerts.values().filter(move |record| record.kind == kind);
        Ok(match selection {
            AlertSelection::All(kind) => of_kind(kind).cloned().collect(),
            AlertSelection::OfJob { tenant, job } => {
                let of_job = |record: &&AlertRecord| record.job == job && record.tenant == tenant;
                of_kind(AlertKind::Alert).filter(of_job).cloned().collect()
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

    async fn tokens(&self) -> Result<Vec<TokenRow>, StoreError> {
        let mut tokens: Vec<TokenRow> = self.inner()?.tokens.values().cloned().collect();
        tokens.sort_by(|a, b| (&a.name, a.created_ns, a.id).cmp(&(&b.name, b.created_ns, b.id)));
        Ok(tokens)
    }

    async fn token(&self, id: u64) -> Result<Option<TokenRow>, StoreError> {
        Ok(self.inner()?.tokens.get(&id).cloned())
    }

    async fn add_token(&self, token: &TokenRow) -> Result<bool, StoreError> {
        let mut inner = self.inner()?;
        if inner.tokens.contains_key(&token.id) {
            return Ok(false);
        }
        if inner.tokens.len() as u64 >= TOKENS_MAX {
            let gone = inner.tokens.values().filter(|token| !token.counts(token.created_ns));
            let Some(oldest) = gone.min_by_key(|token| token.created_ns).map(|token| token.id) else {
                return Ok(false);
            };
            inner.tokens.remove(&oldest);
        }
        inner.tokens.insert(token.id, token.clone());
        Ok(true)
    }

    async fn revoke_token(&self, id: u64, now_ns: u64) -> Result<bool, StoreError> {
        let mut inner = self.inner()?;
        let Some(token) = inner.tokens.get_mut(&id).filter(|token| token.revoked_ns.is_none()) else {
            return Ok(false);
        };
        token.revoked_ns = Some(now_ns);
        Ok(true)
    }

    async fn add_audit(&self, entry: &AuditRow) -> Result<(), StoreError> {
        let mut inner = self.inner()?;
        inner.last_audit += 1;
        let id = inner.last_audit;
        inner.audit.push(AuditRow { id, ..entry.clone() });
        let most = if entry.refused { AUDIT_REFUSED_MAX } else { AUDIT_DONE_MAX };
        if inner.audit.iter().filter(|it| it.refused == entry.refused).count() as u64 > most
            && let Some(oldest) = inner.audit.iter().position(|it| it.refused == entry.refused)
        {
            inner.audit.remove(oldest);
        }
        Ok(())
    }

    async fn audit_in(&self, scope: &Scope, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        let inner = self.inner()?;
        let seen = inner.audit.iter().rev().filter(|entry| scope.admits(&Tenant::stored(&entry.tenant)));
        Ok(seen.take(limit as usize).cloned().collect())
    }

    async fn close(&self) -> Result<(), StoreError> {
        *self.inner.lock().unwrap_or_else(PoisonError::into_inner) = Inner { closed: true, ..Inner::default() };
        Ok(())
    }
}

#[async_trait]
impl Shrink for MemoryStore {
    async fn spending(&self) -> Result<Vec<Spending>, StoreError> {
        Ok(self.inner()?.spending())
    }

    async fn take(&self, job: i64, part: Part, excess_bytes: u64) -> Result<Expired, StoreError> {
        Ok(self.inner()?.take(job, part, excess_bytes))
    }

    async fn take_watches(&self, job: i64) -> Result<Expired, StoreError> {
        Ok(self.inner()?.take_watches(job))
    }

    async fn take_holders(&self, job: i64, excess_bytes: u64) -> Result<Expired, StoreError> {
        Ok(self.inner()?.take_holders(job, excess_bytes))
    }

    async fn take_job(&self, job: i64, heard_ns: u64) -> Result<Expired, StoreError> {
        let mut inner = self.inner()?;
        let is_idle = inner.jobs_unheard_since(heard_ns.saturating_add(1)).contains(&job);
        Ok(if is_idle { inner.delete_job(job, true) } else { Expired::default() })
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
        if found == 0 {
            let all = || self.alerts.values().filter(|record| record.kind == key.0);
            let own = all().filter(|record| record.tenant == put.record.tenant).count() as u64;
            if !key.0.has_room(all().count() as u64, own) {
                return PutOutcome::Full;
            }
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

    fn jobs_in(&self, scope: &Scope) -> impl Iterator<Item = (&i64, &Job)> {
        self.jobs.iter().filter(move |(_, job)| scope.admits(&job.tenant))
    }

    fn job_row(&self, key: i64) -> Option<JobRow> {
        let job = self.jobs.get(&key)?;
        let series = || self.jobs.values().filter(|it| (&it.tenant, &it.name) == (&job.tenant, &job.name));
        Some(JobRow {
            key,
            tenant: job.tenant.name().to_owned(),
            name: job.name.clone(),
            attempt: job.attempt,
            started_ns: job.started_ns,
            world_size: job.world_size,
            labels: job.labels.clone(),
            attempts: series().filter(|it| it.run == job.run).count() as u32,
            run: job.run,
            has_other_runs: series().any(|it| it.run != job.run),
            arrived_ns: job.arrived_ns,
        })
    }

    fn open_session(&mut self, opening: &Opening<'_>) -> Result<OpenedSession, StoreError> {
        let Opening { tenant: _, info, owner, secret, now_ns } = opening;
        let (id, now_ns) = (opening.stored_id(), (*now_ns).min(SUM_MAX));
        if let Some(session) = self.by_id.get(&id).and_then(|key| self.sessions.get_mut(key)) {
            if !opening.may_continue(&session.held()) {
                return Err(StoreError::Foreign);
            }
            session.state.heard_ns = session.state.heard_ns.max(now_ns);
        } else {
            let job = self.open_job(opening);
            let key = self.next_key();
            let devices = info.devices.iter().map(|device| (device.index.0, device_row(key, device.clone()))).collect();
            self.by_id.insert(id, key);
            self.sessions.insert(
                key,
                Session {
                    info: (*info).clone(),
                    held: Held {
                        job: info.job.clone(),
                        attempt: info.attempt,
                        rank: info.rank,
                        owner: (*owner).to_owned(),
                        secret: secret.map(|hash| hash.to_vec()),
                        ended: false,
                    },
                    state: SessionState { job, heard_ns: now_ns, ..SessionState::default() },
                    items: BTreeMap::new(),
                    gaps: BTreeMap::new(),
                    watch: None,
                    holders: BTreeMap::new(),
                    devices,
                    epoch_ends: BTreeMap::new(),
                },
            );
        }
        let opened = self.by_id.get(&id).and_then(|key| Some((*key, &self.sessions.get(key)?.state)));
        let (key, state) = opened.ok_or(StoreError::NoSession { place: PLACE.into(), session: 0 })?;
        let run = self.jobs.get(&state.job).map_or(1, |job| job.run);
        Ok(OpenedSession { key, job: state.job, run, durable_seq: state.durable_seq, ended: state.end.is_some() })
    }

    /// What is known of the series of a new session.
    fn series(&self, opening: &Opening<'_>) -> Series {
        let Opening { tenant, info, now_ns, .. } = opening;
        let jobs: Vec<(i64, &Job)> = self
            .jobs
            .iter()
            .filter(|(_, job)| (&job.tenant, &job.name) == (*tenant, &info.job))
            .map(|(key, job)| (*key, job))
            .collect();
        let sessions = |key: i64| self.sessions_of(key).map(|(_, session)| session);
        let of_launcher =
            |session: &Session| info.launch.launcher.is_some() && session.info.launch.launcher == info.launch.launcher;
        let launched = jobs.iter().filter(|(key, _)| sessions(*key).any(of_launcher)).map(|(_, job)| job.run).max();
        let of_run = |run: u32| jobs.iter().copied().filter(move |(_, job)| job.run == run);
        let has_process = |run| {
            let is_it = |session: &Session| of_launcher(session) && runs::is_process(&session.info, info);
            of_run(run).any(|(key, _)| sessions(key).any(is_it))
        };
        let group = jobs.iter().filter(|(_, job)| job.group == runs::group_of(info)).map(|(_, job)| job.run).max();
        let grouped = |run| {
            let own = of_run(run).find(|(_, job)| job.attempt == info.attempt);
            let any = |is_it: &dyn Fn(&Session) -> bool| own.is_some_and(|(key, _)| sessions(key).any(is_it));
            let heard_ns = runs::heard_since_ns(*now_ns);
            Grouped {
                run,
                highest_attempt: of_run(run).map(|(_, job)| job.attempt).max().unwrap_or(0),
                started_ns: own.map(|(_, job)| job.started_ns),
                world_size: own.and_then(|(_, job)| job.world_size),
                is_taken: any(&|session| session.info.rank == info.rank),
                goes_on: any(&|session| session.state.end.is_none() && session.state.heard_ns >= heard_ns),
            }
        };
        Series {
            newest: jobs.iter().map(|(_, job)| job.run).max().unwrap_or(0),
            of_launcher: launched.map(|run| Launched { run, has_process: has_process(run) }),
            of_group: group.map(grouped),
        }
    }

    fn open_job(&mut self, opening: &Opening<'_>) -> i64 {
        let Opening { tenant, info, .. } = opening;
        let (run, _) = self.series(opening).run_of(info);
        let is_it =
            |job: &Job| (&job.tenant, &job.name, job.run, job.attempt) == (*tenant, &info.job, run, info.attempt);
        let found = self.jobs.iter_mut().find(|(_, job)| is_it(job));
        if let Some((key, job)) = found {
            job.started_ns = job.started_ns.min(info.started_ns);
            job.arrived_ns = job.arrived_ns.min(opening.arrived_ns());
            job.world_size = job.world_size.or(info.world_size);
            if job.labels.is_empty() {
                job.labels.clone_from(&info.labels);
            }
            return *key;
        }
        let key = self.next_key();
        let job = Job {
            tenant: (*tenant).clone(),
            name: info.job.clone(),
            attempt: info.attempt,
            started_ns: info.started_ns,
            run,
            group: runs::group_of(info).to_owned(),
            arrived_ns: opening.arrived_ns(),
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
        // Nothing below can fail, so no change is ever partial.
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
        for session_key in sessions {
            let Some(session) = self.sessions.remove(&session_key) else { continue };
            let SessionState { events, expired_events, stored_bytes, .. } = session.state;
            self.by_id.retain(|_, key| *key != session_key);
            self.expired_whole = add(self.expired_whole, if by_age { events } else { expired_events });
            gone += Expired {
                jobs: 0,
                sessions: 1,
                chunks: session.items.values().filter(|item| item.is_chunk()).count() as u64,
                events: events.saturating_sub(expired_events),
                items: session.items.len() as u64,
                bytes: stored_bytes,
            };
        }
        gone
    }

    /// The latest time that anything was heard. Sessions that a wrong clock dated into the future are set to now.
    fn heard_latest(&mut self, now_ns: u64) -> Option<u64> {
        for session in self.sessions.values_mut() {
            if session.state.heard_ns > now_ns.saturating_add(FUTURE_NS) {
                session.state.heard_ns = now_ns.min(SUM_MAX);
            }
        }
        self.sessions.values().map(|session| session.state.heard_ns).filter(|&heard_ns| heard_ns <= now_ns).max()
    }

    fn spending(&self) -> Vec<Spending> {
        let of = |(&job, row): (&i64, &Job)| {
            let mut kept = Kept::default();
            let (mut heard_ns, mut open_heard_ns) = (None, 0);
            for (_, session) in self.sessions_of(job) {
                let state = &session.state;
                kept.payload_bytes = add(kept.payload_bytes, state.stored_bytes);
                kept.items += state.stored_items;
                kept.sessions += 1;
                kept.description_bytes += wire_form::session_info(&session.info).map_or(0, |bytes| bytes.len() as u64);
                kept.watch_bytes += session.watch.as_ref().map_or(0, |watch| watch.state.len() as u64);
                kept.holders_bytes += session.holders.values().map(|row| row.index.bytes).sum::<u64>();
                kept.epoch_ends += session.epoch_ends.len() as u64;
                kept.epoch_end_bytes +=
                    session.epoch_ends.values().map(|end| wire_form::epoch_end(end).len() as u64).sum::<u64>();
                kept.small_rows += (session.devices.len() + session.gaps.len() + session.holders.len()) as u64;
                heard_ns = heard_ns.max(Some(state.heard_ns));
                if state.end.is_none() {
                    open_heard_ns = open_heard_ns.max(state.heard_ns);
                }
            }
            let (tenant, heard_ns) = (row.tenant.to_string(), heard_ns.unwrap_or(row.started_ns));
            Spending { job, tenant, heard_ns, open_heard_ns, bytes: kept.bytes() }
        };
        self.jobs.iter().map(of).collect()
    }

    /// In the order of arrival.
    fn holders_kept(&self, job: i64) -> Vec<HoldersIndex> {
        let rows = self.sessions_of(job).flat_map(|(_, session)| session.holders.values());
        let mut kept: Vec<HoldersIndex> = rows.map(|row| row.index.clone()).collect();
        kept.sort_by_key(|row| (row.asked_ns, row.session));
        kept
    }
}

impl Session {
    fn held(&self) -> Held {
        Held { ended: self.state.end.is_some(), ..self.held.clone() }
    }

    fn keyframes(&self, device: u8) -> impl Iterator<Item = &NewItem> {
        let is_keyframe = move |item: &&NewItem| item.kind == ItemKind::Keyframe && item.index.device == Some(device);
        self.items.values().filter(is_keyframe)
    }
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
