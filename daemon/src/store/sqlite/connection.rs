//! Opens the file, and holds the writer with its transactions and checkpoints.
//!
//! Guarantees: a transaction is committed or rolled back. After a failure or a cancelled caller, the writer's
//! connection is verified or replaced before its next use. Only the writer runs checkpoints.
//!
//! (Over 400 lines: the state of the writer's connection is handled in one file.)

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::sqlite::{
    SqliteAutoVacuum, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, Sqlite, Transaction};
use tokio::sync::{MappedMutexGuard, MutexGuard};

use super::fault::{foreign, store_error, store_error_at_open};
use super::ownership::beside;
use super::{SqliteOptions, SqliteStore, StoreError};
use crate::store::migrations;
use crate::store::row_reader::{Cells, Fault};
use crate::store::sql::{Attempts, finish};

/// The first version without the bug of <https://sqlite.org/wal.html#walresetbug>, which corrupts databases.
const SQLITE_MIN: (u32, u32, u32) = (3, 51, 3);
/// Concurrent readers; each has its own thread.
const READERS_MAX: u32 = 4;
/// Timeout for a locked database. There is no other writer, so only the checkpoint of a process that is ending can
/// cause a wait.
pub(super) const BUSY_WAIT: Duration = Duration::from_secs(10);
/// Size of the log at which a checkpoint is due. A larger log slows down reads; a smaller one syncs the file more
/// often.
const CHECKPOINT_BYTES: u64 = 24 << 20;
/// If readers prevent the reuse of the log and it grows to this size, the writer waits for the readers.
const LOG_BYTES_MAX: u64 = 48 << 20;
/// With fewer free pages than this, the file is not shrunk, because the gain is too small.
const FREE_PAGES_MIN: i64 = 16;
/// `memc`, as set by the first migration.
const APPLICATION_ID: i64 = 0x6d65_6d63;

/// The one connection that writes.
pub(super) struct Writer {
    options: SqliteConnectOptions,
    connection: Option<SqliteConnection>,
    /// Whether the last transaction failed or its outcome is unknown.
    unsettled: bool,
    closed: bool,
    kind: Kind,
    page_bytes: u64,
    /// No checkpoint is tried until the log exceeds this size, because readers use the log.
    log_bytes_left_alone: u64,
}

/// Where the writer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    /// A database in memory; its content ends with the connection.
    Memory,
    /// Nothing is written, and there is no connection.
    ReadOnly,
}

/// A connection to read with.
pub(in crate::store) enum Reader<'s> {
    Pooled(PoolConnection<Sqlite>),
    /// The writer's own connection, in memory.
    Own(MappedMutexGuard<'s, SqliteConnection>),
}

impl Deref for Reader<'_> {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        match self {
            Self::Pooled(connection) => connection,
            Self::Own(connection) => connection,
        }
    }
}

impl DerefMut for Reader<'_> {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        match self {
            Self::Pooled(connection) => connection,
            Self::Own(connection) => connection,
        }
    }
}

/// A transaction of the writer. One attempt suffices, because no other process writes.
pub(in crate::store) struct OneAttempt<'s> {
    pub(super) writer: MutexGuard<'s, Writer>,
    pub(super) place: &'s str,
    pub(super) operation: &'static str,
}

impl Attempts for OneAttempt<'_> {
    type Db = Sqlite;

    async fn begin(&mut self) -> Result<Transaction<'_, Sqlite>, StoreError> {
        self.writer.begin(self.place).await
    }

    async fn ended<T: Send>(&mut self, outcome: Result<T, Fault>) -> Result<Option<T>, StoreError> {
        let outcome = self.writer.settle(self.place, self.operation, outcome);
        match &outcome {
            Ok(_) => self.writer.checkpoint_when_due(self.place).await,
            Err(StoreError::Full { .. }) => self.writer.checkpoint_for_room(self.place).await,
            Err(_) => {}
        }
        outcome.map(Some)
    }
}

/// The result of opening.
pub(super) struct Opened {
    pub(super) writer: Writer,
    pub(super) readers: SqlitePool,
    pub(super) version: String,
}

