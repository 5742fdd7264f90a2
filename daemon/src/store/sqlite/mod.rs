//! The store in one SQLite file: the default, for one daemon on one machine.
//!
//! Guarantees: an append that returned `Ok` survives a crash of process and machine (WAL, `synchronous=FULL`, the
//! commit has reached the disk). One connection writes, a few read beside it; the writer alone checkpoints. Two
//! processes on one file are kept apart by a lock file that says who holds it. After a failed write (disk full, say)
//! nothing of it is there and the store goes on with a fresh connection.
//! Refuses: files of newer versions, of other programs, damaged ones, and a SQLite library older than 3.51.3.

mod alert_records;
mod append;
mod connection;
mod expire;
mod fault;
mod lock;
mod read;

use std::path::Path;

use async_trait::async_trait;
use bytes::Bytes;
use memctl_model::SessionInfo;
use memctl_proto::v1::ItemKind;
use sqlx::sqlite::SqlitePool;
use tokio::sync::Mutex;

use super::alert_records::{AlertPut, AlertRecord, AlertSelection, PutOutcome};
use super::rows::{
    Append, ChunkRow, DeviceRow, EpochEndRow, Expired, Gap, ItemRow, JobRow, OpenedSession, Retention, Selection,
    SessionKey, SessionRow, StoreInfo, Totals,
};
use super::{Store, StoreError, migrations};
use connection::Writer;
use lock::LockFile;

/// How a file is opened; the defaults are what was measured to be good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteOptions {
    /// Page size of a new file. 16 KiB store 64-KiB payloads 1.4 times as fast as SQLite's own 4 KiB; beyond that
    /// nothing is gained, and every small transaction writes more.
    pub page_bytes: u32,
    /// The file grows no larger; beyond it appends answer [`StoreError::Full`]. `None`: as large as the disk allows.
    pub file_bytes_max: Option<u64>,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self { page_bytes: 16_384, file_bytes_max: None }
    }
}

/// The store.
pub struct SqliteStore {
    place: String,
    version: String,
    writer: Mutex<Writer>,
    readers: SqlitePool,
    lock: LockFile,
}

impl SqliteStore {
    /// Opens or makes the file (and its folder). `holder` is what the next one is told that wants it while it is open.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::ReadOnly`], [`StoreError::Newer`], [`StoreError::Full`],
    /// [`StoreError::Damaged`], or [`StoreError::Unreachable`] for everything else, such as a file that is no SQLite
    /// database or another program's.
    pub async fn open(path: &Path, holder: &str) -> Result<Self, StoreError> {
        Self::open_with(path, holder, SqliteOptions::default()).await
    }

    /// Opens or makes the file with options.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_with(path: &Path, holder: &str, options: SqliteOptions) -> Result<Self, StoreError> {
        let place = path.display().to_string();
        // Before SQLite touches the file: two openers must not both recover or migrate it.
        let lock = LockFile::take(path, &place, holder)?;
        let opened = connection::open(path, &place, &options).await?;
        tracing::debug!(place, sqlite = opened.version, schema = migrations::NEWEST, "store opened");
        Ok(Self { place, version: opened.version, writer: Mutex::new(opened.writer), readers: opened.readers, lock })
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn info(&self) -> Result<StoreInfo, StoreError> {
        self.open_or_told()?;
        Ok(StoreInfo {
            kind: "sqlite",
            version: self.version.clone(),
            place: self.place.clone(),
            schema_version: migrations::NEWEST,
        })
    }

    async fn open_session(&self, info: &SessionInfo, now_ns: u64) -> Result<OpenedSession, StoreError> {
        let described = super::plan::check_session(info)?;
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin(&self.place).await?;
        let outcome = append::open_session(&mut tx, info, described, now_ns).await;
        let outcome = connection::finish(tx, outcome).await;
        writer.settle(&self.place, "opening a session", outcome)
    }

