//! The store in one SQLite file: the default, for one daemon on one machine.
//!
//! Guarantees: an append that returned `Ok` survives a crash of the process and the machine (WAL, `synchronous=FULL`:
//! the commit has reached the disk). One connection writes, a few read concurrently; only the writer runs checkpoints.
//! A lock file that names the holder keeps a second process out. After a failed write (such as a full disk) nothing of
//! it is stored and the store continues with a new connection. Only the owner can access its files.
//! Refuses: files of newer versions or other programs, damaged files, and a SQLite library older than 3.51.3.
//! (Over 400 lines: the trait's methods, each a few lines.)

mod access;
mod alert_records;
mod append;
mod connection;
mod expire;
pub(in crate::store) mod fault;
mod lock;
mod ownership;
mod read;
pub(in crate::store) mod read_only;

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::Bytes;
use memctl_model::SessionId;
use memctl_proto::v1::ItemKind;
use sqlx::sqlite::SqlitePool;
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
use connection::Writer;
use lock::LockFile;

/// How a file is opened; the defaults were measured to be good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteOptions {
    /// Page size of a new file. With 16 KiB, 64-KiB payloads are stored 1.4 times as fast as with SQLite's own 4 KiB;
    /// larger pages gain nothing and make every small transaction write more.
    pub page_bytes: u32,
    /// Limit of the file's size; beyond it appends fail with [`StoreError::Full`]. `None`: as large as the disk allows.
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
    /// `None` if read-only.
    lock: Option<LockFile>,
    /// Keeps other processes from writing a file that is read-only here.
    held: Option<File>,
    schema_version: i64,
    path: PathBuf,
    damage: Damage,
}

impl SqliteStore {
    /// Opens or makes the file (and its folder). `holder` is what the error of another process names while it is open.
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
        // Taken before SQLite touches the file: two processes must not both recover or migrate it.
        let lock = LockFile::take(path, &place, holder)?;
        private(path);
        let opened = connection::open(path, &place, &options).await?;
        tracing::debug!(place, sqlite = opened.version, schema = migrations::NEWEST, "store opened");
        Ok(Self {
            place,
            version: opened.version,
            writer: Mutex::new(opened.writer),
            readers: opened.readers,
            lock: Some(lock),
            held: None,
            schema_version: migrations::NEWEST,
            path: path.to_owned(),
            damage: Damage::default(),
        })
    }

    /// Opens a file read-only, even in a read-only folder or while a daemon writes it.
    ///
    /// # Errors
    /// As for [`Self::open`], except [`StoreError::InUse`]; a schema of another version is refused.
    pub async fn open_read_only(path: &Path) -> Result<Self, StoreError> {
        let place = path.display().to_string();
        let source = read_only::source(path, &place).await?;
        read_only::check_current(&place, source.schema_version)?;
        Ok(Self {
            version: "(read only)".into(),
            writer: Mutex::new(Writer::read_only(source.options.clone())),
            readers: connection::read_only_readers(source.options),
            lock: None,
            held: source.held,
            schema_version: source.schema_version,
            path: path.to_owned(),
            damage: Damage::default(),
            place,
        })
    }

    /// Shrinks a file to its content and enables it to shrink by itself; returns the bytes before and after. Needs
    /// about as much free space.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn compact(path: &Path) -> Result<(u64, u64), StoreError> {
        let before = connection::file_bytes(path);
        let store = Self::open(path, "memctl check --compact").await?;
        let vacuumed = store.vacuum().await;
        store.close().await?;
        vacuumed.map(|()| (before, connection::file_bytes(path)))
    }
}