/// Opens the file, applies the migrations and starts the readers.
pub(super) async fn open(path: &Path, place: &str, options: &SqliteOptions) -> Result<Opened, StoreError> {
    let at_open = |fault: Fault| store_error_at_open(place, fault);
    identify(path, place).await.map_err(at_open)?;
    let connect = connect_options(path, options);
    let mut connection = connect.connect().await.map_err(|error| at_open(error.into()))?;
    let version: String = sqlx::query_scalar("SELECT sqlite_version()")
        .fetch_one(&mut connection)
        .await
        .map_err(|error| at_open(error.into()))?;
    check_version(place, &version)?;
    // `run` cannot be used, because its future is not `Send`.
    let migrated = migrations::sqlite().run_direct(None, &mut connection, false).await;
    migrated.map_err(|error| at_open(migrations::fault(place, error)))?;
    let page_bytes: i64 = sqlx::query_scalar("PRAGMA page_size")
        .fetch_one(&mut connection)
        .await
        .map_err(|error| at_open(error.into()))?;
    let readers = SqlitePoolOptions::new()
        .max_connections(READERS_MAX)
        .test_before_acquire(false)
        .connect_lazy_with(reader_options(path));
    let page_bytes = page_bytes.max(0).cast_unsigned();
    let writer = Writer { connection: Some(connection), page_bytes, ..Writer::new(connect, Kind::File) };
    Ok(Opened { writer, readers, version })
}

/// An empty database in memory.
pub(super) async fn open_in_memory(place: &str) -> Result<Writer, StoreError> {
    let options = SqliteConnectOptions::new().foreign_keys(true).disable_statement_logging();
    let mut writer = Writer::new(options, Kind::Memory);
    let connection = writer.ready(place).await?;
    let migrated = migrations::sqlite().run_direct(None, connection, false).await;
    migrated.map_err(|error| store_error_at_open(place, migrations::fault(place, error)))?;
    Ok(writer)
}

/// Disk usage of the database: the file and its log.
pub(super) fn file_bytes(path: &Path) -> u64 {
    [path, &beside(path, "-wal")].iter().filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

fn connect_options(path: &Path, options: &SqliteOptions) -> SqliteConnectOptions {
    let connect = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .page_size(options.page_bytes)
        // A new file can shrink later. An existing file keeps the mode that it was created with.
        .auto_vacuum(SqliteAutoVacuum::Incremental)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(BUSY_WAIT)
        // The writer runs checkpoints itself, after its commits.
        .pragma("wal_autocheckpoint", "0")
        .pragma("journal_size_limit", LOG_BYTES_MAX.to_string())
        // Callers log their own queries, so statements are not logged.
        .disable_statement_logging();
    match options.file_bytes_max {
        Some(bytes) => connect.pragma("max_page_count", (bytes / u64::from(options.page_bytes)).max(1).to_string()),
        None => connect,
    }
}

/// Readers of a file that is opened read-only.
pub(super) fn read_only_readers(options: SqliteConnectOptions) -> SqlitePool {
    SqlitePoolOptions::new().max_connections(READERS_MAX).test_before_acquire(false).connect_lazy_with(options)
}

fn reader_options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .read_only(true)
        .busy_timeout(BUSY_WAIT)
        .pragma("wal_autocheckpoint", "0")
        .disable_statement_logging()
}

fn check_version(place: &str, version: &str) -> Result<(), StoreError> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if found >= SQLITE_MIN {
        return Ok(());
    }
    let reason = format!(
        "this program was built with SQLite {version}, which can damage databases: build it with 3.51.3 or newer"
    );
    Err(StoreError::Unreachable { place: place.into(), reason })
}

/// Checks which program the file belongs to before any setting is changed, so that another program's file stays
/// untouched.
async fn identify(path: &Path, place: &str) -> Result<(), Fault> {
    if !path.exists() {
        return Ok(());
    }
    let looking = SqliteConnectOptions::new().filename(path).busy_timeout(BUSY_WAIT).disable_statement_logging();
    let mut connection = looking.connect().await?;
    let outcome = identified(&mut connection, place).await;
    connection.close().await?;
    outcome
}

