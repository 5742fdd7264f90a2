//! Copies from and to SQLite files.
//!
//! Guarantees: a file is copied as of one moment, even with concurrent writers. A damaged backup is not restored.

use std::path::{Path, PathBuf};

use sqlx::sqlite::SqliteConnection;
use sqlx::{ConnectOptions, Connection};
use tokio_stream::StreamExt as _;

use super::super::sqlite::{fault, read_only};
use super::super::{SqliteStore, Store, StoreError, Totals, migrations};
use super::tables::tables;
use super::{not_empty, store_error};
use crate::store::row_reader::Fault;

/// Copies a file into an empty one.
pub(super) async fn backup(path: &Path, target: &Path) -> Result<(), StoreError> {
    let place = path.display().to_string();
    let source = read_only::source(path, &place).await?;
    let copied = async {
        let mut connection = source.options.connect().await?;
        let outcome = sqlx::query("VACUUM INTO ?1").bind(target.to_string_lossy().into_owned());
        let outcome = outcome.execute(&mut connection).await;
        connection.close().await?;
        outcome?;
        Ok::<_, Fault>(())
    };
    copied.await.map_err(|error| fault::store_error(&place, "copying", error))
}

/// A copy of an older backup with the current schema, in a folder; `None` if the schema is current.
pub(super) async fn brought_up_to_date(source: &Path, folder: &Path) -> Result<Option<PathBuf>, StoreError> {
    let place = source.display().to_string();
    let found = read_only::source(source, &place).await?;
    let sound = async {
        let mut connection = found.options.connect().await?;
        let said: Vec<String> = sqlx::query_scalar("PRAGMA integrity_check(3)").fetch_all(&mut connection).await?;
        connection.close().await?;
        if said == ["ok"] { Ok(()) } else { Err(Fault::Damaged(said.join("; "))) }
    };
    sound.await.map_err(|error| fault::store_error(&place, "reading", error))?;
    if found.schema_version == migrations::NEWEST {
        return Ok(None);
    }
    let copy = folder.join("memctl.db");
    std::fs::copy(source, &copy).map_err(|error| store_error(source, &error))?;
    SqliteStore::open(&copy, "memctl restore").await?.close().await?;
    Ok(Some(copy))
}

/// The sums of a file of any version.
pub(super) async fn totals(path: &Path) -> Result<Totals, StoreError> {
    let (mut connection, _held) = connect(path).await?;
    let sums = "SELECT (SELECT count(*) FROM job), count(*), coalesce(sum(events), 0), coalesce(sum(stored_bytes), 0) FROM session";
    let counted = sqlx::query_as::<_, (i64, i64, i64, i64)>(sums).fetch_one(&mut connection).await;
    let (jobs, sessions, events, stored_bytes) =
        counted.map_err(|error| fault::store_error(&path.display().to_string(), "adding up", error.into()))?;
    let [jobs, sessions, events, stored_bytes] = [jobs, sessions, events, stored_bytes].map(i64::cast_unsigned);
    Ok(Totals { jobs, sessions, events, stored_bytes, ..Totals::default() })
}

/// Connects to a backup and takes the lock that keeps other processes from writing it.
pub(super) async fn connect(source: &Path) -> Result<(SqliteConnection, Option<std::fs::File>), StoreError> {
    let place = source.display().to_string();
    let read_only::Source { options, held, .. } = read_only::source(source, &place).await?;
    let connection = options.connect().await.map_err(|error| fault::store_error_at_open(&place, error.into()))?;
    Ok((connection, held))
}

/// Copies a backup into an empty file.
pub(super) async fn restore(source: &Path, target: &Path) -> Result<Totals, StoreError> {
    let (mut from, _held) = connect(source).await?;
    let store = SqliteStore::open(target, "memctl restore").await?;
    let before = store.totals().await?;
    if before.jobs > 0 || before.sessions > 0 {
        store.close().await?;
        return Err(not_empty(&target.display().to_string(), &before));
    }
    let outcome = store.fill(async |to: &mut SqliteConnection| fill(&mut from, to).await).await;
    let totals = store.totals().await;
    store.close().await?;
    outcome.and(totals)
}

/// Replaces the rows of a file's tables with those of another.
pub(super) async fn fill(from: &mut SqliteConnection, to: &mut SqliteConnection) -> Result<(), Fault> {
    let tables = tables(from).await?;
    sqlx::query("PRAGMA defer_foreign_keys = ON").execute(&mut *to).await?;
    for table in tables.iter().rev() {
        let delete = format!("DELETE FROM \"{}\"", table.name);
        sqlx::query(sqlx::AssertSqlSafe(delete)).execute(&mut *to).await?;
    }
    for table in &tables {
        let mut rows = std::pin::pin!(table.rows(from));
        while let Some(row) = rows.next().await {
            table.insert(to, row?).await?;
        }
    }
    // Copies the sequences, so that keys of deleted rows are not reused.
    sqlx::query("DELETE FROM sqlite_sequence").execute(&mut *to).await?;
    for row in sqlx::query_as::<_, (String, i64)>("SELECT name, seq FROM sqlite_sequence").fetch_all(from).await? {
        let insert = sqlx::query("INSERT INTO sqlite_sequence (name, seq) VALUES (?1, ?2)").bind(row.0).bind(row.1);
        insert.execute(&mut *to).await?;
    }
    Ok(())
}
