//! Checks that a store is undamaged ([`check`]), even with concurrent writers.
//!
//! Guarantees: nothing is changed. The cheap check ([`Depth::Rows`]) compares every session's row with the stored items
//! at one moment, and finds orphaned rows. The deeper checks read everything: the database checks its own pages, and
//! every item and answer about holders is compared with its checksum and, at [`Depth::Decoded`], decoded. A damaged
//! item does not end the check. At most [`PROBLEMS_MAX`] problems are listed; the rest are counted.

mod answers;
mod items;
mod rules;

use sqlx::postgres::{PgConnection, PgPool};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection, Executor};

use super::address::StoreAddress;
use super::row_reader::{Cells, Fault};
use super::sql::Backend as _;
use super::sql::query::SqlConnection;
use super::sqlite::read_only;
use super::{PostgresStore, SqliteStore, Store, StoreError, StoreInfo, Totals, postgres, sqlite};

/// Limit of listed problems.
pub const PROBLEMS_MAX: usize = 1_000;

/// How much a check reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// Every session's row and its counts.
    Rows,
    /// Also the database's pages, and the checksum of every item.
    Bytes,
    /// Also whether each item decodes.
    Decoded,
}

/// A problem that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The session that it concerns.
    pub session: Option<i64>,
    /// The item.
    pub item: Option<u64>,
    /// A sentence about it.
    pub what: String,
}

/// The result of a check.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The store.
    pub info: StoreInfo,
    /// Its sums.
    pub totals: Totals,
    /// Items read by a deep check.
    pub items_read: u64,
    /// Items without a checksum, from older versions, read by a deep check.
    pub items_without_checksum: u64,
    /// The problems, at most [`PROBLEMS_MAX`].
    pub problems: Vec<Problem>,
    /// How many problems there are.
    pub problems_found: u64,
}

impl Checked {
    fn add(&mut self, problem: Problem) {
        self.problems_found += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }
}

/// Checks a store.
///
/// # Errors
/// The store cannot be opened, or cannot be read at all.
pub async fn check(address: &StoreAddress, depth: Depth) -> Result<Checked, StoreError> {
    let (store, mut source): (Box<dyn Store>, Source) = match address {
        StoreAddress::Memory => {
            let what = "a store in memory ends with its process".to_owned();
            return Err(StoreError::Refused { session: 0, what });
        }
        StoreAddress::Sqlite(path) => {
            let place = path.display().to_string();
            let found = read_only::source(path, &place).await?;
            read_only::check_current(&place, found.schema_version)?;
            let connection = found.options.connect().await;
            let connection = connection.map_err(|error| sqlite::fault::store_error_at_open(&place, error.into()))?;
            let store = SqliteStore::open_read_only(path).await?;
            (Box::new(store), Source::Sqlite { connection, options: found.options, place })
        }
        StoreAddress::Postgres(url) => {
            let store = PostgresStore::open_read_only(url).await?;
            let source = Source::Postgres { pool: store.pool().clone(), place: store.place().to_owned() };
            (Box::new(store), source)
        }
    };
    let (info, totals) = (store.info().await?, store.totals().await?);
    let mut checked =
        Checked { info, totals, items_read: 0, items_without_checksum: 0, problems: Vec::new(), problems_found: 0 };
    let outcome = source.run(depth, &mut checked).await;
    let outcome = outcome.map_err(|fault| source.store_error(fault));
    source.close().await;
    store.close().await?;
    outcome.map(|()| checked)
}

/// The database to check.
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
enum Source {
    Sqlite { connection: SqliteConnection, options: SqliteConnectOptions, place: String },
    Postgres { pool: PgPool, place: String },
}

impl Source {
    async fn run(&mut self, depth: Depth, checked: &mut Checked) -> Result<(), Fault> {
        match self {
            Self::Sqlite { connection, options, .. } => {
                if depth > Depth::Rows {
                    pages(connection, checked).await?;
                }
                let mut tx = connection.begin().await?;
                compare(&mut *tx, checked).await?;
                tx.rollback().await?;
                read_all(connection, options, depth, checked).await
            }
            Self::Postgres { pool, .. } => {
                let mut connection = pool.acquire().await?;
                let mut tx = connection.begin().await?;
                tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
                no_timeout(&mut tx).await?;
                compare(&mut *tx, checked).await?;
                tx.rollback().await?;
                read_all(&mut *connection, &pool.connect_options(), depth, checked).await
            }
        }
    }

    fn store_error(&self, fault: Fault) -> StoreError {
        match self {
            Self::Sqlite { place, .. } => sqlite::fault::store_error(place, "checking", fault),
            Self::Postgres { place, .. } => postgres::fault::store_error(place, "checking", fault),
        }
    }

    async fn close(self) {
        if let Self::Sqlite { connection, .. } = self {
            // Nothing was written, so an error on closing does not matter.
            let _ = connection.close().await;
        }
    }
}

/// Compares rows with each other.
async fn compare<C: SqlConnection>(tx: &mut C, checked: &mut Checked) -> Result<(), Fault> {
    for rule in rules::RULES {
        rules::judge(tx, rule, checked).await?;
    }
    Ok(())
}

/// Reads items and answers, as deep as requested.
async fn read_all<C: SqlConnection + Connection>(
    connection: &mut C,
    options: &C::Options,
    depth: Depth,
    checked: &mut Checked,
) -> Result<(), Fault> {
    if depth > Depth::Rows {
        items::all(connection, options, depth, checked).await?;
    }
    if depth == Depth::Decoded {
        answers::all(connection, options, checked).await?;
    }
    Ok(())
}

async fn no_timeout(connection: &mut PgConnection) -> Result<(), Fault> {
    connection.execute("SET LOCAL statement_timeout = 0").await?;
    Ok(())
}

/// SQLite checks its own pages, indexes and constraints.
async fn pages(connection: &mut SqliteConnection, checked: &mut Checked) -> Result<(), Fault> {
    let said = sqlx::query("PRAGMA integrity_check(100)").fetch_all(connection).await;
    let lines = match said {
        Ok(rows) => rows.iter().map(|row| row.text(0)).collect::<Result<Vec<_>, _>>()?,
        Err(error) if sqlite::fault::is_damage(&error) => vec![error.to_string()],
        Err(error) => return Err(error.into()),
    };
    for line in lines.iter().flat_map(|said| said.lines()).filter(|line| *line != "ok") {
        checked.add(Problem { session: None, item: None, what: format!("the database's pages: {line}") });
    }
    Ok(())
}