    async fn append(&self, appends: Vec<Append>) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin(&self.place).await?;
        let outcome = append::append(&mut tx, &self.place, &appends).await;
        let outcome = connection::finish(tx, outcome).await;
        let outcome = writer.settle(&self.place, "storing items", outcome);
        match &outcome {
            Ok(written_bytes) => writer.checkpoint_when_due(&self.place, *written_bytes).await,
            Err(StoreError::Full { .. }) => writer.checkpoint_for_room(&self.place).await,
            Err(_) => {}
        }
        outcome.map(|_| ())
    }

    async fn jobs(&self, limit: u32) -> Result<Vec<JobRow>, StoreError> {
        self.told("listing jobs", read::jobs(&self.readers, limit).await)
    }

    async fn job(&self, name: Option<&str>, attempt: Option<u32>) -> Result<Option<JobRow>, StoreError> {
        self.told("finding a job", read::job(&self.readers, name, attempt).await)
    }

    async fn sessions(&self, job: i64) -> Result<Vec<SessionRow>, StoreError> {
        self.told("listing sessions", read::sessions(&self.readers, job).await)
    }

    async fn devices(&self, job: i64) -> Result<Vec<DeviceRow>, StoreError> {
        self.told("listing devices", read::devices(&self.readers, job).await)
    }

    async fn epoch_ends(&self, job: i64) -> Result<Vec<EpochEndRow>, StoreError> {
        self.told("listing epoch ends", read::epoch_ends(&self.readers, job).await)
    }

    async fn chunks(&self, session: SessionKey, device: u8, selection: Selection) -> Result<Vec<ChunkRow>, StoreError> {
        self.told("listing chunks", read::chunks(&self.readers, session, device, selection).await)
    }

    async fn payloads(&self, session: SessionKey, seqs: &[u64]) -> Result<Vec<(u64, Bytes)>, StoreError> {
        self.told("reading payloads", read::payloads(&self.readers, session, seqs).await)
    }

    async fn items_at(&self, session: SessionKey, seqs: &[u64]) -> Result<Vec<ItemRow>, StoreError> {
        self.told("reading items", read::items_at(&self.readers, session, seqs).await)
    }

    async fn items_after(
        &self,
        session: SessionKey,
        kind: ItemKind,
        after: u64,
        limit: u32,
    ) -> Result<Vec<ItemRow>, StoreError> {
        self.told("reading items", read::items_after(&self.readers, session, kind, after, limit).await)
    }

    async fn items(
        &self,
        session: SessionKey,
        kind: ItemKind,
        device: Option<u8>,
        selection: Selection,
    ) -> Result<Vec<ItemRow>, StoreError> {
        self.told("reading items", read::items(&self.readers, session, kind, device, selection).await)
    }

    async fn keyframe_before(
        &self,
        session: SessionKey,
        device: u8,
        event: u64,
    ) -> Result<Option<ItemRow>, StoreError> {
        self.told("reading a keyframe", read::keyframe_before(&self.readers, session, device, event).await)
    }

    async fn gaps(&self, job: i64) -> Result<Vec<(SessionKey, Gap)>, StoreError> {
        self.told("listing gaps", read::gaps(&self.readers, job).await)
    }

    async fn expire(&self, policy: Retention, now_ns: u64) -> Result<Expired, StoreError> {
        let mut gone = Expired::default();
        if let Some(age_ns) = policy.age_ns {
            let cutoff_ns = now_ns.saturating_sub(age_ns);
            for job in self.told("finding old jobs", read::jobs_unheard(&self.readers, cutoff_ns).await)? {
                gone += self.remove(|tx| Box::pin(expire::job_by_age(tx, job, cutoff_ns))).await?;
            }
        }
        while let Some(bytes) = policy.bytes {
            // The lock is free between two batches, so that appends get their turn.
            let went = self.remove(|tx| Box::pin(expire::chunks(tx, bytes))).await?;
            if went.chunks == 0 {
                break;
            }
            gone += went;
        }
        Ok(gone)
    }

    async fn delete_job(&self, job: i64) -> Result<Expired, StoreError> {
        self.remove(|tx| Box::pin(expire::job_by_hand(tx, job))).await
    }

    async fn totals(&self) -> Result<Totals, StoreError> {
        self.told("adding up", read::totals(&self.readers).await)
    }

    async fn alert_records(&self, selection: AlertSelection<'_>) -> Result<Vec<AlertRecord>, StoreError> {
        self.told("reading alerts", alert_records::read(&self.readers, selection).await)
    }

    async fn put_alert_records(&self, puts: &[AlertPut]) -> Result<Vec<PutOutcome>, StoreError> {
        super::alert_records::check(puts)?;
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin(&self.place).await?;
        let outcome = alert_records::put(&mut tx, puts).await;
        let outcome = connection::finish(tx, outcome).await;
        let outcomes = writer.settle(&self.place, "storing alerts", outcome)?;
        let written_bytes = puts.iter().map(|put| put.record.body.len() as u64).sum();
        writer.checkpoint_when_due(&self.place, written_bytes).await;
        Ok(outcomes)
    }

    async fn close(&self) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        self.readers.close().await;
        writer.close(&self.place).await?;
        self.lock.clear();
        Ok(())
    }
}
