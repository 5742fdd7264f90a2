//! Connecting, the schema, and retries.
//!
//! Guarantees: every wait has a timeout (connecting, getting a connection, a statement, a lock). Two daemons can start
//! at the same time on an empty database.
//! Refuses: servers that lack features that the statements use.

use std::str::FromStr;
use std::time::Duration;

use memctl_model::Backoff;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions, Postgres};
use sqlx::{ConnectOptions, Connection, Executor, Transaction};

use super::fault::{is_passing, is_race, store_error, store_error_at_open};
use super::{PostgresStore, StoreError};
use crate::store::migrations;
use crate::store::row_reader::Fault;
use crate::store::sql::Attempts;

/// Version 13, in the form of `server_version_num`. Older versions are no longer supported by Postgres.
const SERVER_MIN: i32 = 130_000;
/// Limit of concurrent appends and queries. By default a server allows 100 connections for all clients together.
const CONNECTIONS_MAX: u32 = 8;
/// Timeout for getting a connection, new or free.
const ACQUIRE_WAIT: Duration = Duration::from_secs(15);
/// Timeout for finding out why no connection was available.
const REASON_WAIT: Duration = Duration::from_secs(5);
/// Timeout of a statement. Deleting a large job takes longest and has its own.
const STATEMENT_MS: &str = "60000";
/// Timeout for a lock that another daemon holds.
const LOCK_MS: &str = "20000";
/// The server ends a transaction that a lost daemon left open after this time.
const IDLE_IN_TRANSACTION_MS: &str = "60000";
/// Attempts per transaction. A serialization failure is rare, so twelve in a row indicate a fault.
const TRIES_MAX: u32 = 12;
/// Pauses between attempts. On a loaded server a transaction takes a second, and two transactions that retry sooner
/// collide again.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(10), most: Duration::from_millis(1_280) };

/// The result of opening.
pub(super) struct Opened {
    pub(super) pool: PgPool,
    /// The options for another connection.
    pub(super) options: PgConnectOptions,
    pub(super) version: String,
}

/// Connects, checks the server and brings the schema up to date.
pub(super) async fn open(url: &str, place: &str) -> Result<Opened, StoreError> {
    let (pool, options) = connect(url, place, &[]).await?;
    finished(prepare(&pool, place).await, pool, options, place).await
}

/// Connects read-only, if the schema is current.
pub(super) async fn open_read_only(url: &str, place: &str) -> Result<Opened, StoreError> {
    let (pool, options) = connect(url, place, &[("default_transaction_read_only", "on")]).await?;
    finished(look(&pool, place).await, pool, options, place).await
}

async fn finished(
    looked: Result<String, Fault>,
    pool: PgPool,
    options: PgConnectOptions,
    place: &str,
) -> Result<Opened, StoreError> {
    match looked {
        Ok(version) => Ok(Opened { pool, options, version }),
        Err(fault) => {
            pool.close().await;
            Err(store_error_at_open(place, fault))
        }
    }
}

