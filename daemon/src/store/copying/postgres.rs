//! Copies from and to Postgres: the same tables, row by row.
//!
//! Guarantees: a backup is one REPEATABLE READ transaction, so it is the state at one moment. A restore is one
//! transaction, and rows keep their keys.
//! Refuses: a database whose schema is not current, because a backup must not change the schema.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection, Executor, Row};
use tokio_stream::StreamExt as _;

use super::super::postgres::fault;
use super::super::{PostgresStore, SqliteStore, Store, StoreError, Totals};
use super::tables::{Cell, Column, Kind, Table, tables};
use super::{not_empty, sqlite};
use crate::store::row_reader::Fault;
use crate::store::sql::Backend as _;

/// Limits of the bytes and rows of one statement.
const STATEMENT_BYTES: usize = 8 << 20;
const STATEMENT_ROWS: usize = 2_048;

/// Copies a database into an empty file.
pub(super) async fn backup(url: &str, target: &Path) -> Result<(), StoreError> {
    let store = PostgresStore::open_read_only(url).await?;
    let place = store.place().to_owned();
    let copy = SqliteStore::open(target, "memctl backup").await?;
    let outcome = copy
        .fill(async |to: &mut SqliteConnection| {
            let mut connection = store.pool().acquire().await?;
            let mut tx = connection.begin().await?;
            for statement in [
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY",
                "SET LOCAL statement_timeout = 0",
                "SET LOCAL idle_in_transaction_session_timeout = 0",
            ] {
                tx.execute(statement).await?;
            }
            let outcome = read_all(&mut tx, to).await;
            tx.rollback().await?;
            outcome
        })
        .await;
    copy.close().await?;
    store.close().await?;
    outcome.map_err(|error| match error {
        // The failure most likely occurred while the database was read, so the error names its place.
        StoreError::Failed { operation, reason, .. } => StoreError::Failed { place, operation, reason },
        error => error,
    })
}

async fn read_all(from: &mut PgConnection, to: &mut SqliteConnection) -> Result<(), Fault> {
    let tables = tables(to).await?;
    let known = DatabaseColumns::of(from).await?;
    for table in tables.iter().rev() {
        let delete = format!("DELETE FROM \"{}\"", table.name);
        sqlx::query(AssertSqlSafe(delete)).execute(&mut *to).await?;
    }
    for table in &tables {
        known.check(table)?;
        let columns: Vec<String> = table.columns.iter().map(|column| known.selected(table, column)).collect();
        let select = format!("SELECT {} FROM memctl.\"{}\"", columns.join(", "), table.name);
        let mut rows = sqlx::query(AssertSqlSafe(select)).fetch(&mut *from);
        while let Some(row) = rows.next().await {
            table.insert(to, cells_of(&table.columns, &row?)?).await?;
        }
    }
    // Copies the sequences, so that keys of deleted rows are not reused.
    for (table, column) in &known.identities {
        let last = format!(
            "SELECT pg_sequence_last_value(pg_get_serial_sequence('memctl.\"{table}\"', '{column}')::regclass)"
        );
        let last: Option<i64> = sqlx::query_scalar(AssertSqlSafe(last)).fetch_one(&mut *from).await?;
        sqlx::query("DELETE FROM sqlite_sequence WHERE name = ?1").bind(table).execute(&mut *to).await?;
        let insert = sqlx::query("INSERT INTO sqlite_sequence (name, seq) VALUES (?1, ?2)").bind(table);
        insert.bind(last.unwrap_or(0)).execute(&mut *to).await?;
    }
    Ok(())
}

fn cells_of(columns: &[Column], row: &PgRow) -> Result<Vec<Cell>, Fault> {
    let cell = |(at, column): (usize, &Column)| {
        Ok(match column.kind {
            Kind::Int => Cell::Int(row.try_get(at)?),
            Kind::Text => Cell::Text(row.try_get(at)?),
            Kind::Blob => Cell::Blob(row.try_get(at)?),
        })
    };
    columns.iter().enumerate().map(cell).collect()
}

/// Copies a backup into an empty database.
pub(super) async fn restore(source: &Path, url: &str) -> Result<Totals, StoreError> {
    let (mut from, _held) = sqlite::connect(source).await?;
    let store = PostgresStore::open(url).await?;
    let before = store.totals().await?;
    if before.jobs > 0 || before.sessions > 0 {
        let error = not_empty(store.place(), &before);
        store.close().await?;
        return Err(error);
    }
    let outcome = write_all(&mut from, &store).await;
    let outcome = outcome.map_err(|error| fault::store_error(store.place(), "restoring", error));
    let totals = store.totals().await;
    store.close().await?;
    outcome.and(totals)
}

