//! The store in Postgres: for many hosts, backups, or an existing database.
//!
//! Guarantees: one transaction per append, committed on the server's disk (`synchronous_commit` is never off).
//! Serialization failures and deadlocks are retried, and only these. Several daemons may use one database: a session's
//! row is locked while it is written, so an item sent to two daemons is stored once and every sum stays correct;
//! concurrent retention removes and counts everything once. A daemon cannot know which sessions stream to another
//! daemon, so an agent connected to two daemons with one session is refused by neither. No advisory locks, no
//! LISTEN/NOTIFY. Everything is in the schema `memctl`. Passwords are never shown.
//! Refuses: servers older than 13 and databases of a newer version.

mod access;
mod alert_records;
mod append;
mod connection;
mod expire;
pub(in crate::store) mod fault;
mod read;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use memctl_model::SessionId;
use memctl_proto::v1::ItemKind;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool};
use tokio::sync::Mutex;

use super::access_rows::{AuditRow, TokenRow};
use super::alert_records::{AlertPut, AlertRecord, AlertSelection, PutOutcome};
use super::damage::Damage;
use super::expiry::{self, Part, Shrink, Spending};
use super::holders::{HoldersIndex, HoldersRow};
use super::opening::{Held, Opening, stored_id};
use super::rows::{
    Append, ChunkRow, DeviceRow, EpochEndRow, Expired, Gap, ItemPage, ItemRow, JobRow, OpenedSession, Retention,
    Selection, SessionKey, SessionRow, StoreInfo, Totals, WatchRow,
};
use super::runs::Which;
use super::tenant::{Scope, Tenant};
use super::{Store, StoreError, migrations};
use connection::Retries;

/// The store.
pub struct PostgresStore {
    place: String,
    version: String,
    pool: PgPool,
    damage: Damage,
    options: PgConnectOptions,
    /// The connection that probes the server.
    probing: Mutex<Option<PgConnection>>,
}

/// A server in the same network answers within milliseconds; together with the pause between probes this is below the
/// two seconds that people wait for a refusal.
const PATIENCE: Duration = Duration::from_millis(1_300);