async fn connect(url: &str, place: &str, more: &[(&str, &str)]) -> Result<(PgPool, PgConnectOptions), StoreError> {
    let options = PgConnectOptions::from_str(url).map_err(|_| StoreError::Unreachable {
        place: place.into(),
        // The parser's message may quote a part of the password.
        reason: "the URL cannot be read; its form is postgres://USER:PASSWORD@HOST:PORT/DATABASE, with special characters percent-encoded".into(),
    })?;
    let options = options
        .application_name("memctl")
        .options([
            ("statement_timeout", STATEMENT_MS),
            ("lock_timeout", LOCK_MS),
            ("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION_MS),
        ])
        .options(more.iter().copied())
        .disable_statement_logging();
    let pool = PgPoolOptions::new()
        .max_connections(CONNECTIONS_MAX)
        .acquire_timeout(ACQUIRE_WAIT)
        .after_connect(|connection, _| Box::pin(commit_to_disk(connection)))
        .connect_with(options.clone())
        .await;
    match pool {
        Ok(pool) => Ok((pool, options)),
        Err(error) => Err(store_error_at_open(place, reason(error, &options).await.into())),
    }
}

/// Finds the server's error. A pool that timed out does not report it, so one more connection attempt is made.
async fn reason(error: sqlx::Error, options: &PgConnectOptions) -> sqlx::Error {
    if !matches!(error, sqlx::Error::PoolTimedOut) {
        return error;
    }
    match tokio::time::timeout(REASON_WAIT, options.connect()).await {
        Ok(Err(reason)) => reason,
        // The server responds now, or it hangs. In both cases the timeout itself is the reason.
        Ok(Ok(_)) | Err(_) => error,
    }
}

/// Checks that the schema exists and returns the server's version.
async fn look(pool: &PgPool, place: &str) -> Result<String, Fault> {
    let mut connection = pool.acquire().await?;
    let there = "SELECT to_regclass('memctl.migration') IS NOT NULL";
    if !sqlx::query_scalar::<_, bool>(there).fetch_one(&mut *connection).await? {
        let reason = "it holds no store of memctl's".to_owned();
        return Err(StoreError::Unreachable { place: place.into(), reason }.into());
    }
    let found = "SELECT coalesce(max(version), 0) FROM memctl.migration";
    let found: i64 = sqlx::query_scalar(found).fetch_one(&mut *connection).await?;
    if found > migrations::NEWEST {
        return Err(StoreError::Newer { place: place.into(), found, known: migrations::NEWEST }.into());
    }
    crate::store::sqlite::read_only::check_current(place, found)?;
    Ok(sqlx::query_scalar("SELECT current_setting('server_version')").fetch_one(&mut *connection).await?)
}

/// Probes the server on a connection of its own, which is reused. A connection of the pool would wait behind other
/// queries, and the pool would retry a server that refuses connections.
pub(super) async fn probe(kept: &mut Option<PgConnection>, options: &PgConnectOptions) -> Result<(), Fault> {
    // The connection is taken out, so that after a failure or a cancelled caller the next probe opens a new one.
    let mut connection = match kept.take() {
        Some(connection) => connection,
        None => options.connect().await?,
    };
    connection.execute("SELECT 1").await?;
    *kept = Some(connection);
    Ok(())
}

/// Ensures that an acknowledged commit is durable, whatever the default of the server or the role.
async fn commit_to_disk(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let on = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'";
    connection.execute(on).await.map(|_| ())
}

async fn prepare(pool: &PgPool, place: &str) -> Result<String, Fault> {
    let mut connection = pool.acquire().await?;
    let number = "SELECT current_setting('server_version_num')::int";
    let number: i32 = sqlx::query_scalar(number).fetch_one(&mut *connection).await?;
    let version: String =
        sqlx::query_scalar("SELECT current_setting('server_version')").fetch_one(&mut *connection).await?;
    if number < SERVER_MIN {
        let reason = format!("the server is Postgres {version}; memctl needs 13 or newer");
        return Err(StoreError::Unreachable { place: place.into(), reason }.into());
    }
    let ready = "SELECT to_regclass('memctl.migrating') IS NOT NULL";
    for statement in [
        "CREATE SCHEMA IF NOT EXISTS memctl",
        // This table stays empty. The process that migrates holds its lock.
        "CREATE TABLE IF NOT EXISTS memctl.migrating ()",
    ] {
        // The schema and the table are looked up first, so that the right to create is not needed if both exist.
        if sqlx::query_scalar::<_, bool>(ready).fetch_one(&mut *connection).await? {
            break;
        }
        match connection.execute(statement).await {
            Ok(_) => {}
            // IF NOT EXISTS does not prevent a race of two daemons that create the same thing: one of them gets this
            // error.
            Err(error) if is_race(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut tx = connection.begin().await?;
    tx.execute("LOCK TABLE memctl.migrating IN ACCESS EXCLUSIVE MODE").await?;
    if sqlx::query_scalar::<_, bool>("SELECT to_regclass('memctl.migration') IS NOT NULL").fetch_one(&mut *tx).await? {
        let found = "SELECT coalesce(max(version), 0) FROM memctl.migration";
        let found: i64 = sqlx::query_scalar(found).fetch_one(&mut *tx).await?;
        if found > migrations::NEWEST {
            return Err(StoreError::Newer { place: place.into(), found, known: migrations::NEWEST }.into());
        }
    }
    // `run` cannot be used, because its future is not `Send`.
    migrations::postgres().run_direct(None, &mut *tx, false).await.map_err(|error| migrations::fault(place, error))?;
    tx.commit().await?;
    Ok(version)
}

/// Counts the attempts of one transaction.
pub(in crate::store) struct Retries<'s> {
    store: &'s PostgresStore,
    operation: &'static str,
    tries: u32,
}

impl<'s> Retries<'s> {
    pub(super) fn new(store: &'s PostgresStore, operation: &'static str) -> Self {
        Self { store, operation, tries: 0 }
    }
}

impl Attempts for Retries<'_> {
    type Db = Postgres;

    async fn begin(&mut self) -> Result<Transaction<'_, Postgres>, StoreError> {
        let began = self.store.pool.begin().await;
        began.map_err(|error| store_error(&self.store.place, self.operation, error.into()))
    }

    /// Repeats the transaction after a serialization failure or a deadlock, with a pause.
    async fn ended<T: Send>(&mut self, outcome: Result<T, Fault>) -> Result<Option<T>, StoreError> {
        let error = match outcome {
            Ok(done) => return Ok(Some(done)),
            Err(Fault::Overtaken) => {
                self.tries = 0;
                return Ok(None);
            }
            Err(Fault::Sql(error)) if is_passing(&error) && self.tries + 1 < TRIES_MAX => error,
            Err(fault) => return Err(store_error(&self.store.place, self.operation, fault)),
        };
        tracing::debug!(place = self.store.place, operation = self.operation, tries = self.tries + 1, %error, "trying again");
        // Half of the pause is random, so that two transactions that collided do not collide again.
        let share = f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX);
        tokio::time::sleep(BACKOFF.wait(self.tries, 0.5 + share / 2.0)).await;
        self.tries += 1;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn commits_reach_the_disk_whatever_the_default_is() {
        let url = std::env::var("MEMCTL_TEST_POSTGRES").expect(
            "MEMCTL_TEST_POSTGRES is not set: it is the URL of a throw-away Postgres cluster; `./test` starts one",
        );
        let mut connection = PgConnection::connect(&url).await.unwrap();
        for (set, expected) in [
            ("SET synchronous_commit = off", "on"),
            ("SET synchronous_commit = on", "on"),
            ("SET synchronous_commit = remote_apply", "remote_apply"),
        ] {
            connection.execute(set).await.unwrap();
            commit_to_disk(&mut connection).await.unwrap();
            let found: String = sqlx::query_scalar("SHOW synchronous_commit").fetch_one(&mut connection).await.unwrap();
            assert_eq!(found, expected);
        }
    }
}
