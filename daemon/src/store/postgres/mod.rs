//! The store in Postgres: for many hosts, backups, or an existing database.
//!
//! Guarantees: one transaction per append, committed on the server's disk (`synchronous_commit` is never off). Only
//! serialization failures and deadlocks are retried. Several daemons may use one database: a session's row is locked
//! while it is written, so an item sent to two daemons is stored once and every sum stays correct. Concurrent retention
//! removes and counts everything once. Everything is in the schema `memctl`; neither advisory locks nor LISTEN/NOTIFY
//! are used. Passwords are never shown.
//!
//! Not guaranteed: a daemon does not know which sessions stream to another daemon. So an agent that streams one session
//! to two daemons is refused by neither.
//!
//! Refuses: servers older than version 13, and databases of a newer memctl.

mod batches;
mod connection;
pub(in crate::store) mod fault;

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, Postgres};
use tokio::sync::Mutex;

use super::damage::Damage;
use super::row_reader::{Cells as _, Fault};
use super::rows::StoreInfo;
use super::sql::Backend;
use super::sql::query::{Sql, SqlConnection as _, query, sql};
use super::{StoreError, migrations};
use connection::Retries;

/// The store.
pub struct PostgresStore {
    place: String,
    version: String,
    pool: PgPool,
    damage: Damage,
    options: PgConnectOptions,
    /// The connection used to probe the server.
    probing: Mutex<Option<PgConnection>>,
    is_read_only: bool,
}

/// A server in the same network responds within milliseconds. Together with the pause between probes, this timeout is
/// below the two seconds within which a refusal is expected.
const PATIENCE: Duration = Duration::from_millis(1_300);

impl PostgresStore {
    /// Connects and brings the schema up to date.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] if the URL, the server or the login is wrong, [`StoreError::Newer`],
    /// [`StoreError::ReadOnly`] on a standby, [`StoreError::Full`].
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let place = super::secrets::without_secrets(url);
        let connection::Opened { pool, options, version } = connection::open(url, &place).await?;
        tracing::debug!(place, postgres = version, schema = migrations::NEWEST, "store opened");
        Ok(Self {
            place,
            version,
            pool,
            damage: Damage::default(),
            options,
            probing: Mutex::default(),
            is_read_only: false,
        })
    }

    /// Connects read-only: every transaction is read-only, and the schema stays as it is.
    ///
    /// # Errors
    /// The same as for [`Self::open`]. A schema of another version is refused.
    pub async fn open_read_only(url: &str) -> Result<Self, StoreError> {
        let place = super::secrets::without_secrets(url);
        let connection::Opened { pool, options, version } = connection::open_read_only(url, &place).await?;
        Ok(Self {
            place,
            version,
            pool,
            damage: Damage::default(),
            options,
            probing: Mutex::default(),
            is_read_only: true,
        })
    }

    pub(super) fn pool(&self) -> &PgPool {
        &self.pool
    }

    async fn size(&self) -> Result<u64, Fault> {
        // The size includes tables, indexes and out-of-line data.
        let bytes = self.pool.acquire().await?.one(query(Sql::Both(sql!(postgres "size")))).await?.int(0)?;
        Ok(bytes.max(0).cast_unsigned())
    }
}

impl Backend for PostgresStore {
    type Db = Postgres;
    type Reader<'b> = PoolConnection<Postgres>;
    type Attempts<'b> = Retries<'b>;

    const PATIENCE: Duration = PATIENCE;

    fn place(&self) -> &str {
        &self.place
    }

    fn damage(&self) -> &Damage {
        &self.damage
    }

    fn store_error(&self, operation: &'static str, fault: Fault) -> StoreError {
        fault::store_error(&self.place, operation, fault)
    }

    async fn reader(&self) -> Result<Self::Reader<'_>, Fault> {
        Ok(self.pool.acquire().await?)
    }

    async fn attempts(&self, operation: &'static str) -> Retries<'_> {
        Retries::new(self, operation)
    }

    async fn describe(&self) -> Result<StoreInfo, StoreError> {
        if self.pool.is_closed() {
            return Err(StoreError::Closed { place: self.place.clone() });
        }
        Ok(StoreInfo {
            kind: "postgres",
            version: self.version.clone(),
            place: self.place.clone(),
            schema_version: migrations::NEWEST,
            is_read_only: self.is_read_only,
        })
    }

    async fn measure(&self) -> Result<u64, StoreError> {
        self.size().await.map_err(|fault| self.store_error("measuring the database", fault))
    }

    async fn release(&self) -> Result<(), StoreError> {
        // The server releases space by itself.
        Ok(())
    }

    async fn reach(&self) -> Result<(), StoreError> {
        let mut kept = self.probing.lock().await;
        let probed = connection::probe(&mut kept, &self.options).await;
        probed.map_err(|fault| self.store_error("probing", fault))
    }

    async fn end(&self) -> Result<(), StoreError> {
        self.pool.close().await;
        // The connection is closed without the protocol's farewell, as if the client had crashed. No query is running
        // on it.
        self.probing.lock().await.take();
        Ok(())
    }
}
