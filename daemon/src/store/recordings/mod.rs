//! A store of imported recordings in this process's memory, without a database. The page that runs in a browser reads
//! its recordings from it.
//!
//! Guarantees: the same rows, in the same order, as the databases return for the same appends. An append is stored
//! completely or not at all. Payloads are shared with the readers and not copied.
//! Refuses: sessions of live processes, and everything that only a daemon for several users needs: tokens, the audit
//! log, alerts, retention, and answers about holders.

mod kept;

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use memctl_model::{SessionId, SourceKind};
use memctl_proto::v1::ItemKind;

use super::access_rows::{AuditRow, TokenRow};
use super::alert_records::{AlertPut, AlertRecord, AlertSelection, PutOutcome};
use super::holders::{HoldersIndex, HoldersRow};
use super::losses::ExpiredJob;
use super::opening::{ExistingSession, Opening, stored_id};
use super::rows::{
    Append, ChunkRow, DeviceRow, EpochEndRow, Expired, Gap, ItemPage, ItemRow, JobRow, OpenedSession, PAGE_BYTES,
    Retention, Selection, SessionKey, SessionRow, StoreInfo, Totals, WatchRow,
};
use super::runs::Which;
use super::tenant::{Scope, Tenant};
use super::{Store, StoreError, plan};
use kept::{RecordedData, Session, chunk_row, item_row};

/// Tenants that are listed of one job's name.
const TENANTS_LISTED: usize = 16;

/// A store of recordings; see the module.
#[derive(Default)]
pub struct RecordingStore {
    kept: Mutex<RecordedData>,
}

impl RecordingStore {
    fn lock(&self) -> MutexGuard<'_, RecordedData> {
        // Every change is checked before it begins, so the contents are valid even if the lock is poisoned.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads from one session; nothing if there is no such session.
    fn of<T: Default>(&self, session: SessionKey, read: impl FnOnce(&Session) -> T) -> T {
        self.lock().sessions.get(&session).map(read).unwrap_or_default()
    }
}

fn refused<T>(operation: &'static str) -> Result<T, StoreError> {
    let reason = "it holds recordings only; use a daemon with a database".to_owned();
    Err(StoreError::Failed { place: RecordedData::info().place, operation, reason })
}

#[async_trait]
impl Store for RecordingStore {
    async fn info(&self) -> Result<StoreInfo, StoreError> {
        Ok(RecordedData::info())
    }

    async fn open(&self, opening: &Opening<'_>) -> Result<OpenedSession, StoreError> {
        plan::check_session(opening.info)?;
        match opening.info.source {
            SourceKind::Import => self.lock().open(opening),
            SourceKind::Live => refused("opening a session of a live process"),
        }
    }

    async fn append(&self, appends: Vec<Append>) -> Result<(), StoreError> {
        self.lock().append(&appends)
    }

    async fn held(&self, tenant: &Tenant, id: SessionId) -> Result<Option<ExistingSession>, StoreError> {
        Ok(self.lock().held(stored_id(tenant, id)).map(|(_, held)| held))
    }

    async fn jobs_in(&self, scope: &Scope, limit: u32) -> Result<Vec<JobRow>, StoreError> {
        let mut jobs = self.lock().jobs(scope);
        jobs.truncate(limit as usize);
        Ok(jobs)
    }

    async fn jobs_heard(&self, since_ns: u64, limit: u32) -> Result<Vec<JobRow>, StoreError> {
        let kept = self.lock();
        let heard = |job: &JobRow| kept.sessions_of(job.key).map(|(_, session)| session.state.heard_ns).max();
        let mut jobs: Vec<(u64, JobRow)> =
            kept.jobs(&Scope::All).into_iter().filter_map(|job| Some((heard(&job)?, job))).collect();
        jobs.retain(|(heard_ns, _)| *heard_ns >= since_ns);
        jobs.sort_by_key(|(heard_ns, job)| std::cmp::Reverse((*heard_ns, job.key)));
        Ok(jobs.into_iter().take(limit as usize).map(|(_, job)| job).collect())
    }

