//! Opens a SQLite file read-only: in a read-only folder, while a daemon writes it, or as a backup.
//!
//! Guarantees: nothing is written. If no process has the file open, it is read without touching its folder, and other
//! processes cannot open it for writing in the meantime. If a daemon has the file open, it is read concurrently, and
//! each transaction reads the state of one moment.
//! Refuses: a file with an unmerged log that cannot be read, files of other programs, and files of newer versions.

use std::fs::{File, TryLockError};
use std::path::Path;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

use super::connection::{BUSY_WAIT, identified};
use super::fault::store_error_at_open;
use super::lock::is_held_here;
use super::ownership::beside;
use super::{StoreError, migrations};
use crate::store::row_reader::Fault;

/// How a file is read, and the lock that keeps others from writing it.
pub(in crate::store) struct Source {
    pub options: SqliteConnectOptions,
    pub schema_version: i64,
    /// Keeps other processes from opening the file for writing; `None` if another process has it open.
    pub held: Option<File>,
}

/// Finds out how a file can be read.
pub(in crate::store) async fn source(path: &Path, place: &str) -> Result<Source, StoreError> {
    let unreachable = |reason: String| StoreError::Unreachable { place: place.into(), reason };
    // If this process has the file open, it is not opened again: closing it would end SQLite's locks.
    let held = if is_held_here(path) { None } else { hold(path).map_err(|error| unreachable(error.to_string()))? };
    let log = beside(path, "-wal");
    let has_log = log.metadata().is_ok_and(|log| log.len() > 0);
    let options =
        SqliteConnectOptions::new().filename(path).read_only(true).busy_timeout(BUSY_WAIT).disable_statement_logging();
    let options = options.immutable(held.is_some() && !has_log);
    let looked = look(&options, place).await;
    let schema_version = looked.map_err(|fault| match store_error_at_open(place, fault) {
        StoreError::Unreachable { place, reason } if has_log => StoreError::Unreachable {
            place,
            reason: format!(
                "{reason}; it was not closed, and its log {} cannot be read here: copy both files to a folder that can be written",
                log.display()
            ),
        },
        error => error,
    })?;
    Ok(Source { options, schema_version, held })
}

/// Keeps other processes from writing a file; `None` if a process has it open for writing.
fn hold(path: &Path) -> std::io::Result<Option<File>> {
    let file = File::open(path)?;
    match file.try_lock_shared() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

async fn look(options: &SqliteConnectOptions, place: &str) -> Result<i64, Fault> {
    let mut connection = options.connect().await?;
    let found = async {
        identified(&mut connection, place).await?;
        let tables: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_schema WHERE name = 'memctl_migration'")
            .fetch_one(&mut connection)
            .await?;
        if tables == 0 {
            return Ok(0);
        }
        let newest = "SELECT coalesce(max(version), 0) FROM memctl_migration";
        Ok(sqlx::query_scalar(newest).fetch_one(&mut connection).await?)
    };
    let found = found.await;
    connection.close().await?;
    found
}

/// Refuses a schema of another version, because the statements do not fit it.
pub(in crate::store) fn check_current(place: &str, found: i64) -> Result<(), StoreError> {
    if found == migrations::NEWEST {
        return Ok(());
    }
    Err(StoreError::Unreachable {
        place: place.into(),
        reason: format!(
            "its schema version is {found} and this memctl reads {}: a memctl that may write it brings it up to date (`memctl daemon --check`); restore a backup into a new folder for that",
            migrations::NEWEST
        ),
    })
}