pub(super) async fn identified(connection: &mut SqliteConnection, place: &str) -> Result<(), Fault> {
    let tables: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_schema").fetch_one(&mut *connection).await?;
    let id: i64 = sqlx::query_scalar("PRAGMA application_id").fetch_one(&mut *connection).await?;
    if id == APPLICATION_ID {
        let newest = "SELECT coalesce(max(version), 0) FROM memctl_migration";
        let found: i64 = sqlx::query_scalar(newest).fetch_one(connection).await?;
        if found > migrations::NEWEST {
            return Err(StoreError::Newer { place: place.into(), found, known: migrations::NEWEST }.into());
        }
    } else if tables > 0 && !only_the_migrations_table(connection).await? {
        return Err(foreign(place, "it is a SQLite database of another program").into());
    }
    Ok(())
}

/// Whether the file has only the table of migrations. A process that died between creating it and the first migration
/// leaves such a file.
async fn only_the_migrations_table(connection: &mut SqliteConnection) -> Result<bool, Fault> {
    let others = "SELECT count(*) FROM sqlite_schema WHERE tbl_name <> 'memctl_migration'";
    let others: i64 = sqlx::query_scalar(others).fetch_one(connection).await?;
    Ok(others == 0)
}

impl Writer {
    /// A writer that refuses every write.
    pub(super) fn read_only(options: SqliteConnectOptions) -> Self {
        Self::new(options, Kind::ReadOnly)
    }

    fn new(options: SqliteConnectOptions, kind: Kind) -> Self {
        Self {
            options,
            connection: None,
            unsettled: false,
            closed: false,
            kind,
            page_bytes: 0,
            log_bytes_left_alone: 0,
        }
    }

    /// The connection, if there is one.
    pub(super) fn connection(&mut self) -> Option<&mut SqliteConnection> {
        self.connection.as_mut()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Drops the connection after a failure. In memory the connection holds the data, so it is kept; a failed statement
    /// leaves it intact.
    fn discard(&mut self) {
        if self.kind != Kind::Memory {
            self.connection = None;
        }
    }

    /// Begins a transaction that holds the write lock from the start.
    pub(super) async fn begin(&mut self, place: &str) -> Result<Transaction<'_, Sqlite>, StoreError> {
        if self.kind == Kind::ReadOnly && !self.closed {
            return Err(StoreError::ReadOnly {
                place: place.into(),
                reason: "it was opened read-only".into(),
                way_out: "a daemon without --read-only writes it",
            });
        }
        self.ready(place).await?;
        self.unsettled = true;
        let connection = self.connection.as_mut().ok_or_else(|| StoreError::Closed { place: place.into() })?;
        let began = connection.begin_with("BEGIN IMMEDIATE").await;
        began.map_err(|error| store_error(place, "beginning a transaction", error.into()))
    }

    /// Records the outcome of a transaction that [`finish`] has ended; drops the connection after a failure.
    pub(super) fn settle<T>(
        &mut self,
        place: &str,
        operation: &'static str,
        outcome: Result<T, Fault>,
    ) -> Result<T, StoreError> {
        self.unsettled = outcome.is_err();
        outcome.map_err(|fault| {
            if !matches!(fault, Fault::Store(_)) {
                self.discard();
            }
            store_error(place, operation, fault)
        })
    }

    /// Moves the log into the file once the log is large enough. This runs after every transaction, because the log
    /// holds whole pages and a small row may change many pages. A failure does not affect the finished transaction.
    pub(super) async fn checkpoint_when_due(&mut self, place: &str) {
        if let Err(fault) = self.try_checkpoint().await {
            self.discard();
            let error = store_error(place, "a checkpoint", fault);
            tracing::warn!(place, %error, "the log was not moved into the database, it is tried again later");
        }
    }

    async fn try_checkpoint(&mut self) -> Result<(), Fault> {
        let Some(connection) = self.connection.as_mut().filter(|_| self.kind == Kind::File) else { return Ok(()) };
        let bytes = |pages: u64| pages.saturating_mul(self.page_bytes);
        let log = checkpoint(connection, "PRAGMA wal_checkpoint(NOOP)").await?;
        let waiting = bytes(log.pages.saturating_sub(log.moved));
        if waiting < CHECKPOINT_BYTES || bytes(log.pages) < self.log_bytes_left_alone {
            return Ok(());
        }
        let mut log = checkpoint(connection, "PRAGMA wal_checkpoint(PASSIVE)").await?;
        if bytes(log.pages) > LOG_BYTES_MAX {
            // Other readers (such as a backup) may take long, so ingest waits only 500 ms for them.
            sqlx::query("PRAGMA busy_timeout = 500").execute(&mut *connection).await?;
            let outcome = checkpoint(connection, "PRAGMA wal_checkpoint(TRUNCATE)").await;
            let back = format!("PRAGMA busy_timeout = {}", BUSY_WAIT.as_millis());
            sqlx::query(sqlx::AssertSqlSafe(back)).execute(&mut *connection).await?;
            log = outcome?;
        }
        // After a blocked checkpoint, the next attempt waits until the log has grown further.
        self.log_bytes_left_alone = if log.blocked { bytes(log.pages) + CHECKPOINT_BYTES } else { 0 };
        Ok(())
    }

