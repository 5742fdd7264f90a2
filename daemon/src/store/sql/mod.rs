//! The store in a database: one implementation of [`Store`] for SQLite and Postgres.
//!
//! Guarantees: a statement is written once unless the databases differ ([`query`]). Other differences are in two small
//! traits: [`Backend`] (connections, transactions, errors) and [`Batches`] (many rows at once).
//!
//! [`read`] has the queries. [`append`], [`expire`], [`access`] and [`alert_records`] have the changes, each made in
//! the caller's transaction.
//!
//! (Over 400 lines: one trait of many methods, most of them one line.)

mod access;
mod alert_records;
mod append;
mod expire;
pub(in crate::store) mod query;
mod read;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::DerefMut;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use memctl_model::SessionId;
use memctl_proto::v1::ItemKind;
use sqlx::{Database, Transaction};

use super::access_rows::{AuditRow, TokenRow};
use super::alert_records::{AlertPut, AlertRecord, AlertSelection, PutOutcome};
use super::damage::Damage;
use super::expiry::{self, Candidate, Part, Shrink, Spending};
use super::holders::{HoldersIndex, HoldersRow};
use super::losses::{ExpiredJob, Losses};
use super::opening::{ExistingSession, Opening, stored_id};
use super::plan::{self, Plan, SessionState};
use super::row_reader::Fault;
use super::rows::{
    Append, ChunkRow, DeviceRow, EpochEndRow, Expired, Gap, ItemPage, ItemRow, JobRow, OpenedSession, Retention,
    Selection, SessionKey, SessionRow, StoreInfo, Totals, WatchRow,
};
use super::runs::Which;
use super::tenant::{Scope, Tenant};
use super::{Store, StoreError};
use query::SqlConnection;

/// The states of sessions, and the items present above their durable seq, by session and number.
pub(super) type States = (BTreeMap<SessionKey, SessionState>, BTreeSet<(SessionKey, u64)>);

/// Operations on many rows within a transaction. SQLite executes them row by row, Postgres with arrays.
pub(super) trait Batches: SqlConnection {
    /// Locks a job and its sessions against other daemons.
    fn lock_job(&mut self, job: i64) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Locks sessions against other daemons.
    fn lock_sessions(&mut self, keys: Vec<SessionKey>) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Locks sessions and reads their states; missing ones are left out.
    fn states(&mut self, keys: Vec<SessionKey>) -> impl Future<Output = Result<States, Fault>> + Send;