async fn write_all(from: &mut SqliteConnection, store: &PostgresStore) -> Result<(), Fault> {
    let tables = tables(from).await?;
    let mut tx = store.pool().begin().await?;
    tx.execute("SET LOCAL statement_timeout = 0").await?;
    // Concurrent writes would mix with the restored rows.
    tx.execute("LOCK TABLE memctl.job, memctl.session IN EXCLUSIVE MODE").await?;
    let jobs: i64 = sqlx::query_scalar("SELECT count(*) FROM memctl.job").fetch_one(&mut *tx).await?;
    if jobs > 0 {
        let totals = Totals { jobs: jobs.cast_unsigned(), ..Totals::default() };
        return Err(not_empty(store.place(), &totals).into());
    }
    let known = DatabaseColumns::of(&mut tx).await?;
    for table in tables.iter().rev() {
        known.check(table)?;
        sqlx::query(AssertSqlSafe(format!("DELETE FROM memctl.\"{}\"", table.name))).execute(&mut *tx).await?;
    }
    for table in &tables {
        let mut rows = std::pin::pin!(table.rows(from));
        let (mut waiting, mut bytes) = (Vec::new(), 0);
        loop {
            let row = rows.next().await.transpose()?;
            let is_end = row.is_none();
            if let Some(row) = row {
                bytes += row.iter().map(Cell::bytes).sum::<usize>();
                waiting.push(row);
            }
            if !waiting.is_empty() && (is_end || bytes >= STATEMENT_BYTES || waiting.len() >= STATEMENT_ROWS) {
                known.insert(&mut tx, table, std::mem::take(&mut waiting)).await?;
                bytes = 0;
            }
            if is_end {
                break;
            }
        }
    }
    for (table, column) in &known.identities {
        let last = sqlx::query_scalar("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = ?1").bind(table);
        let last: i64 = last.fetch_one(&mut *from).await?;
        let next = format!(
            "SELECT setval(pg_get_serial_sequence('memctl.\"{table}\"', '{column}'), greatest(coalesce(max(\"{column}\"), 0), $1) + 1, false) FROM memctl.\"{table}\""
        );
        sqlx::query(AssertSqlSafe(next)).bind(last).execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(())
}

/// The database's columns.
struct DatabaseColumns {
    types: BTreeMap<(String, String), String>,
    /// Table and column whose values the database assigns.
    identities: BTreeSet<(String, String)>,
}

impl DatabaseColumns {
    async fn of(connection: &mut PgConnection) -> Result<Self, Fault> {
        let listed = "SELECT table_name::text, column_name::text, data_type::text, is_identity::text
            FROM information_schema.columns WHERE table_schema = 'memctl'";
        let mut known = Self { types: BTreeMap::new(), identities: BTreeSet::new() };
        for row in sqlx::query(listed).fetch_all(connection).await? {
            let place: (String, String) = (row.try_get(0)?, row.try_get(1)?);
            if row.try_get::<String, _>(3)? == "YES" {
                known.identities.insert(place.clone());
            }
            known.types.insert(place, row.try_get(2)?);
        }
        Ok(known)
    }

    fn check(&self, table: &Table) -> Result<(), Fault> {
        let missing = table.columns.iter().find(|column| self.type_of(table, column).is_none());
        missing.map_or(Ok(()), |column| Err(Fault::Damaged(format!("no column {}.{}", table.name, column.name))))
    }

    fn type_of(&self, table: &Table, column: &Column) -> Option<&str> {
        self.types.get(&(table.name.clone(), column.name.clone())).map(String::as_str)
    }

    /// A column in SQLite's form.
    fn selected(&self, table: &Table, column: &Column) -> String {
        let name = &column.name;
        match (column.kind, self.type_of(table, column)) {
            (Kind::Int, Some("boolean")) => format!("\"{name}\"::int::bigint"),
            (Kind::Int, _) => format!("\"{name}\"::bigint"),
            (Kind::Text, _) => format!("\"{name}\"::text"),
            (Kind::Blob, _) => format!("\"{name}\""),
        }
    }

    async fn insert(&self, to: &mut PgConnection, table: &Table, rows: Vec<Vec<Cell>>) -> Result<(), Fault> {
        let mut columns: Vec<Vec<Cell>> = table.columns.iter().map(|_| Vec::with_capacity(rows.len())).collect();
        for row in rows {
            for (column, cell) in columns.iter_mut().zip(row) {
                column.push(cell);
            }
        }
        let (mut arrays, mut values) = (Vec::new(), Vec::new());
        for (number, column) in (1..).zip(&table.columns) {
            let array = match column.kind {
                Kind::Int => "bigint",
                Kind::Text => "text",
                Kind::Blob => "bytea",
            };
            arrays.push(format!("${number}::{array}[]"));
            values.push(match self.type_of(table, column) {
                Some("boolean") => format!("n.\"{}\" <> 0", column.name),
                _ => format!("n.\"{}\"", column.name),
            });
        }
        let names = table.column_names();
        let insert = format!(
            "INSERT INTO memctl.\"{}\" ({names}) OVERRIDING SYSTEM VALUE SELECT {} FROM unnest({}) AS n ({names})",
            table.name,
            values.join(", "),
            arrays.join(", ")
        );
        let query = columns.into_iter().zip(&table.columns).fold(
            sqlx::query(AssertSqlSafe(insert)),
            |query, (cells, column)| match column.kind {
                Kind::Int => query.bind(cells.into_iter().map(int).collect::<Vec<_>>()),
                Kind::Text => query.bind(cells.into_iter().map(text).collect::<Vec<_>>()),
                Kind::Blob => query.bind(cells.into_iter().map(blob).collect::<Vec<_>>()),
            },
        );
        query.execute(to).await?;
        Ok(())
    }
}

fn int(cell: Cell) -> Option<i64> {
    if let Cell::Int(value) = cell { value } else { None }
}

fn text(cell: Cell) -> Option<String> {
    if let Cell::Text(value) = cell { value } else { None }
}

fn blob(cell: Cell) -> Option<Vec<u8>> {
    if let Cell::Blob(value) = cell { value } else { None }
}