    /// Truncates some free pages at the end of the file. Returns `false` if few pages are free, or if the file was
    /// created by a version without support for truncation.
    async fn give_room_back(&mut self, place: &str) -> Result<bool, StoreError> {
        if self.closed || self.kind != Kind::File {
            return Ok(false);
        }
        let mut connection = self.sound(place).await?;
        let outcome = vacuum_some(&mut connection).await;
        if outcome.is_ok() {
            self.connection = Some(connection);
        }
        let more = outcome.map_err(|fault| store_error(place, "releasing free space", fault))?;
        self.checkpoint_when_due(place).await;
        Ok(more)
    }

    /// Moves the log into the file. Truncated pages leave the file only at a checkpoint.
    async fn checkpoint_now(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        // After a failure all data is still safe in the log.
        let _ = checkpoint(connection, "PRAGMA wal_checkpoint(PASSIVE)").await;
    }

    /// Moves the log into the file after the disk was full, because this frees the log's space.
    pub(super) async fn checkpoint_for_room(&mut self, place: &str) {
        // After a failure all data is still safe in the log. The next append reports the problem.
        let _ = self.moved(place).await;
    }

    /// Moves the whole log into the file and closes it. If the log cannot be moved (the disk is full), the data is safe
    /// in the log.
    pub(super) async fn close(&mut self, place: &str) -> Result<(), StoreError> {
        if let Err(error) = self.moved(place).await {
            tracing::warn!(place, %error, "the log stays beside the database, the next start moves it");
        }
        self.closed = true;
        match self.connection.take() {
            Some(connection) => connection.close().await.map_err(|error| store_error(place, "closing", error.into())),
            None => Ok(()),
        }
    }

    async fn moved(&mut self, place: &str) -> Result<(), StoreError> {
        if self.closed || self.kind != Kind::File {
            return Ok(());
        }
        let mut connection = self.sound(place).await?;
        let outcome = checkpoint(&mut connection, "PRAGMA wal_checkpoint(TRUNCATE)").await;
        if outcome.is_ok() {
            self.connection = Some(connection);
            self.log_bytes_left_alone = 0;
        }
        outcome.map(|_| ()).map_err(|fault| store_error(place, "a checkpoint", fault))
    }

    /// The connection if it is usable, otherwise a new one. It stays in its field, so that it is not lost if the caller
    /// is cancelled.
    pub(super) async fn ready(&mut self, place: &str) -> Result<&mut SqliteConnection, StoreError> {
        if self.closed {
            return Err(StoreError::Closed { place: place.into() });
        }
        if self.unsettled
            && let Some(suspect) = &mut self.connection
            // The last caller may have been cancelled. The ping waits for queued work, and then the state of the
            // connection is known.
            && (suspect.ping().await.is_err() || suspect.is_in_transaction())
        {
            self.discard();
        }
        self.unsettled = false;
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.options.connect().await.map_err(|error| store_error(place, "opening", error.into()))?,
        };
        Ok(self.connection.insert(connection))
    }

    /// Takes out the connection of a file. The caller puts it back after a success.
    async fn sound(&mut self, place: &str) -> Result<SqliteConnection, StoreError> {
        self.ready(place).await?;
        self.connection.take().ok_or_else(|| StoreError::Closed { place: place.into() })
    }
}

