//! The store in one SQLite file (the default, for one daemon on one machine) or in memory (for tests and trials).
//!
//! Guarantees: an append that returned `Ok` survives a crash of the process and the machine (WAL and
//! `synchronous=FULL`: the commit has reached the disk). One connection writes, and a few read concurrently. Only the
//! writer runs checkpoints. A lock file that names the holder keeps a second process out. After a failed write (such as
//! on a full disk) nothing of it is stored, and the store continues with a new connection. Only the owner can access
//! its files.
//!
//! In memory, one connection reads and writes, and the data ends with the process.
//!
//! Refuses: files of newer versions or other programs, damaged files, and a SQLite library older than 3.51.3.

mod batches;
mod connection;
pub(in crate::store) mod fault;
mod lock;
mod ownership;
pub(in crate::store) mod read_only;

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::sqlite::{Sqlite, SqlitePool};
use tokio::sync::{Mutex, MutexGuard};

use super::damage::Damage;
use super::row_reader::Fault;
use super::rows::StoreInfo;
use super::sql::Backend;
use super::{Store as _, StoreError, migrations};
use connection::{OneAttempt, Reader, Writer};
use lock::LockFile;

/// How a file is opened. The defaults are measured optima.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteOptions {
    /// Page size of a new file. With pages of 16 KiB, payloads of 64 KiB are stored 1.4 times as fast as with SQLite's
    /// default of 4 KiB. Larger pages gain nothing and make every small transaction write more.
    pub page_bytes: u32,
    /// Limit of the file's size. Appends beyond it fail with [`StoreError::Full`]. `None`: only the disk limits the
    /// size.
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
    /// `None` in memory, where the writer's connection also reads.
    readers: Option<SqlitePool>,
    /// `None` if read-only.
    lock: Option<LockFile>,
    /// Keeps other processes from writing a file that is read-only here.
    held: Option<File>,
    schema_version: i64,
    /// Empty in memory.
    path: PathBuf,
    damage: Damage,
}

impl SqliteStore {
    /// Opens or creates the file and its folder. Another process that finds the file in use gets `holder` in its error.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::ReadOnly`], [`StoreError::Newer`], [`StoreError::Full`],
    /// [`StoreError::Damaged`], or [`StoreError::Unreachable`] for everything else, such as a file that is no SQLite
    /// database or another program's.
    pub async fn open(path: &Path, holder: &str) -> Result<Self, StoreError> {
        Self::open_with(path, holder, SqliteOptions::default()).await
    }

    /// Opens or creates the file with options.
    ///
    /// # Errors
    /// The same as for [`Self::open`].
    pub async fn open_with(path: &Path, holder: &str, options: SqliteOptions) -> Result<Self, StoreError> {
        let place = path.display().to_string();
        // The lock is taken before SQLite touches the file, so that two processes never recover or migrate it at once.
        let lock = LockFile::take(path, &place, holder)?;
        private(path);
        let opened = connection::open(path, &place, &options).await?;
        tracing::debug!(place, sqlite = opened.version, schema = migrations::NEWEST, "store opened");
        Ok(Self {
            place,
            version: opened.version,
            writer: Mutex::new(opened.writer),
            readers: Some(opened.readers),
            lock: Some(lock),
            held: None,
            schema_version: migrations::NEWEST,
            path: path.to_owned(),
            damage: Damage::default(),
        })
    }

    /// An empty store in memory.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`], if SQLite cannot start a thread.
    pub async fn in_memory() -> Result<Self, StoreError> {
        let place = "memory:".to_owned();
        Ok(Self {
            version: env!("CARGO_PKG_VERSION").into(),
            writer: Mutex::new(connection::open_in_memory(&place).await?),
            readers: None,
            lock: None,
            held: None,
            schema_version: migrations::NEWEST,
            path: PathBuf::new(),
            damage: Damage::default(),
            place,
        })
    }

