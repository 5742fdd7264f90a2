//! The store in Postgres: for many hosts, backups and a database that is there already.
//!
//! Guarantees: one transaction an append, committed on the server's disk (`synchronous_commit` is never off); what
//! the server wants tried again (serialization failures, deadlocks) is tried again, and only that. Several daemons
//! may use one database: a session's row is locked while it is written, so an item that comes by two ways is stored
//! once and every sum stays right; retention of two daemons at once removes and counts everything once. What one
//! daemon cannot know is which sessions another is streaming just now: an agent that is connected to two daemons with
//! one session is refused by neither. No advisory locks, no LISTEN/NOTIFY. Everything lies in the schema `memctl`.
//! Refuses: servers older than 13, databases of a newer version; and to show a password anywhere.

mod alert_records;
mod append;
mod connection;
mod expire;
mod fault;
mod read;

use async_trait::async_trait;
use bytes::Bytes;
use memctl_model::SessionInfo;
use memctl_proto::v1::ItemKind;
use sqlx::postgres::PgPool;

use super::alert_records::{AlertPut, AlertRecord, AlertSelection, PutOutcome};
use super::rows::{
    Append, ChunkRow, DeviceRow, EpochEndRow, Expired, Gap, ItemRow, JobRow, OpenedSession, Retention, Selection,
    SessionKey, SessionRow, StoreInfo, Totals,
};
use super::{Store, StoreError, migrations};
use connection::Retries;

/// The store.
pub struct PostgresStore {
    place: String,
    version: String,
    pool: PgPool,
}

impl PostgresStore {
    /// Connects and brings the schema up to date.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] when the URL, the server or the login is wrong, [`StoreError::Newer`],
    /// [`StoreError::ReadOnly`] on a standby, [`StoreError::Full`].
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let place = super::secrets::without_secrets(url);
        let (pool, version) = connection::open(url, &place).await?;
        tracing::debug!(place, postgres = version, schema = migrations::NEWEST, "store opened");
        Ok(Self { place, version, pool })
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

    async fn open_session(&self, info: &SessionInfo, now_ns: u64) -> Result<OpenedSession, StoreError> {
        let described = super::plan::check_session(info)?;
        let mut retries = Retries::new(self, "opening a session");
        loop {
            let outcome = append::open_session(&self.pool, info, &described, now_ns).await;
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

    async fn jobs(&self, limit: u32) -> Result<Vec<JobRow>, StoreError> {
        self.told("listing jobs", read::jobs(&self.pool, limit).await)
    }

    async fn job(&self, name: Option<&str>, attempt: Option<u32>) -> Result<Option<JobRow>, StoreError> {
        self.told("finding a job", read::job(&self.pool, name, attempt).await)
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
        self.told("reading items", read::items_at(&self.pool, session, seqs).await)
    }

    async fn items_after(
        &self,
        session: SessionKey,
        kind: ItemKind,
        after: u64,
        limit: u32,
    ) -> Result<Vec<ItemRow>, StoreError> {
        self.told("reading items", read::items_after(&self.pool, session, kind, after, limit).await)
    }

    async fn items(
        &self,
        session: SessionKey,
        kind: ItemKind,
        device: Option<u8>,
        selection: Selection,
    ) -> Result<Vec<ItemRow>, StoreError> {
        self.told("reading items", read::items(&self.pool, session, kind, device, selection).await)
    }

    async fn keyframe_before(
        &self,
        session: SessionKey,
        device: u8,
        event: u64,
    ) -> Result<Option<ItemRow>, StoreError> {
        self.told("reading a keyframe", read::keyframe_before(&self.pool, session, device, event).await)
    }

    async fn gaps(&self, job: i64) -> Result<Vec<(SessionKey, Gap)>, StoreError> {
        self.told("listing gaps", read::gaps(&self.pool, job).await)
    }

    async fn expire(&self, policy: Retention, now_ns: u64) -> Result<Expired, StoreError> {
        let mut gone = Expired::default();
        if let Some(age_ns) = policy.age_ns {
            let cutoff_ns = now_ns.saturating_sub(age_ns);
            for job in self.told("finding old jobs", read::jobs_unheard(&self.pool, cutoff_ns).await)? {
                let mut retries = Retries::new(self, "expiring a job");
                gone += loop {
                    if let Some(went) = retries.done(expire::job_by_age(&self.pool, job, cutoff_ns).await).await? {
                        break went;
                    }
                };
            }
        }
        let mut retries = Retries::new(self, "expiring chunks");
        while let Some(bytes) = policy.bytes {
            match retries.done(expire::chunks(&self.pool, bytes).await).await? {
                Some(went) if went.chunks == 0 => break,
                Some(went) => gone += went,
                None => {}
            }
        }
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

    async fn totals(&self) -> Result<Totals, StoreError> {
        self.told("adding up", read::totals(&self.pool).await)
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

    async fn close(&self) -> Result<(), StoreError> {
        self.pool.close().await;
        Ok(())
    }
}