    async fn job_in(&self, scope: &Scope, which: &Which, attempt: Option<u32>) -> Result<Option<JobRow>, StoreError> {
        Ok(self.lock().job(scope, which, attempt))
    }

    async fn tenants_of(&self, job: &str) -> Result<Vec<String>, StoreError> {
        Ok(self.lock().tenants_of(job, TENANTS_LISTED))
    }

    async fn sessions(&self, job: i64) -> Result<Vec<SessionRow>, StoreError> {
        Ok(self.lock().rows_of(job))
    }

    async fn devices(&self, job: i64) -> Result<Vec<DeviceRow>, StoreError> {
        let kept = self.lock();
        Ok(kept.sessions_of(job).flat_map(|(_, session)| session.devices.values().cloned()).collect())
    }

    async fn epoch_ends(&self, job: i64) -> Result<Vec<EpochEndRow>, StoreError> {
        let kept = self.lock();
        let mut ends: Vec<EpochEndRow> =
            kept.sessions_of(job).flat_map(|(_, session)| session.epoch_ends.values().cloned()).collect();
        ends.sort_by_key(|end| (end.session, end.device, end.time_ns, end.epoch));
        Ok(ends)
    }

    async fn chunks(&self, session: SessionKey, device: u8, selection: Selection) -> Result<Vec<ChunkRow>, StoreError> {
        let is_selected =
            |chunk: &ChunkRow| chunk.index.device == Some(device) && selection.overlaps(&chunk.index, true);
        Ok(self.of(session, |of| of.items.values().filter_map(chunk_row).filter(is_selected).collect()))
    }

    async fn payloads(&self, session: SessionKey, seqs: &[u64]) -> Result<Vec<(u64, Bytes)>, StoreError> {
        let payload = |of: &Session, seq: u64| Some((seq, of.items.get(&seq)?.payload.clone()));
        Ok(self.of(session, |of| seqs.iter().filter_map(|seq| payload(of, *seq)).collect()))
    }

    async fn items_at(&self, session: SessionKey, seqs: &[u64]) -> Result<Vec<ItemRow>, StoreError> {
        Ok(self.of(session, |of| seqs.iter().filter_map(|seq| item_row(of.items.get(seq)?)).collect()))
    }

    async fn items_after(
        &self,
        session: SessionKey,
        kind: ItemKind,
        after: u64,
        limit: u32,
    ) -> Result<ItemPage, StoreError> {
        let mut bytes = 0;
        let items: Vec<ItemRow> = self.of(session, |of| {
            let later = of.items.range(after.saturating_add(1)..).map(|(_, item)| item);
            let rows = later.filter(|item| item.kind == kind).filter_map(item_row).take(limit as usize);
            rows.take_while(|row| {
                let has_room = bytes < PAGE_BYTES;
                bytes += if has_room { row.payload.len() as u64 } else { 0 };
                has_room
            })
            .collect()
        });
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
        let is_selected = |item: &ItemRow| {
            device.is_none_or(|device| item.index.device == Some(device)) && selection.overlaps(&item.index, false)
        };
        Ok(self.of(session, |of| {
            let of_kind = of.items.values().filter(|item| item.kind == kind);
            of_kind.filter_map(item_row).filter(is_selected).collect()
        }))
    }

    async fn keyframe_before(
        &self,
        session: SessionKey,
        device: u8,
        event: u64,
    ) -> Result<Option<ItemRow>, StoreError> {
        Ok(self.of(session, |of| {
            let keyframes = of.items.values().filter(|item| item.kind == ItemKind::Keyframe);
            let before = keyframes.filter(|item| item.index.device == Some(device) && item.index.first_event <= event);
            before.max_by_key(|item| (item.index.first_event, item.seq)).and_then(item_row)
        }))
    }

    async fn gaps(&self, job: i64) -> Result<Vec<(SessionKey, Gap)>, StoreError> {
        let kept = self.lock();
        Ok(kept.sessions_of(job).flat_map(|(key, session)| session.gaps.iter().map(move |gap| (key, *gap))).collect())
    }

