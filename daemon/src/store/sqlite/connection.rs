//! Opening the file, the writer and its transactions, checkpoints.
//!
//! Guarantees: a transaction is committed or gone; after a failure, or when a caller went away in the middle, the
//! writer's connection is proved clean or replaced before it is used again.
//! Refuses: to checkpoint from anywhere but the writer.

use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, Sqlite, Transaction};

use super::fault::{foreign, told, told_at_open};
use super::{SqliteOptions, SqliteStore, StoreError};
use crate::store::cells::{Cells, Fault};
use crate::store::migrations;

/// The first version without the corruption of <https://sqlite.org/wal.html#walresetbug>.
const SQLITE_MIN: (u32, u32, u32) = (3, 51, 3);
/// Connections that read at the same time; each has a thread of its own.
const READERS_MAX: u32 = 4;
/// Nobody else writes, so only a checkpoint of a process that is just ending can make us wait.
const BUSY_WAIT: Duration = Duration::from_secs(10);
/// Written since the last checkpoint; a larger log makes reads slower, a smaller one syncs the file more often.
const CHECKPOINT_BYTES: u64 = 32 << 20;
/// When readers kept the log from being reused and it has grown to this, the writer waits for them.
const LOG_BYTES_MAX: u64 = 256 << 20;
/// `memc` as in the first migration.
const APPLICATION_ID: i64 = 0x6d65_6d63;

/// The one connection that writes.
pub(super) struct Writer {
    options: SqliteConnectOptions,
    connection: Option<SqliteConnection>,
    /// Whether the end of the last transaction was not seen, or not a good one.
    unsettled: bool,
    closed: bool,
    page_bytes: u64,
    unchecked_bytes: u64,
}

/// What opening gives.
pub(super) struct Opened {
    pub(super) writer: Writer,
    pub(super) readers: SqlitePool,
    pub(super) version: String,
}

/// Opens the file, brings it up to date and starts the readers.
pub(super) async fn open(path: &Path, place: &str, options: &SqliteOptions) -> Result<Opened, StoreError> {
    let at_open = |fault: Fault| told_at_open(place, fault);
    identify(path, place).await.map_err(at_open)?;
    let connect = connect_options(path, options);
    let mut connection = connect.connect().await.map_err(|error| at_open(error.into()))?;
    let version: String = sqlx::query_scalar("SELECT sqlite_version()")
        .fetch_one(&mut connection)
        .await
        .map_err(|error| at_open(error.into()))?;
    check_version(place, &version)?;
    // Not `run`: its future is not `Send`.
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
    let writer = Writer {
        options: connect,
        connection: Some(connection),
        unsettled: false,
        closed: false,
        page_bytes: page_bytes.max(0).cast_unsigned(),
        unchecked_bytes: 0,
    };
    Ok(Opened { writer, readers, version })
}