    /// Writes everything that was planned.
    fn write(&mut self, plan: &Plan<'_>) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Deletes items without their payloads; returns those that still existed.
    fn delete(
        &mut self,
        items: Vec<Candidate>,
        part: Part,
    ) -> impl Future<Output = Result<Vec<Candidate>, Fault>> + Send;

    /// Deletes the payloads of items.
    fn delete_payloads(&mut self, items: &[Candidate]) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// The attempts at one transaction.
pub(super) trait Attempts: Send {
    /// The database.
    type Db: Database;

    /// Begins the next attempt.
    fn begin(&mut self) -> impl Future<Output = Result<Transaction<'_, Self::Db>, StoreError>> + Send;

    /// Takes the outcome of an attempt that has ended; `None` if it must be repeated.
    fn ended<T: Send>(
        &mut self,
        outcome: Result<T, Fault>,
    ) -> impl Future<Output = Result<Option<T>, StoreError>> + Send;
}

/// A database with its connections.
pub(super) trait Backend: Send + Sync + 'static {
    /// The database.
    type Db: Database<Connection: Batches>;
    /// A connection to read with.
    type Reader<'b>: DerefMut<Target = <Self::Db as Database>::Connection> + Send;
    /// See [`Attempts`].
    type Attempts<'b>: Attempts<Db = Self::Db>;

    /// See [`Store::patience`].
    const PATIENCE: Duration;

    /// Where it is, without secrets.
    fn place(&self) -> &str;
    /// The damage found while reading.
    fn damage(&self) -> &Damage;
    /// Adds the place and the operation to a fault.
    fn store_error(&self, operation: &'static str, fault: Fault) -> StoreError;
    /// A free connection to read with.
    fn reader(&self) -> impl Future<Output = Result<Self::Reader<'_>, Fault>> + Send;
    /// Prepares a transaction. If the database allows only one writer, this takes the right to write.
    fn attempts(&self, operation: &'static str) -> impl Future<Output = Self::Attempts<'_>> + Send;
    /// See [`Store::info`].
    fn describe(&self) -> impl Future<Output = Result<StoreInfo, StoreError>> + Send;
    /// See [`Store::size_bytes`].
    fn measure(&self) -> impl Future<Output = Result<u64, StoreError>> + Send;
    /// Releases the space of removed data.
    fn release(&self) -> impl Future<Output = Result<(), StoreError>> + Send;
    /// See [`Store::probe`].
    fn reach(&self) -> impl Future<Output = Result<(), StoreError>> + Send;
    /// See [`Store::close`].
    fn end(&self) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Runs a query on a reader's connection.
macro_rules! read {
    ($store:expr, $operation:literal, |$db:ident| $query:expr) => {{
        let outcome = match $store.reader().await {
            Ok(mut reader) => {
                let $db = &mut *reader;
                $query.await
            }
            Err(fault) => Err(fault),
        };
        outcome.map_err(|fault| $store.store_error($operation, fault))
    }};
}

/// Runs a change in a transaction and repeats it as often as the database requires.
macro_rules! change {
    ($store:expr, $operation:literal, |$tx:ident| $change:expr) => {{
        let mut attempts = $store.attempts($operation).await;
        loop {
            let mut transaction = attempts.begin().await?;
            let outcome = {
                let $tx = &mut *transaction;
                $change.await
            };
            let outcome = finish(transaction, outcome).await;
            if let Some(done) = attempts.ended(outcome).await? {
                break Ok(done);
            }
        }
    }};
}

/// Commits after success, rolls back after a failure.
pub(super) async fn finish<T, Db: Database>(tx: Transaction<'_, Db>, outcome: Result<T, Fault>) -> Result<T, Fault> {
    match outcome {
        Ok(done) => {
            tx.commit().await?;
            Ok(done)
        }
        Err(fault) => {
            // After some faults (such as a full disk) SQLite has already rolled back, and this rollback fails. The
            // original fault is reported, and the connection is verified before its next use.
            let _ = tx.rollback().await;
            Err(fault)
        }
    }
}

#[async_trait]
impl<B: Backend> Store for B {
    async fn info(&self) -> Result<StoreInfo, StoreError> {
        self.describe().await
    }

    async fn open(&self, opening: &Opening<'_>) -> Result<OpenedSession, StoreError> {
        let described = plan::check_session(opening.info)?;
        change!(self, "opening a session", |tx| append::open_session(tx, opening, &described))
    }

    async fn append(&self, appends: Vec<Append>) -> Result<(), StoreError> {
        change!(self, "storing items", |tx| append::append(tx, self.place(), &appends))
    }

    async fn held(&self, tenant: &Tenant, id: SessionId) -> Result<Option<ExistingSession>, StoreError> {
        read!(self, "finding a session", |db| read::existing_session(db, stored_id(tenant, id)))
    }

    async fn jobs_in(&self, scope: &Scope, limit: u32) -> Result<Vec<JobRow>, StoreError> {
        read!(self, "listing jobs", |db| read::jobs(db, scope, limit))
    }

    async fn jobs_heard(&self, since_ns: u64, limit: u32) -> Result<Vec<JobRow>, StoreError> {
        read!(self, "listing jobs", |db| read::jobs_heard(db, since_ns, limit))
    }

    async fn job_in(&self, scope: &Scope, which: &Which, attempt: Option<u32>) -> Result<Option<JobRow>, StoreError> {
        read!(self, "finding a job", |db| read::job(db, scope, which, attempt))
    }

    async fn tenants_of(&self, job: &str) -> Result<Vec<String>, StoreError> {
        read!(self, "finding a job's tenants", |db| read::tenants_of(db, job))
    }

    async fn sessions(&self, job: i64) -> Result<Vec<SessionRow>, StoreError> {
        read!(self, "listing sessions", |db| read::sessions(db, job))
    }

    async fn devices(&self, job: i64) -> Result<Vec<DeviceRow>, StoreError> {
        read!(self, "listing devices", |db| read::devices(db, job))
    }

    async fn epoch_ends(&self, job: i64) -> Result<Vec<EpochEndRow>, StoreError> {
        read!(self, "listing epoch ends", |db| read::epoch_ends(db, job))
    }

    async fn chunks(&self, session: SessionKey, device: u8, selection: Selection) -> Result<Vec<ChunkRow>, StoreError> {
        read!(self, "listing chunks", |db| read::chunks(db, session, device, selection))
    }

    async fn payloads(&self, session: SessionKey, seqs: &[u64]) -> Result<Vec<(u64, Bytes)>, StoreError> {
        read!(self, "reading payloads", |db| read::payloads(db, session, seqs))
    }

    async fn items_at(&self, session: SessionKey, seqs: &[u64]) -> Result<Vec<ItemRow>, StoreError> {
        read!(self, "reading items", |db| read::items_at(db, self.damage(), session, seqs))
    }

    async fn items_after(
        &self,
        session: SessionKey,
        kind: ItemKind,
        after: u64,
        limit: u32,
    ) -> Result<ItemPage, StoreError> {
        read!(self, "reading items", |db| read::items_after(db, self.damage(), session, kind, after, limit))
    }

    async fn items(
        &self,
        session: SessionKey,
        kind: ItemKind,
        device: Option<u8>,
        selection: Selection,
    ) -> Result<Vec<ItemRow>, StoreError> {
        read!(self, "reading items", |db| read::items(db, self.damage(), session, kind, device, selection))
    }

    async fn keyframe_before(
        &self,
        session: SessionKey,
        device: u8,
        event: u64,
    ) -> Result<Option<ItemRow>, StoreError> {
        read!(self, "reading a keyframe", |db| read::keyframe_before(db, self.damage(), session, device, event))
    }

    async fn gaps(&self, job: i64) -> Result<Vec<(SessionKey, Gap)>, StoreError> {
        read!(self, "listing gaps", |db| read::gaps(db, job))
    }

    async fn expire_jobs(&self, policy: Retention, now_ns: u64) -> (Vec<ExpiredJob>, Result<(), StoreError>) {
        let mut losses = Losses::default();
        let outcome = async {
            if let Some(age_ns) = policy.age_ns {
                expire_by_age(self, age_ns, now_ns, &mut losses).await?;
            }
            expiry::shrink(self, &policy, &mut losses).await?;
            self.release().await
        };
        let outcome = outcome.await;
        (losses.into_jobs(), outcome)
    }

    async fn delete_job(&self, job: i64) -> Result<Expired, StoreError> {
        change!(self, "deleting a job", |tx| expire::job_by_hand(tx, job))
    }

    async fn totals_in(&self, scope: &Scope) -> Result<Totals, StoreError> {
        read!(self, "adding up", |db| read::totals(db, scope))
    }

    async fn watch(&self, session: SessionKey) -> Result<Option<WatchRow>, StoreError> {
        read!(self, "reading a watch", |db| read::watch(db, session))
    }

    async fn put_watch(&self, session: SessionKey, watch: &WatchRow) -> Result<(), StoreError> {
        change!(self, "keeping a watch", |tx| append::put_watch(tx, session, watch))
    }

    async fn holders_kept(&self, job: i64) -> Result<Vec<HoldersIndex>, StoreError> {
        read!(self, "reading answers about holders", |db| read::holders_kept(db, job))
    }

    async fn holders(&self, job: i64, session: SessionKey, asked_ns: u64) -> Result<Option<HoldersRow>, StoreError> {
        read!(self, "reading an answer about holders", |db| read::holders(db, self.damage(), job, session, asked_ns))
    }

    async fn put_holders(&self, row: &HoldersRow) -> Result<(), StoreError> {
        change!(self, "keeping an answer about holders", |tx| append::put_holders(tx, row))
    }

    async fn kept_bytes(&self) -> Result<Vec<(i64, u64)>, StoreError> {
        Ok(self.spending().await?.into_iter().map(|spending| (spending.job, spending.bytes)).collect())
    }

    async fn heard_latest(&self) -> Result<Option<u64>, StoreError> {
        read!(self, "finding what was heard last", |db| read::heard_latest(db, u64::MAX))
    }

    async fn size_bytes(&self) -> Result<u64, StoreError> {
        self.measure().await
    }

    async fn alert_records(&self, selection: AlertSelection<'_>) -> Result<Vec<AlertRecord>, StoreError> {
        read!(self, "reading alerts", |db| alert_records::read(db, selection))
    }

    async fn put_alert_records(&self, puts: &[AlertPut]) -> Result<Vec<PutOutcome>, StoreError> {
        super::alert_records::check(puts)?;
        change!(self, "storing alerts", |tx| alert_records::put(tx, puts))
    }

    async fn tokens(&self) -> Result<Vec<TokenRow>, StoreError> {
        read!(self, "listing tokens", |db| access::tokens(db))
    }

    async fn token(&self, id: u64) -> Result<Option<TokenRow>, StoreError> {
        read!(self, "finding a token", |db| access::token(db, id))
    }

    async fn add_token(&self, token: &TokenRow) -> Result<bool, StoreError> {
        change!(self, "adding a token", |tx| access::add_token(tx, token))
    }

    async fn revoke_token(&self, id: u64, now_ns: u64) -> Result<bool, StoreError> {
        change!(self, "revoking a token", |tx| access::revoke_token(tx, id, now_ns))
    }

    async fn add_audit(&self, entry: &AuditRow) -> Result<(), StoreError> {
        change!(self, "writing the audit log", |tx| access::add_audit(tx, entry))
    }

    async fn audit_in(&self, scope: &Scope, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        read!(self, "reading the audit log", |db| access::audit(db, scope, limit))
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.reach().await
    }

    fn patience(&self) -> Duration {
        B::PATIENCE
    }

    fn damaged(&self) -> Vec<(SessionKey, u64)> {
        self.damage().list()
    }

    fn note_damaged(&self, session: SessionKey, seq: u64) {
        self.damage().found(session, seq);
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.end().await
    }
}

/// Removes the jobs that were not heard from for longer than `age_ns`.
async fn expire_by_age<B: Backend>(store: &B, age_ns: u64, now_ns: u64, losses: &mut Losses) -> Result<(), StoreError> {
    change!(store, "finding what was heard too late", |tx| expire::heard_too_late(tx, now_ns))?;
    let latest_ns = read!(store, "finding what was heard last", |db| read::heard_latest(db, now_ns))?;
    let cutoff_ns = expiry::cutoff(now_ns, latest_ns, age_ns);
    let old: BTreeSet<i64> =
        read!(store, "finding old jobs", |db| read::jobs_unheard(db, cutoff_ns))?.into_iter().collect();
    if old.is_empty() {
        return Ok(());
    }
    for spending in store.spending().await?.iter().filter(|spending| old.contains(&spending.job)) {
        let gone = change!(store, "expiring a job", |tx| expire::job_by_age(tx, spending.job, cutoff_ns))?;
        losses.add(spending.lost(gone));
    }
    Ok(())
}

#[async_trait]
impl<B: Backend> Shrink for B {
    async fn spending(&self) -> Result<Vec<Spending>, StoreError> {
        read!(self, "adding up what jobs keep", |db| read::spending(db))
    }

    async fn take(&self, job: i64, part: Part, excess_bytes: u64) -> Result<Expired, StoreError> {
        // No lock is held between two batches, so that appends can run.
        change!(self, "expiring items", |tx| expire::items(tx, job, part, excess_bytes))
    }

    async fn take_watches(&self, job: i64) -> Result<Expired, StoreError> {
        change!(self, "removing watches", |tx| expire::watches(tx, job))
    }

    async fn take_holders(&self, job: i64, excess_bytes: u64) -> Result<Expired, StoreError> {
        change!(self, "removing answers about holders", |tx| expire::holders(tx, job, excess_bytes))
    }

    async fn take_job(&self, job: i64, heard_ns: u64) -> Result<Expired, StoreError> {
        change!(self, "expiring a job", |tx| expire::job_by_age(tx, job, heard_ns.saturating_add(1)))
    }
}