/// Truncates a batch of free pages. Some stay free, because releasing pages that are soon needed again costs twice.
async fn vacuum_some(connection: &mut SqliteConnection) -> Result<bool, Fault> {
    let mut ask = async |pragma| sqlx::query_scalar::<_, i64>(pragma).fetch_one(&mut *connection).await;
    let (mode, free, all) =
        (ask("PRAGMA auto_vacuum").await?, ask("PRAGMA freelist_count").await?, ask("PRAGMA page_count").await?);
    // Mode 2 is INCREMENTAL.
    if mode != 2 || free <= FREE_PAGES_MIN.max(all / 16) {
        return Ok(false);
    }
    sqlx::query("PRAGMA incremental_vacuum(256)").fetch_all(connection).await?;
    Ok(true)
}

/// The log after a checkpoint.
struct Log {
    /// Whether readers or another process kept the checkpoint from completing.
    blocked: bool,
    /// Pages in the log.
    pages: u64,
    /// Pages of the log that are also in the file.
    moved: u64,
}

/// Runs a checkpoint.
async fn checkpoint(connection: &mut SqliteConnection, how: &'static str) -> Result<Log, Fault> {
    // SQLite returns -1 if there is no log.
    let row = sqlx::query(how).fetch_one(connection).await?;
    let pages = |column| Ok::<_, Fault>(row.int(column)?.max(0).cast_unsigned());
    Ok(Log { blocked: row.int(0)? != 0, pages: pages(1)?, moved: pages(2)? })
}

impl SqliteStore {
    /// Shrinks the file to its content, in steps between which appends can run.
    pub(super) async fn give_room_back(&self) -> Result<(), StoreError> {
        let mut given = false;
        while self.writer.lock().await.give_room_back(&self.place).await? {
            given = true;
        }
        if given {
            self.writer.lock().await.checkpoint_now().await;
        }
        Ok(())
    }

    pub(super) async fn ensure_open(&self) -> Result<(), StoreError> {
        let is_closed = match &self.readers {
            Some(readers) => readers.is_closed(),
            None => self.writer.lock().await.is_closed(),
        };
        if is_closed { Err(StoreError::Closed { place: self.place.clone() }) } else { Ok(()) }
    }

    /// Rewrites the whole file.
    pub(super) async fn vacuum(&self) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let mut connection = writer.sound(&self.place).await?;
        // The connection was opened with auto_vacuum. For a file created without it, the setting takes effect with this
        // statement.
        let outcome = sqlx::query("VACUUM").execute(&mut connection).await;
        outcome.map_err(|error| store_error(&self.place, "compacting", error.into()))?;
        writer.connection = Some(connection);
        Ok(())
    }

    /// Fills an empty store, in one transaction.
    pub(in crate::store) async fn fill(
        &self,
        filling: impl AsyncFnOnce(&mut SqliteConnection) -> Result<(), Fault>,
    ) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin(&self.place).await?;
        let outcome = filling(&mut tx).await;
        let outcome = finish(tx, outcome).await;
        writer.settle(&self.place, "copying", outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_writer_is_durable_and_alone_in_checkpointing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memctl.db");
        let mut opened = open(&path, "here", &SqliteOptions::default()).await.unwrap();
        let writer = opened.writer.connection.as_mut().unwrap();
        // Level 2 is FULL.
        for (pragma, expected) in [
            ("PRAGMA synchronous", 2),
            ("PRAGMA foreign_keys", 1),
            ("PRAGMA wal_autocheckpoint", 0),
            ("PRAGMA page_size", 16_384),
        ] {
            let found: i64 = sqlx::query_scalar(pragma).fetch_one(&mut *writer).await.unwrap();
            assert_eq!(found, expected, "{pragma}");
        }
        let mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut *writer).await.unwrap();
        assert_eq!(mode, "wal");
        let mut reader = opened.readers.acquire().await.unwrap();
        let automatic: i64 = sqlx::query_scalar("PRAGMA wal_autocheckpoint").fetch_one(&mut *reader).await.unwrap();
        assert_eq!(automatic, 0);
        let refused = sqlx::query("DELETE FROM job").execute(&mut *reader).await;
        assert!(refused.is_err(), "a reader cannot write");
    }

    #[test]
    fn old_libraries_are_refused() {
        for (version, good) in
            [("3.51.3", true), ("3.52.0", true), ("4.0.0", true), ("3.51.2", false), ("3.9.99", false), ("", false)]
        {
            assert_eq!(check_version("here", version).is_ok(), good, "{version}");
        }
    }
}