fn connect_options(path: &Path, options: &SqliteOptions) -> SqliteConnectOptions {
    let connect = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .page_size(options.page_bytes)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(BUSY_WAIT)
        // The writer decides itself, after its commits.
        .pragma("wal_autocheckpoint", "0")
        .pragma("journal_size_limit", LOG_BYTES_MAX.to_string())
        // Queries are logged by those who ask them.
        .disable_statement_logging();
    match options.file_bytes_max {
        Some(bytes) => connect.pragma("max_page_count", (bytes / u64::from(options.page_bytes)).max(1).to_string()),
        None => connect,
    }
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

/// Looks whose file it is, before anything is set on it: another program's stays as it is.
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

async fn identified(connection: &mut SqliteConnection, place: &str) -> Result<(), Fault> {
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

/// A process that died between making the migrations' table and the first migration leaves just that.
async fn only_the_migrations_table(connection: &mut SqliteConnection) -> Result<bool, Fault> {
    let others = "SELECT count(*) FROM sqlite_schema WHERE tbl_name <> 'memctl_migration'";
    let others: i64 = sqlx::query_scalar(others).fetch_one(connection).await?;
    Ok(others == 0)
}

impl Writer {
    /// Begins a transaction that holds the write lock from the start.
    pub(super) async fn begin(&mut self, place: &str) -> Result<Transaction<'_, Sqlite>, StoreError> {
        if self.closed {
            return Err(StoreError::Closed { place: place.into() });
        }
        let connection = self.sound(place).await?;
        self.unsettled = true;
        let began = self.connection.insert(connection).begin_with("BEGIN IMMEDIATE").await;
        began.map_err(|error| told(place, "beginning a transaction", error.into()))
    }

    /// What came of a transaction that [`finish`] has finished; a connection on which something failed is given up.
    pub(super) fn settle<T>(
        &mut self,
        place: &str,
        operation: &'static str,
        outcome: Result<T, Fault>,
    ) -> Result<T, StoreError> {
        self.unsettled = outcome.is_err();
        outcome.map_err(|fault| {
            if !matches!(fault, Fault::Told(_)) {
                self.connection = None;
            }
            told(place, operation, fault)
        })
    }

    /// Moves the log into the file once enough was written. Failing is no fault of the append that is done.
    pub(super) async fn checkpoint_when_due(&mut self, place: &str, written_bytes: u64) {
        self.unchecked_bytes = self.unchecked_bytes.saturating_add(written_bytes);
        if self.unchecked_bytes < CHECKPOINT_BYTES {
            return;
        }
        self.unchecked_bytes = 0;
        let Some(connection) = &mut self.connection else { return };
        let mut outcome = checkpoint(connection, "PRAGMA wal_checkpoint(PASSIVE)").await;
        if let Ok(log_pages) = outcome
            && log_pages.saturating_mul(self.page_bytes) > LOG_BYTES_MAX
        {
            outcome = checkpoint(connection, "PRAGMA wal_checkpoint(TRUNCATE)").await;
        }
        if let Err(fault) = outcome {
            self.connection = None;
            let error = told(place, "a checkpoint", fault);
            tracing::warn!(place, %error, "the log was not moved into the database, it is tried again later");
        }
    }

    /// After the disk was full: a log that can be moved into the file gives its room back.
    pub(super) async fn checkpoint_for_room(&mut self, place: &str) {
        // A failure leaves everything in the log, where it is safe; the next append tells how things stand.
        let _ = self.moved(place).await;
    }

    /// Moves the whole log into the file and closes it. What cannot be moved (a full disk) is as safe in the log.
    pub(super) async fn close(&mut self, place: &str) -> Result<(), StoreError> {
        if let Err(error) = self.moved(place).await {
            tracing::warn!(place, %error, "the log stays beside the database, the next start moves it");
        }
        self.closed = true;
        match self.connection.take() {
            Some(connection) => connection.close().await.map_err(|error| told(place, "closing", error.into())),
            None => Ok(()),
        }
    }

    async fn moved(&mut self, place: &str) -> Result<(), StoreError> {
        if self.closed {
            return Ok(());
        }
        let mut connection = self.sound(place).await?;
        let outcome = checkpoint(&mut connection, "PRAGMA wal_checkpoint(TRUNCATE)").await;
        if outcome.is_ok() {
            self.connection = Some(connection);
            self.unchecked_bytes = 0;
        }
        outcome.map(|_| ()).map_err(|fault| told(place, "a checkpoint", fault))
    }

    /// The connection if it is in order, or a new one.
    async fn sound(&mut self, place: &str) -> Result<SqliteConnection, StoreError> {
        let mut connection = self.connection.take();
        if self.unsettled
            && let Some(suspect) = &mut connection
            // Its caller may have gone away: what was queued is done first, then the connection tells its state.
            && (suspect.ping().await.is_err() || suspect.is_in_transaction())
        {
            connection = None;
        }
        self.unsettled = false;
        match connection {
            Some(connection) => Ok(connection),
            None => self.options.connect().await.map_err(|error| told(place, "opening", error.into())),
        }
    }
}

/// Runs a checkpoint; the pages of the log.
async fn checkpoint(connection: &mut SqliteConnection, how: &'static str) -> Result<u64, Fault> {
    // Columns: whether it was blocked, pages in the log, pages moved; -1 when there is no log.
    let row = sqlx::query(how).fetch_one(connection).await?;
    Ok(row.int(1)?.max(0).cast_unsigned())
}

/// Commits what went well, rolls back what did not.
pub(super) async fn finish<T>(tx: Transaction<'_, Sqlite>, outcome: Result<T, Fault>) -> Result<T, Fault> {
    match outcome {
        Ok(done) => {
            tx.commit().await?;
            Ok(done)
        }
        Err(fault) => {
            // After some faults (a full disk is one) SQLite has rolled back itself and this is refused; the fault is
            // what is told, and the connection proves itself before it is used again.
            let _ = tx.rollback().await;
            Err(fault)
        }
    }
}

impl SqliteStore {
    pub(super) fn open_or_told(&self) -> Result<(), StoreError> {
        if self.readers.is_closed() { Err(StoreError::Closed { place: self.place.clone() }) } else { Ok(()) }
    }

    /// What came of reading.
    pub(super) fn told<T>(&self, operation: &'static str, outcome: Result<T, Fault>) -> Result<T, StoreError> {
        outcome.map_err(|fault| told(&self.place, operation, fault))
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
        // 2 is FULL.
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