/// Makes the database, its log and its index private to their owner under any umask: SQLite gives the log the
/// database's mode. A failure is logged only; the files may belong to another user who shares them on purpose.
fn private(path: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        let mut file = path.as_os_str().to_owned();
        file.push(suffix);
        let Ok(found) = std::fs::metadata(&file) else { continue };
        let (mode, file) = (found.permissions().mode(), Path::new(&file));
        if mode & 0o077 != 0
            && let Err(error) = std::fs::set_permissions(file, Permissions::from_mode(mode & !0o077))
        {
            tracing::warn!(file = %file.display(), %error, "others can read the store: its file cannot be made private");
        }
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
            schema_version: self.schema_version,
        })
    }

    async fn open(&self, opening: &Opening<'_>) -> Result<OpenedSession, StoreError> {
        let described = super::plan::check_session(opening.info)?;
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin(&self.place).await?;
        let outcome = append::open_session(&mut tx, opening, described).await;
        let outcome = connection::finish(tx, outcome).await;
        let opened = writer.settle(&self.place, "opening a session", outcome)?;
        writer.checkpoint_when_due(&self.place).await;
        Ok(opened)
    }

    async fn append(&self, appends: Vec<Append>) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin(&self.place).await?;
        let outcome = append::append(&mut tx, &self.place, &appends).await;
        let outcome = connection::finish(tx, outcome).await;
        let outcome = writer.settle(&self.place, "storing items", outcome);
        match &outcome {
            Ok(()) => writer.checkpoint_when_due(&self.place).await,
            Err(StoreError::Full { .. }) => writer.checkpoint_for_room(&self.place).await,
            Err(_) => {}
        }
        outcome
    }

    async fn held(&self, tenant: &Tenant, id: SessionId) -> Result<Option<Held>, StoreError> {
        self.told("finding a session", read::held(&self.readers, stored_id(tenant, id)).await)
    }

    async fn jobs_in(&self, scope: &Scope, limit: u32) -> Result<Vec<JobRow>, StoreError> {
        self.told("listing jobs", read::jobs(&self.readers, scope, limit).await)
    }

    async fn job_in(&self, scope: &Scope, which: &Which, attempt: Option<u32>) -> Result<Option<JobRow>, StoreError> {
        self.told("finding a job", read::job(&self.readers, scope, which, attempt).await)
    }

    async fn tenants_of(&self, job: &str) -> Result<Vec<String>, StoreError> {
        self.told("finding a job's tenants", read::tenants_of(&self.readers, job).await)
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
        self.told("reading items", read::items_at(&self.readers, &self.damage, session, seqs).await)
    }

    async fn items_after(
        &self,
        session: SessionKey,
        kind: ItemKind,
        after: u64,
        limit: u32,
    ) -> Result<ItemPage, StoreError> {
        self.told("reading items", read::items_after(&self.readers, &self.damage, session, kind, after, limit).await)
    }

    async fn items(
        &self,
        session: SessionKey,
        kind: ItemKind,
        device: Option<u8>,
        selection: Selection,
    ) -> Result<Vec<ItemRow>, StoreError> {
        self.told("reading items", read::items(&self.readers, &self.damage, session, kind, device, selection).await)
    }

    async fn keyframe_before(
        &self,
        session: SessionKey,
        device: u8,
        event: u64,
    ) -> Result<Option<ItemRow>, StoreError> {
        self.told(
            "reading a keyframe",
            read::keyframe_before(&self.readers, &self.damage, session, device, event).await,
        )
    }

    async fn gaps(&self, job: i64) -> Result<Vec<(SessionKey, Gap)>, StoreError> {
        self.told("listing gaps", read::gaps(&self.readers, job).await)
    }

    async fn expire(&self, policy: Retention, now_ns: u64) -> Result<Expired, StoreError> {
        let mut gone = Expired::default();
        if let Some(age_ns) = policy.age_ns {
            self.remove(|tx| Box::pin(expire::heard_too_late(tx, now_ns))).await?;
            let latest_ns =
                self.told("finding what was heard last", read::heard_latest(&self.readers, now_ns).await)?;
            let cutoff_ns = expiry::cutoff(now_ns, latest_ns, age_ns);
            for job in self.told("finding old jobs", read::jobs_unheard(&self.readers, cutoff_ns).await)? {
                gone += self.remove(|tx| Box::pin(expire::job_by_age(tx, job, cutoff_ns))).await?;
            }
        }
        gone += expiry::shrink(self, &policy).await?;
        self.give_room_back().await?;
        Ok(gone)
    }

    async fn delete_job(&self, job: i64) -> Result<Expired, StoreError> {
        self.remove(|tx| Box::pin(expire::job_by_hand(tx, job))).await
    }

    async fn totals_in(&self, scope: &Scope) -> Result<Totals, StoreError> {
        self.told("adding up", read::totals(&self.readers, scope).await)
    }

    async fn watch(&self, session: SessionKey) -> Result<Option<WatchRow>, StoreError> {
        self.told("reading a watch", read::watch(&self.readers, session).await)
    }

    async fn put_watch(&self, session: SessionKey, watch: &WatchRow) -> Result<(), StoreError> {
        let watch = watch.clone();
        self.write("keeping a watch", move |tx| Box::pin(async move { append::put_watch(tx, session, &watch).await }))
            .await
    }

    async fn holders_kept(&self, job: i64) -> Result<Vec<HoldersIndex>, StoreError> {
        let what = "reading answers about holders";
        self.told(what, read::holders_kept(&self.readers, job).await)
    }

    async fn holders(&self, job: i64, session: SessionKey, asked_ns: u64) -> Result<Option<HoldersRow>, StoreError> {
        let row = read::holders(&self.readers, job, session, asked_ns).await;
        Ok(self.told("reading an answer about holders", row)?.and_then(|row| self.damage.sound(row)))
    }

    async fn put_holders(&self, row: &HoldersRow) -> Result<(), StoreError> {
        let row = row.clone();
        let what = "keeping an answer about holders";
        self.write(what, move |tx| Box::pin(async move { append::put_holders(tx, &row).await })).await
    }

    async fn kept_bytes(&self) -> Result<Vec<(i64, u64)>, StoreError> {
        Ok(self.spending().await?.into_iter().map(|spending| (spending.job, spending.bytes)).collect())
    }

    async fn heard_latest(&self) -> Result<Option<u64>, StoreError> {
        self.told("finding what was heard last", read::heard_latest(&self.readers, u64::MAX).await)
    }

    async fn size_bytes(&self) -> Result<u64, StoreError> {
        self.open_or_told()?;
        Ok(connection::file_bytes(&self.path))
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
        writer.checkpoint_when_due(&self.place).await;
        Ok(outcomes)
    }

    async fn tokens(&self) -> Result<Vec<TokenRow>, StoreError> {
        self.told("listing tokens", access::tokens(&self.readers).await)
    }

    async fn token(&self, id: u64) -> Result<Option<TokenRow>, StoreError> {
        self.told("finding a token", access::token(&self.readers, id).await)
    }

    async fn add_token(&self, token: &TokenRow) -> Result<bool, StoreError> {
        let token = token.clone();
        self.write("adding a token", move |tx| Box::pin(async move { access::add_token(tx, &token).await })).await
    }

    async fn revoke_token(&self, id: u64, now_ns: u64) -> Result<bool, StoreError> {
        self.write("revoking a token", move |tx| Box::pin(access::revoke_token(tx, id, now_ns))).await
    }

    async fn add_audit(&self, entry: &AuditRow) -> Result<(), StoreError> {
        let entry = entry.clone();
        self.write("writing the audit log", move |tx| Box::pin(async move { access::add_audit(tx, &entry).await }))
            .await
    }

    async fn audit_in(&self, scope: &Scope, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        self.told("reading the audit log", access::audit(&self.readers, scope, limit).await)
    }

    fn damaged(&self) -> Vec<(SessionKey, u64)> {
        self.damage.list()
    }

    async fn close(&self) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        self.readers.close().await;
        writer.close(&self.place).await?;
        if let Some(lock) = &self.lock {
            lock.clear();
        }
        if let Some(held) = &self.held {
            // Writers may proceed; this store reads no more.
            let _ = held.unlock();
        }
        Ok(())
    }
}

#[async_trait]
impl Shrink for SqliteStore {
    async fn spending(&self) -> Result<Vec<Spending>, StoreError> {
        self.told("adding up what jobs keep", read::spending(&self.readers).await)
    }

    async fn take(&self, job: i64, part: Part, excess_bytes: u64) -> Result<Expired, StoreError> {
        // The lock is free between two batches, so that appends can run.
        self.remove(|tx| Box::pin(expire::items(tx, job, part, excess_bytes))).await
    }

    async fn take_watches(&self, job: i64) -> Result<Expired, StoreError> {
        self.remove(|tx| Box::pin(expire::watches(tx, job))).await
    }

    async fn take_holders(&self, job: i64, excess_bytes: u64) -> Result<Expired, StoreError> {
        self.remove(|tx| Box::pin(expire::holders(tx, job, excess_bytes))).await
    }

    async fn take_job(&self, job: i64, heard_ns: u64) -> Result<Expired, StoreError> {
        self.remove(|tx| Box::pin(expire::job_by_age(tx, job, heard_ns.saturating_add(1)))).await
    }
}
