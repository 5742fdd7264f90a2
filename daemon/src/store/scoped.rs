//! A store restricted to one tenant: it hides the jobs, sums and audit entries of others.
//!
//! Guarantees: lookups by name stay within the scope. Lookups by key are not checked again, because keys come from rows
//! found within the scope, never from outside.
//!
//! Sessions of other tenants cannot be opened.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use memctl_model::SessionId;
use memctl_proto::v1::ItemKind;

use super::alert_records::{AlertPut, AlertRecord, AlertSelection, PutOutcome};
use super::{
    Append, AuditRow, ChunkRow, DeviceRow, EpochEndRow, ExistingSession, Expired, ExpiredJob, Gap, HoldersIndex,
    HoldersRow, ItemPage, ItemRow, JobRow, OpenedSession, Opening, Retention, Scope, Selection, SessionKey, SessionRow,
    Store, StoreError, StoreInfo, Tenant, TokenRow, Totals, WatchRow, Which,
};

/// A restricted view of a store; see the module.
pub struct Scoped {
    store: Arc<dyn Store>,
    scope: Scope,
}

impl Scoped {
    /// Restricts a store to this scope.
    #[must_use]
    pub fn of(store: &Arc<dyn Store>, scope: &Scope) -> Arc<dyn Store> {
        match scope {
            Scope::All => store.clone(),
            Scope::One(_) => Arc::new(Self { store: store.clone(), scope: scope.clone() }),
        }
    }
}

#[async_trait]
impl Store for Scoped {
    async fn info(&self) -> Result<StoreInfo, StoreError> {
        self.store.info().await
    }

    async fn open(&self, opening: &Opening<'_>) -> Result<OpenedSession, StoreError> {
        if self.scope.admits(opening.tenant) { self.store.open(opening).await } else { Err(StoreError::Foreign) }
    }

    async fn held(&self, tenant: &Tenant, id: SessionId) -> Result<Option<ExistingSession>, StoreError> {
        if self.scope.admits(tenant) { self.store.held(tenant, id).await } else { Ok(None) }
    }

    async fn append(&self, appends: Vec<Append>) -> Result<(), StoreError> {
        self.store.append(appends).await
    }

    async fn jobs_in(&self, scope: &Scope, limit: u32) -> Result<Vec<JobRow>, StoreError> {
        self.store.jobs_in(&self.scope.and(scope), limit).await
    }

    async fn jobs_heard(&self, since_ns: u64, limit: u32) -> Result<Vec<JobRow>, StoreError> {
        let mut jobs = self.store.jobs_heard(since_ns, limit).await?;
        jobs.retain(|job| self.scope.admits(&Tenant::stored(&job.tenant)));
        Ok(jobs)
    }

    async fn job_in(&self, scope: &Scope, which: &Which, attempt: Option<u32>) -> Result<Option<JobRow>, StoreError> {
        self.store.job_in(&self.scope.and(scope), which, attempt).await
    }

    async fn tenants_of(&self, job: &str) -> Result<Vec<String>, StoreError> {
        let mut tenants = self.store.tenants_of(job).await?;
        tenants.retain(|tenant| self.scope.admits(&Tenant::stored(tenant)));
        Ok(tenants)
    }

    async fn sessions(&self, job: i64) -> Result<Vec<SessionRow>, StoreError> {
        self.store.sessions(job).await
    }

    async fn devices(&self, job: i64) -> Result<Vec<DeviceRow>, StoreError> {
        self.store.devices(job).await
    }

    async fn epoch_ends(&self, job: i64) -> Result<Vec<EpochEndRow>, StoreError> {
        self.store.epoch_ends(job).await
    }

    async fn chunks(&self, session: SessionKey, device: u8, selection: Selection) -> Result<Vec<ChunkRow>, StoreError> {
        self.store.chunks(session, device, selection).await
    }

    async fn payloads(&self, session: SessionKey, seqs: &[u64]) -> Result<Vec<(u64, Bytes)>, StoreError> {
        self.store.payloads(session, seqs).await
    }

    async fn items_at(&self, session: SessionKey, seqs: &[u64]) -> Result<Vec<ItemRow>, StoreError> {
        self.store.items_at(session, seqs).await
    }

    async fn items_after(
        &self,
        session: SessionKey,
        kind: ItemKind,
        after: u64,
        limit: u32,
    ) -> Result<ItemPage, StoreError> {
        self.store.items_after(session, kind, after, limit).await
    }

