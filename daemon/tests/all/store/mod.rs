//! Shared code of the store tests: the three backends, each created for one test, and the cases.
//!
//! Postgres is never skipped. Without a cluster its tests fail, and the error explains how to get one.
#![allow(dead_code, reason = "each test program uses its own part")]

pub mod alert_records;
pub mod appends;
pub mod made;
pub mod reading;
pub mod retention;
pub mod sessions;
pub mod tenants;

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use memctl_daemon::store::{PostgresStore, SqliteStore, Store};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};

/// The kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Memory,
    Sqlite,
    Postgres,
}

/// Runs a case on a fresh store and closes it.
pub async fn run<F: Future<Output = ()>>(backend: Backend, case: impl FnOnce(Arc<dyn Store>) -> F) {
    match backend {
        Backend::Memory => with(Arc::new(SqliteStore::in_memory().await.unwrap()), case).await,
        Backend::Sqlite => {
            let folder = tempfile::tempdir().unwrap();
            with(Arc::new(sqlite(folder.path()).await), case).await;
        }
        Backend::Postgres => {
            let database = Database::make().await;
            with(Arc::new(PostgresStore::open(&database.url).await.unwrap()), case).await;
            database.drop().await;
        }
    }
}

async fn with<F: Future<Output = ()>>(store: Arc<dyn Store>, case: impl FnOnce(Arc<dyn Store>) -> F) {
    case(store.clone()).await;
    store.close().await.unwrap();
}

/// A SQLite store in a folder.
pub async fn sqlite(folder: &Path) -> SqliteStore {
    SqliteStore::open(&folder.join("memctl.db"), "a test").await.unwrap()
}

/// A database on the cluster for one test.
pub struct Database {
    pub url: String,
    name: String,
}

impl Database {
    pub async fn make() -> Self {
        // Relaxed: only the numbers must differ.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos();
        let name = format!("memctl_{}_{nanos}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        admin().await.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
        let url = admin_options().database(&name).to_url_lossy().to_string();
        Self { url, name }
    }

    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.unwrap()
    }

    pub async fn drop(self) {
        admin().await.execute(AssertSqlSafe(format!("DROP DATABASE {} WITH (FORCE)", self.name))).await.unwrap();
    }
}

fn admin_options() -> PgConnectOptions {
    let url = std::env::var("MEMCTL_TEST_POSTGRES").expect(
        "MEMCTL_TEST_POSTGRES is not set: it is the URL of a throw-away Postgres cluster; `./test` starts one, or `tests/postgres start DIR`",
    );
    PgConnectOptions::from_str(&url).unwrap()
}

async fn admin() -> PgConnection {
    admin_options().connect().await.unwrap()
}