    async fn expire_jobs(&self, _policy: Retention, _now_ns: u64) -> (Vec<ExpiredJob>, Result<(), StoreError>) {
        (Vec::new(), refused("expiring jobs"))
    }

    async fn delete_job(&self, job: i64) -> Result<Expired, StoreError> {
        let mut gone = Expired::default();
        for session in self.lock().remove(job) {
            gone.jobs = 1;
            gone.sessions += 1;
            gone.items += session.state.stored_items;
            gone.bytes += session.state.stored_bytes;
            for chunk in session.items.values().filter_map(chunk_row) {
                gone.chunks += 1;
                gone.events += chunk.index.count;
            }
        }
        Ok(gone)
    }

    async fn totals_in(&self, scope: &Scope) -> Result<Totals, StoreError> {
        let kept = self.lock();
        let jobs = kept.jobs(scope);
        let mut totals = Totals { jobs: jobs.len() as u64, ..Totals::default() };
        for (_, session) in jobs.iter().flat_map(|job| kept.sessions_of(job.key)) {
            totals.sessions += 1;
            totals.events += session.state.events;
            totals.stored_bytes += session.state.stored_bytes;
            totals.duplicates += session.state.duplicates;
            totals.missing_items += session.state.missing_items;
        }
        Ok(totals)
    }

    async fn watch(&self, session: SessionKey) -> Result<Option<WatchRow>, StoreError> {
        Ok(self.of(session, |of| of.watch.clone()))
    }

    async fn put_watch(&self, session: SessionKey, watch: &WatchRow) -> Result<(), StoreError> {
        if let Some(session) = self.lock().sessions.get_mut(&session) {
            session.watch = Some(watch.clone());
        }
        Ok(())
    }

    async fn holders_kept(&self, _job: i64) -> Result<Vec<HoldersIndex>, StoreError> {
        // A recording has no process that could be queried.
        Ok(Vec::new())
    }

    async fn holders(&self, _job: i64, _session: SessionKey, _asked_ns: u64) -> Result<Option<HoldersRow>, StoreError> {
        Ok(None)
    }

    async fn put_holders(&self, _row: &HoldersRow) -> Result<(), StoreError> {
        refused("keeping an answer about holders")
    }

    async fn kept_bytes(&self) -> Result<Vec<(i64, u64)>, StoreError> {
        let kept = self.lock();
        let bytes = |job: i64| kept.sessions_of(job).map(|(_, session)| session.state.stored_bytes).sum();
        Ok(kept.jobs(&Scope::All).into_iter().map(|job| (job.key, bytes(job.key))).collect())
    }

    async fn heard_latest(&self) -> Result<Option<u64>, StoreError> {
        Ok(self.lock().sessions.values().map(|session| session.state.heard_ns).max())
    }

    async fn size_bytes(&self) -> Result<u64, StoreError> {
        Ok(self.totals().await?.stored_bytes)
    }

    async fn alert_records(&self, _selection: AlertSelection<'_>) -> Result<Vec<AlertRecord>, StoreError> {
        Ok(Vec::new())
    }

    async fn put_alert_records(&self, _puts: &[AlertPut]) -> Result<Vec<PutOutcome>, StoreError> {
        refused("storing alerts")
    }

    async fn tokens(&self) -> Result<Vec<TokenRow>, StoreError> {
        Ok(Vec::new())
    }

    async fn token(&self, _id: u64) -> Result<Option<TokenRow>, StoreError> {
        Ok(None)
    }

    async fn add_token(&self, _token: &TokenRow) -> Result<bool, StoreError> {
        refused("adding a token")
    }

    async fn revoke_token(&self, _id: u64, _now_ns: u64) -> Result<bool, StoreError> {
        refused("revoking a token")
    }

    async fn add_audit(&self, _entry: &AuditRow) -> Result<(), StoreError> {
        refused("writing the audit log")
    }

    async fn audit_in(&self, _scope: &Scope, _limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        Ok(Vec::new())
    }

    async fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
