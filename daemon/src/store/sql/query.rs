//! A statement with its parameters, and the connections of both databases that run it.
//!
//! Guarantees: a text that means the same in both databases is written once, in Postgres's form. For SQLite the
//! schema's name, the casts and the row locks are removed (its only writer already holds a lock), and three functions
//! are renamed. Where the databases differ, two files `NAME.sqlite.sql` and `NAME.postgres.sql` hold the two texts.
//! Parameters are numbered in both.

use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{Arguments as _, AssertSqlSafe, SqlSafeStr as _, SqlStr};

use crate::store::row_reader::{Cells, Fault};

/// A statement's text.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) enum Sql {
    /// For both databases, in Postgres's form.
    Both(&'static str),
    /// One text each.
    Each { sqlite: &'static str, postgres: &'static str },
}

/// Includes the text `NAME.sql`. With `each`, it includes the pair `NAME.sqlite.sql` and `NAME.postgres.sql`; with a
/// database, only the text of that database.
macro_rules! sql {
    ($name:literal) => {
        crate::store::sql::query::Sql::Both(crate::store::sql::query::sql!(@ $name, ".sql"))
    };
    (each $name:literal) => {
        crate::store::sql::query::Sql::Each {
            sqlite: crate::store::sql::query::sql!(sqlite $name),
            postgres: crate::store::sql::query::sql!(postgres $name),
        }
    };
    (sqlite $name:literal) => {
        crate::store::sql::query::sql!(@ $name, ".sqlite.sql")
    };
    (postgres $name:literal) => {
        crate::store::sql::query::sql!(@ $name, ".postgres.sql")
    };
    (@ $name:literal, $form:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/sql/text/", $name, $form))
    };
}
pub(in crate::store) use sql;

/// Replacements that turn Postgres's form into SQLite's, in order.
const OF_SQLITE: [(&str, &str); 8] = [
    ("memctl.", ""),
    ("::bigint", ""),
    ("::text", ""),
    ("octet_length(", "length("),
    ("greatest(", "max("),
    ("least(", "min("),
    (" FOR UPDATE", ""),
    (" FOR SHARE", ""),
];

impl Sql {
    fn of_sqlite(self) -> SqlStr {
        match self {
            Self::Both(text) => {
                let replaced = |text: String, (from, to): (&str, &str)| text.replace(from, to);
                AssertSqlSafe(OF_SQLITE.into_iter().fold(text.to_owned(), replaced)).into_sql_str()
            }
            Self::Each { sqlite, .. } => sqlite.into_sql_str(),
        }
    }

    fn of_postgres(self) -> SqlStr {
        match self {
            Self::Both(text) | Self::Each { postgres: text, .. } => text.into_sql_str(),
        }
    }
}

/// A parameter.
#[derive(Debug)]
pub(in crate::store) enum Value {
    Int(Option<i64>),
    Flag(bool),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
    /// An array in Postgres, a JSON array in SQLite.
    Ints(Vec<i64>),
}

macro_rules! values {
    ($($from:ty => |$value:ident| $to:expr;)*) => {
        $(impl From<$from> for Value {
            fn from($value: $from) -> Self {
                $to
            }
        })*
    };
}
values! {
    i64 => |value| Self::Int(Some(value));
    Option<i64> => |value| Self::Int(value);
    // A `u64` is bit-cast, as in all columns.
    u64 => |value| Self::Int(Some(value.cast_signed()));
    Option<u64> => |value| Self::Int(value.map(u64::cast_signed));
    u32 => |value| Self::Int(Some(value.into()));
    Option<u32> => |value| Self::Int(value.map(i64::from));
    u8 => |value| Self::Int(Some(value.into()));
    Option<u8> => |value| Self::Int(value.map(i64::from));
    bool => |value| Self::Flag(value);
    &str => |value| Self::Text(Some(value.to_owned()));
    Option<&str> => |value| Self::Text(value.map(str::to_owned));
    &[u8] => |value| Self::Bytes(Some(value.to_vec()));
    Vec<u8> => |value| Self::Bytes(Some(value));
    Option<&[u8]> => |value| Self::Bytes(value.map(<[u8]>::to_vec));
    Vec<i64> => |value| Self::Ints(value);
}

/// A statement with its parameters.
#[derive(Debug)]
pub(in crate::store) struct Query {
    sql: Sql,
    values: Vec<Value>,
}