impl PostgresStore {
    /// Connects and brings the schema up to date.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] if the URL, the server or the login is wrong, [`StoreError::Newer`],
    /// [`StoreError::ReadOnly`] on a standby, [`StoreError::Full`].
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let place = super::secrets::without_secrets(url);
        let connection::Opened { pool, options, version } = connection::open(url, &place).await?;
        tracing::debug!(place, postgres = version, schema = migrations::NEWEST, "store opened");
        Ok(Self { place, version, pool, damage: Damage::default(), options, probing: Mutex::default() })
    }

    /// Connects read-only: every transaction is read-only, and the schema stays as it is.
    ///
    /// # Errors
    /// As for [`Self::open`]; a schema of another version is refused.
    pub async fn open_read_only(url: &str) -> Result<Self, StoreError> {
        let place = super::secrets::without_secrets(url);
        let connection::Opened { pool, options, version } = connection::open_read_only(url, &place).await?;
        Ok(Self { place, version, pool, damage: Damage::default(), options, probing: Mutex::default() })
    }

    /// Where it is, without secrets.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn pool(&self) -> &PgPool {
        &self.pool
    }

    async fn expire_job(&self, job: i64, cutoff_ns: u64) -> Result<Expired, StoreError> {
        let mut retries = Retries::new(self, "expiring a job");
        loop {
            if let Some(went) = retries.done(expire::job_by_age(&self.pool, job, cutoff_ns).await).await? {
                return Ok(went);
            }
        }
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn info(&self) -> Result<StoreInfo, StoreError> {
        if self.pool.is_closed() {
            return Err(StoreError::Closed { place: self.place.clone() });
        }
        Ok(StoreInfo {
            kind: "postgres",
            version: self.version.clone(),
            place: self.place.clone(),
            schema_version: migrations::NEWEST,
        })
    }

    async fn open(&self, opening: &Opening<'_>) -> Result<OpenedSession, StoreError> {
        let described = super::plan::check_session(opening.info)?;
        let mut retries = Retries::new(self, "opening a session");
        loop {
            let outcome = append::open_session(&self.pool, opening, &described).await;
            if let Some(opened) = retries.done(outcome).await?.flatten() {
                return Ok(opened);
            }
        }
    }

    async fn append(&self, appends: Vec<Append>) -> Result<(), StoreError> {
        let mut retries = Retries::new(self, "storing items");
        loop {
            if retries.done(append::append(&self.pool, &self.place, &appends).await).await?.is_some() {
                return Ok(());
            }
        }
    }

    async fn held(&self, tenant: &Tenant, id: SessionId) -> Result<Option<Held>, StoreError> {
        self.told("finding a session", read::held(&self.pool, stored_id(tenant, id)).await)
    }

    async fn jobs_in(&self, scope: &Scope, limit: u32) -> Result<Vec<JobRow>, StoreError> {
        self.told("listing jobs", read::jobs(&self.pool, scope, limit).await)
    }

    async fn job_in(&self, scope: &Scope, which: &Which, attempt: Option<u32>) -> Result<Option<JobRow>, StoreError> {
        self.told("finding a job", read::job(&self.pool, scope, which, attempt).await)
    }

    async fn tenants_of(&self, job: &str) -> Result<Vec<String>, StoreError> {
        self.told("finding a job's tenants", read::tenants_of(&self.pool, job).await)
    }

    async fn sessions(&self, job: i64) -> Result<Vec<SessionRow>, StoreError> {
        self.told("listing sessions", read::sessions(&self.pool, job).await)
    }

    async fn devices(&self, job: i64) -> Result<Vec<DeviceRow>, StoreError> {
        self.told("listing devices", read::devices(&self.pool, job).await)
    }

    async fn epoch_ends(&self, job: i64) -> Result<Vec<EpochEndRow>, StoreError> {
        self.told("listing epoch ends", read::epoch_ends(&self.pool, job).await)
    }

    async fn chunks(&self, session: SessionKey, device: u8, selection: Selection) -> Result<Vec<ChunkRow>, StoreError> {
        self.told("listing chunks", read::chunks(&self.pool, session, device, selection).await)
    }

    async fn payloads(&self, session: SessionKey, seqs: &[u64]) -> Result<Vec<(u64, Bytes)>, StoreError> {
        self.told("reading payloads", read::payloads(&self.pool, session, seqs).await)
    }

    async fn items_at(&self, session: SessionKey, seqs: &[u64]) -> Result<Vec<ItemRow>, StoreError> {
        self.told("reading items", read::items_at(&self.pool, &self.damage, session, seqs).await)
    }

    async fn items_after(
        &self,
        session: SessionKey,
        kind: ItemKind,
        after: u64,
        limit: u32,
    ) -> Result<ItemPage, StoreError> {
        self.told("reading items", read::items_after(&self.pool, &self.damage, session, kind, after, limit).await)
    }

    async fn items(
        &self,
        session: SessionKey,
        kind: ItemKind,
        device: Option<u8>,
        selection: Selection,
    ) -> Result<Vec<ItemRow>, StoreError> {
        self.told("reading items", read::items(&self.pool, &self.damage, session, kind, device, selection).await)
    }

    async fn keyframe_before(
        &self,
        session: SessionKey,
        device: u8,
        event: u64,
    ) -> Result<Option<ItemRow>, StoreError> {
        self.told("reading a keyframe", read::keyframe_before(&self.pool, &self.damage, session, device, event).await)
    }

    async fn gaps(&self, job: i64) -> Result<Vec<(SessionKey, Gap)>, StoreError> {
        self.told("listing gaps", read::gaps(&self.pool, job).await)
    }

    async fn expire(&self, policy: Retention, now_ns: u64) -> Result<Expired, StoreError> {
        let mut gone = Expired::default();
        if let Some(age_ns) = policy.age_ns {
            self.told("finding what was heard too late", expire::heard_too_late(&self.pool, now_ns).await)?;
            let latest_ns = self.told("finding what was heard last", read::heard_latest(&self.pool, now_ns).await)?;
            let cutoff_ns = expiry::cutoff(now_ns, latest_ns, age_ns);
            for job in self.told("finding old jobs", read::jobs_unheard(&self.pool, cutoff_ns).await)? {
                gone += self.expire_job(job, cutoff_ns).await?;
            }
        }
        gone += expiry::shrink(self, &policy).await?;
        Ok(gone)
    }

    async fn delete_job(&self, job: i64) -> Result<Expired, StoreError> {
        let mut retries = Retries::new(self, "deleting a job");
        loop {
            if let Some(gone) = retries.done(expire::job_by_hand(&self.pool, job).await).await? {
                return Ok(gone);
            }
        }
    }

    async fn totals_in(&self, scope: &Scope) -> Result<Totals, StoreError> {
        self.told("adding up", read::totals(&self.pool, scope).await)
    }

    async fn watch(&self, session: SessionKey) -> Result<Option<WatchRow>, StoreError> {
        self.told("reading a watch", read::watch(&self.pool, session).await)
    }

    async fn put_watch(&self, session: SessionKey, watch: &WatchRow) -> Result<(), StoreError> {
        self.told("keeping a watch", append::put_watch(&self.pool, session, watch).await)
    }

    async fn holders_kept(&self, job: i64) -> Result<Vec<HoldersIndex>, StoreError> {
        let what = "reading answers about holders";
        self.told(what, read::holders_kept(&self.pool, job).await)
    }

    async fn holders(&self, job: i64, session: SessionKey, asked_ns: u64) -> Result<Option<HoldersRow>, StoreError> {
        let row = read::holders(&self.pool, job, session, asked_ns).await;
        Ok(self.told("reading an answer about holders", row)?.and_then(|row| self.damage.sound(row)))
    }

    async fn put_holders(&self, row: &HoldersRow) -> Result<(), StoreError> {
        let mut retries = Retries::new(self, "keeping an answer about holders");
        loop {
            if retries.done(append::put_holders(&self.pool, row).await).await?.is_some() {
                return Ok(());
            }
        }
    }

    async fn kept_bytes(&self) -> Result<Vec<(i64, u64)>, StoreError> {
        Ok(self.spending().await?.into_iter().map(|spending| (spending.job, spending.bytes)).collect())
    }

    async fn heard_latest(&self) -> Result<Option<u64>, StoreError> {
        self.told("finding what was heard last", read::heard_latest(&self.pool, u64::MAX).await)
    }

    async fn size_bytes(&self) -> Result<u64, StoreError> {
        self.told("measuring the database", read::size_bytes(&self.pool).await)
    }

    async fn alert_records(&self, selection: AlertSelection<'_>) -> Result<Vec<AlertRecord>, StoreError> {
        self.told("reading alerts", alert_records::read(&self.pool, selection).await)
    }

    async fn put_alert_records(&self, puts: &[AlertPut]) -> Result<Vec<PutOutcome>, StoreError> {
        super::alert_records::check(puts)?;
        let mut retries = Retries::new(self, "storing alerts");
        loop {
            if let Some(outcomes) = retries.done(alert_records::put(&self.pool, puts).await).await? {
                return Ok(outcomes);
            }
        }
    }

    async fn tokens(&self) -> Result<Vec<TokenRow>, StoreError> {
        self.told("listing tokens", access::tokens(&self.pool).await)
    }

    async fn token(&self, id: u64) -> Result<Option<TokenRow>, StoreError> {
        self.told("finding a token", access::token(&self.pool, id).await)
    }

    async fn add_token(&self, token: &TokenRow) -> Result<bool, StoreError> {
        let mut retries = Retries::new(self, "adding a token");
        loop {
            if let Some(added) = retries.done(access::add_token(&self.pool, token).await).await? {
                return Ok(added);
            }
        }
    }

    async fn revoke_token(&self, id: u64, now_ns: u64) -> Result<bool, StoreError> {
        self.told("revoking a token", access::revoke_token(&self.pool, id, now_ns).await)
    }

    async fn add_audit(&self, entry: &AuditRow) -> Result<(), StoreError> {
        self.told("writing the audit log", access::add_audit(&self.pool, entry).await)
    }

    async fn audit_in(&self, scope: &Scope, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        self.told("reading the audit log", access::audit(&self.pool, scope, limit).await)
    }

    async fn probe(&self) -> Result<(), StoreError> {
        let mut kept = self.probing.lock().await;
        self.told("probing", connection::probe(&mut kept, &self.options).await)
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn damaged(&self) -> Vec<(SessionKey, u64)> {
        self.damage.list()
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.pool.close().await;
        // Dropped without a farewell, as if the client had crashed; nothing was under way on it.
        self.probing.lock().await.take();
        Ok(())
    }
}

#[async_trait]
impl Shrink for PostgresStore {
    async fn spending(&self) -> Result<Vec<Spending>, StoreError> {
        self.told("adding up what jobs keep", read::spending(&self.pool).await)
    }

    async fn take(&self, job: i64, part: Part, excess_bytes: u64) -> Result<Expired, StoreError> {
        let mut retries = Retries::new(self, "expiring items");
        loop {
            if let Some(went) = retries.done(expire::items(&self.pool, job, part, excess_bytes).await).await? {
                return Ok(went);
            }
        }
    }

    async fn take_watches(&self, job: i64) -> Result<Expired, StoreError> {
        let mut retries = Retries::new(self, "removing watches");
        loop {
            if let Some(went) = retries.done(expire::watches(&self.pool, job).await).await? {
                return Ok(went);
            }
        }
    }

    async fn take_holders(&self, job: i64, excess_bytes: u64) -> Result<Expired, StoreError> {
        let mut retries = Retries::new(self, "removing answers about holders");
        loop {
            if let Some(went) = retries.done(expire::holders(&self.pool, job, excess_bytes).await).await? {
                return Ok(went);
            }
        }
    }

    async fn take_job(&self, job: i64, heard_ns: u64) -> Result<Expired, StoreError> {
        self.expire_job(job, heard_ns.saturating_add(1)).await
    }
}