    /// Opens a file read-only, even in a read-only folder or while a daemon writes it.
    ///
    /// # Errors
    /// The same as for [`Self::open`], except [`StoreError::InUse`]; a schema of another version is refused.
    pub async fn open_read_only(path: &Path) -> Result<Self, StoreError> {
        let place = path.display().to_string();
        let source = read_only::source(path, &place).await?;
        read_only::check_current(&place, source.schema_version)?;
        Ok(Self {
            version: "(read only)".into(),
            writer: Mutex::new(Writer::read_only(source.options.clone())),
            readers: Some(connection::read_only_readers(source.options)),
            lock: None,
            held: source.held,
            schema_version: source.schema_version,
            path: path.to_owned(),
            damage: Damage::default(),
            place,
        })
    }

    /// Shrinks a file to its content and enables it to shrink by itself later. Returns the bytes before and after. This
    /// needs about as much free space as the file has.
    ///
    /// # Errors
    /// The same as for [`Self::open`].
    pub async fn compact(path: &Path) -> Result<(u64, u64), StoreError> {
        let before = connection::file_bytes(path);
        let store = Self::open(path, "memctl check --compact").await?;
        let vacuumed = store.vacuum().await;
        store.close().await?;
        vacuumed.map(|()| (before, connection::file_bytes(path)))
    }
}

/// Makes the database, its log and its index private to their owner under any umask; SQLite gives the log the mode of
/// the database. A failure is only logged, because the files may belong to another user who shares them on purpose.
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

impl Backend for SqliteStore {
    type Db = Sqlite;
    type Reader<'b> = Reader<'b>;
    type Attempts<'b> = OneAttempt<'b>;

    // A local file may be slow only because its disk is busy.
    const PATIENCE: Duration = Duration::from_secs(10);

    fn place(&self) -> &str {
        &self.place
    }

    fn damage(&self) -> &Damage {
        &self.damage
    }

    fn store_error(&self, operation: &'static str, fault: Fault) -> StoreError {
        fault::store_error(&self.place, operation, fault)
    }

    async fn reader(&self) -> Result<Reader<'_>, Fault> {
        match &self.readers {
            Some(readers) => Ok(Reader::Pooled(readers.acquire().await?)),
            None => {
                let mut writer = self.writer.lock().await;
                writer.ready(&self.place).await?;
                let own = MutexGuard::try_map(writer, Writer::connection);
                own.map(Reader::Own).map_err(|_| Fault::Sql(sqlx::Error::PoolClosed))
            }
        }
    }

    async fn attempts(&self, operation: &'static str) -> OneAttempt<'_> {
        OneAttempt { writer: self.writer.lock().await, place: &self.place, operation }
    }

    async fn describe(&self) -> Result<StoreInfo, StoreError> {
        self.ensure_open().await?;
        Ok(StoreInfo {
            kind: if self.readers.is_some() { "sqlite" } else { "memory" },
            version: self.version.clone(),
            place: self.place.clone(),
            schema_version: self.schema_version,
            is_read_only: self.lock.is_none() && self.readers.is_some(),
        })
    }

    async fn measure(&self) -> Result<u64, StoreError> {
        self.ensure_open().await?;
        if self.readers.is_some() {
            return Ok(connection::file_bytes(&self.path));
        }
        Ok(self.kept_bytes().await?.into_iter().fold(0, |sum, (_, bytes)| sum.saturating_add(bytes)))
    }

    async fn release(&self) -> Result<(), StoreError> {
        self.give_room_back().await
    }

    async fn reach(&self) -> Result<(), StoreError> {
        // No job has this key, so this is the cheapest query that uses every layer.
        self.gaps(-1).await.map(|_| ())
    }

    async fn end(&self) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        if let Some(readers) = &self.readers {
            readers.close().await;
        }
        writer.close(&self.place).await?;
        if let Some(lock) = &self.lock {
            lock.clear();
        }
        if let Some(held) = &self.held {
            // This store reads no more, so other processes may write.
            let _ = held.unlock();
        }
        Ok(())
    }
}