/// Starts a statement without parameters.
pub(in crate::store) fn query(sql: Sql) -> Query {
    Query { sql, values: Vec::new() }
}

impl Query {
    /// Adds the next parameter.
    pub(in crate::store) fn bind(mut self, value: impl Into<Value>) -> Self {
        self.values.push(value.into());
        self
    }
}

/// A bound of a range. Nothing is stored beyond 2^63, so a larger bound becomes 2^63 - 1.
pub(in crate::store) fn bound(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A connection of either database.
pub(in crate::store) trait SqlConnection: Send {
    type Row: Cells + Send + Sync;

    /// All rows.
    fn all(&mut self, query: Query) -> impl Future<Output = Result<Vec<Self::Row>, Fault>> + Send;

    /// Executes a statement and returns the number of changed rows.
    fn run(&mut self, query: Query) -> impl Future<Output = Result<u64, Fault>> + Send;

    /// The first row, if there is one.
    fn optional(&mut self, query: Query) -> impl Future<Output = Result<Option<Self::Row>, Fault>> + Send {
        async { Ok(self.all(query).await?.into_iter().next()) }
    }

    /// The only row.
    fn one(&mut self, query: Query) -> impl Future<Output = Result<Self::Row, Fault>> + Send {
        async { self.optional(query).await?.ok_or(Fault::Sql(sqlx::Error::RowNotFound)) }
    }
}

macro_rules! connection {
    ($connection:ty, $row:ty, $arguments:ty, $text:ident, $ints:expr) => {
        impl SqlConnection for $connection {
            type Row = $row;

            async fn all(&mut self, query: Query) -> Result<Vec<$row>, Fault> {
                let Query { sql, values } = query;
                Ok(sqlx::query_with(sql.$text(), arguments(values)?).fetch_all(self).await?)
            }

            async fn run(&mut self, query: Query) -> Result<u64, Fault> {
                let Query { sql, values } = query;
                Ok(sqlx::query_with(sql.$text(), arguments(values)?).execute(self).await?.rows_affected())
            }
        }

        fn arguments(values: Vec<Value>) -> Result<$arguments, Fault> {
            let mut arguments = <$arguments>::default();
            for value in values {
                let added = match value {
                    Value::Int(value) => arguments.add(value),
                    Value::Flag(value) => arguments.add(value),
                    Value::Text(value) => arguments.add(value),
                    Value::Bytes(value) => arguments.add(value),
                    Value::Ints(values) => arguments.add($ints(values)),
                };
                added.map_err(sqlx::Error::Encode)?;
            }
            Ok(arguments)
        }
    };
}

mod of_sqlite {
    use super::*;

    connection!(SqliteConnection, SqliteRow, SqliteArguments, of_sqlite, json);

    fn json(values: Vec<i64>) -> String {
        let values: Vec<String> = values.iter().map(i64::to_string).collect();
        format!("[{}]", values.join(","))
    }
}

mod of_postgres {
    use super::*;

    connection!(PgConnection, PgRow, PgArguments, of_postgres, std::convert::identity);
}

#[cfg(test)]
mod tests {
    use sqlx::{ConnectOptions as _, Row as _};

    use super::*;
    use crate::store::migrations;

    async fn empty() -> SqliteConnection {
        let mut connection = sqlx::sqlite::SqliteConnectOptions::new().connect().await.unwrap();
        migrations::sqlite().run_direct(None, &mut connection, false).await.unwrap();
        connection
    }

    /// If the index matched only a part of the key, each page would read all items of a session.
    #[tokio::test]
    async fn pages_of_items_are_found_by_the_whole_key() {
        let mut connection = empty().await;
        for sql in [sql!("items_after"), sql!(each "items_at")] {
            let explained = format!("EXPLAIN QUERY PLAN {}", sql.of_sqlite().as_str());
            let query = sqlx::query(AssertSqlSafe(explained));
            let plan = (0..5).fold(query, |query, _| query.bind(1_i64)).fetch_all(&mut connection).await.unwrap();
            let lines: Vec<String> = plan.iter().map(|row| row.get::<String, _>("detail")).collect();
            let of_items: Vec<&String> = lines.iter().filter(|line| line.starts_with("SEARCH i ")).collect();
            assert!(!of_items.is_empty(), "{lines:?}");
            let is_whole = |line: &&String| line.contains("kind=? AND seq=?") || line.contains("kind=? AND seq>?");
            assert!(of_items.iter().all(is_whole), "{lines:?}");
        }
    }
}
