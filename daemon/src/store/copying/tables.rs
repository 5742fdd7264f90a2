//! The tables of a store in SQLite and their rows cell by cell. Copies from and to either database use this form.
//!
//! Guarantees: tables are in the order of the migrations, so referenced tables come first.

use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use tokio_stream::{Stream, StreamExt as _};

use crate::store::row_reader::Fault;

/// Row keys that exist only in SQLite. They get new values in a copy.
const ITS_OWN: [(&str, &str); 1] = [("payload", "payload_id")];

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Int,
    Text,
    Blob,
}

#[derive(Clone, Debug)]
pub(super) struct Column {
    pub name: String,
    pub kind: Kind,
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    pub name: String,
    pub columns: Vec<Column>,
}

/// A cell; `None` is NULL.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Int(Option<i64>),
    Text(Option<String>),
    Blob(Option<Vec<u8>>),
}

impl Cell {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Int(_) => 8,
            Self::Text(text) => text.as_ref().map_or(0, String::len),
            Self::Blob(blob) => blob.as_ref().map_or(0, Vec::len),
        }
    }
}

/// The tables of a file, except the list of migrations.
pub(super) async fn tables(connection: &mut SqliteConnection) -> Result<Vec<Table>, Fault> {
    let listed = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
        AND name <> 'memctl_migration' ORDER BY rowid";
    let names: Vec<String> = sqlx::query_scalar(listed).fetch_all(&mut *connection).await?;
    let mut tables = Vec::new();
    // A later migration recreated the table of jobs, so it is listed last although sessions refer to it.
    let (first, others): (Vec<String>, Vec<String>) = names.into_iter().partition(|name| name == "job");
    for name in first.into_iter().chain(others) {
        let listed = "SELECT name, type FROM pragma_table_info(?1) ORDER BY cid";
        let mut columns = Vec::new();
        for row in sqlx::query(listed).bind(&name).fetch_all(&mut *connection).await? {
            let (column, declared): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            if ITS_OWN.contains(&(name.as_str(), column.as_str())) {
                continue;
            }
            let kind = match declared.as_str() {
                "INTEGER" | "INT" => Kind::Int,
                "TEXT" => Kind::Text,
                "BLOB" => Kind::Blob,
                other => return Err(Fault::Damaged(format!("column {name}.{column} of type {other}"))),
            };
            columns.push(Column { name: column, kind });
        }
        tables.push(Table { name, columns });
    }
    Ok(tables)
}

impl Table {
    pub(super) fn column_names(&self) -> String {
        self.columns.iter().map(|column| format!("\"{}\"", column.name)).collect::<Vec<_>>().join(", ")
    }

    /// All rows of the file's table, in sequence.
    pub(super) fn rows<'c>(
        &self,
        connection: &'c mut SqliteConnection,
    ) -> impl Stream<Item = Result<Vec<Cell>, Fault>> + Send + 'c {
        let select = format!("SELECT {} FROM \"{}\"", self.column_names(), self.name);
        let columns = self.columns.clone();
        sqlx::query(sqlx::AssertSqlSafe(select)).fetch(connection).map(move |row| cells_of(&columns, &row?))
    }

    /// Adds a row to the file's table.
    pub(super) async fn insert(&self, connection: &mut SqliteConnection, row: Vec<Cell>) -> Result<(), Fault> {
        let places: Vec<String> = (1..=self.columns.len()).map(|number| format!("?{number}")).collect();
        let insert = format!("INSERT INTO \"{}\" ({}) VALUES ({})", self.name, self.column_names(), places.join(", "));
        let query = row.into_iter().fold(sqlx::query(sqlx::AssertSqlSafe(insert)), |query, cell| match cell {
            Cell::Int(value) => query.bind(value),
            Cell::Text(value) => query.bind(value),
            Cell::Blob(value) => query.bind(value),
        });
        query.execute(connection).await?;
        Ok(())
    }
}

fn cells_of(columns: &[Column], row: &SqliteRow) -> Result<Vec<Cell>, Fault> {
    let cell = |(at, column): (usize, &Column)| {
        Ok(match column.kind {
            Kind::Int => Cell::Int(row.try_get(at)?),
            Kind::Text => Cell::Text(row.try_get(at)?),
            Kind::Blob => Cell::Blob(row.try_get(at)?),
        })
    };
    columns.iter().enumerate().map(cell).collect()
}