    async fn items(
        &self,
        session: SessionKey,
        kind: ItemKind,
        device: Option<u8>,
        selection: Selection,
    ) -> Result<Vec<ItemRow>, StoreError> {
        self.store.items(session, kind, device, selection).await
    }

    async fn keyframe_before(
        &self,
        session: SessionKey,
        device: u8,
        event: u64,
    ) -> Result<Option<ItemRow>, StoreError> {
        self.store.keyframe_before(session, device, event).await
    }

    async fn gaps(&self, job: i64) -> Result<Vec<(SessionKey, Gap)>, StoreError> {
        self.store.gaps(job).await
    }

    async fn expire_jobs(&self, policy: Retention, now_ns: u64) -> (Vec<ExpiredJob>, Result<(), StoreError>) {
        self.store.expire_jobs(policy, now_ns).await
    }

    async fn watch(&self, session: SessionKey) -> Result<Option<WatchRow>, StoreError> {
        self.store.watch(session).await
    }

    async fn put_watch(&self, session: SessionKey, watch: &WatchRow) -> Result<(), StoreError> {
        self.store.put_watch(session, watch).await
    }

    async fn holders_kept(&self, job: i64) -> Result<Vec<HoldersIndex>, StoreError> {
        self.store.holders_kept(job).await
    }

    async fn holders(&self, job: i64, session: SessionKey, asked_ns: u64) -> Result<Option<HoldersRow>, StoreError> {
        self.store.holders(job, session, asked_ns).await
    }

    async fn put_holders(&self, row: &HoldersRow) -> Result<(), StoreError> {
        self.store.put_holders(row).await
    }

    async fn kept_bytes(&self) -> Result<Vec<(i64, u64)>, StoreError> {
        let jobs = self.store.jobs_in(&self.scope, u32::MAX).await?;
        let mine: std::collections::BTreeSet<i64> = jobs.into_iter().map(|job| job.key).collect();
        let mut kept = self.store.kept_bytes().await?;
        kept.retain(|(job, _)| mine.contains(job));
        Ok(kept)
    }

    async fn heard_latest(&self) -> Result<Option<u64>, StoreError> {
        self.store.heard_latest().await
    }

    async fn size_bytes(&self) -> Result<u64, StoreError> {
        self.store.size_bytes().await
    }

    fn damaged(&self) -> Vec<(SessionKey, u64)> {
        self.store.damaged()
    }

    fn note_damaged(&self, session: SessionKey, seq: u64) {
        self.store.note_damaged(session, seq);
    }

    async fn delete_job(&self, job: i64) -> Result<Expired, StoreError> {
        self.store.delete_job(job).await
    }

    async fn totals_in(&self, scope: &Scope) -> Result<Totals, StoreError> {
        self.store.totals_in(&self.scope.and(scope)).await
    }

    async fn alert_records(&self, selection: AlertSelection<'_>) -> Result<Vec<AlertRecord>, StoreError> {
        let mut records = self.store.alert_records(selection).await?;
        records.retain(|record| self.scope.admits(&Tenant::stored(&record.tenant)));
        Ok(records)
    }

    async fn put_alert_records(&self, puts: &[AlertPut]) -> Result<Vec<PutOutcome>, StoreError> {
        self.store.put_alert_records(puts).await
    }

    async fn tokens(&self) -> Result<Vec<TokenRow>, StoreError> {
        let mut tokens = self.store.tokens().await?;
        tokens.retain(|token| self.scope.admits(&Tenant::stored(&token.tenant)));
        Ok(tokens)
    }

    async fn token(&self, id: u64) -> Result<Option<TokenRow>, StoreError> {
        let token = self.store.token(id).await?;
        Ok(token.filter(|token| self.scope.admits(&Tenant::stored(&token.tenant))))
    }

    async fn add_token(&self, token: &TokenRow) -> Result<bool, StoreError> {
        self.store.add_token(token).await
    }

    async fn revoke_token(&self, id: u64, now_ns: u64) -> Result<bool, StoreError> {
        match self.token(id).await? {
            Some(_) => self.store.revoke_token(id, now_ns).await,
            None => Ok(false),
        }
    }

    async fn add_audit(&self, entry: &AuditRow) -> Result<(), StoreError> {
        self.store.add_audit(entry).await
    }

    async fn audit_in(&self, scope: &Scope, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        self.store.audit_in(&self.scope.and(scope), limit).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.store.close().await
    }
}
