//! A separate database on the throw-away Postgres that `./test` starts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

/// A database that exists as long as this value.
pub struct Database {
    admin: String,
    name: String,
    /// Its URL.
    pub url: String,
}

/// The admin URL of the throw-away cluster.
///
/// # Panics
/// When none was started.
#[must_use]
pub fn admin_url() -> String {
    std::env::var("MEMCTL_TEST_POSTGRES").expect(
        "MEMCTL_TEST_POSTGRES is not set: ./test starts a throw-away Postgres and sets it (tests/postgres start DIR)",
    )
}

impl Database {
    /// Makes one.
    ///
    /// # Panics
    /// When the cluster does not answer.
    pub async fn create() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let admin = admin_url();
        // Relaxed: only distinct numbers are needed.
        let name = format!("memctl_e2e_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        execute(&admin, &format!("CREATE DATABASE {name}")).await;
        let (base, query) = admin.split_once('?').map_or((admin.as_str(), ""), |(base, query)| (base, query));
        let server = base.rsplit_once('/').map_or(base, |(server, _)| server);
        let url = if query.is_empty() { format!("{server}/{name}") } else { format!("{server}/{name}?{query}") };
        Self { admin, name, url }
    }

    /// Drops it.
    ///
    /// # Panics
    /// When the cluster does not answer.
    pub async fn remove(self) {
        execute(&self.admin, &format!("DROP DATABASE {} WITH (FORCE)", self.name)).await;
    }
}

/// Starts a separate cluster in a folder; returns its URL. If the folder has a cluster already, starts it on the same
/// port.
///
/// # Panics
/// When it does not start.
#[must_use]
pub fn start(folder: &Path) -> String {
    let output = Command::new(script()).arg("start").arg(folder).output().expect("tests/postgres runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("a URL").trim().to_owned()
}

/// Stops it.
pub fn stop(folder: &Path) {
    // The cluster may be down already, if a test of its crashes failed.
    let _ = Command::new(script()).arg("stop").arg(folder).status();
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("postgres")
}

/// The server process of a connection other than this one.
///
/// # Panics
/// When there is none.
pub async fn pid_of_a_connection(url: &str) -> u32 {
    let mut connection = PgConnection::connect(url).await.expect("the cluster answers");
    let pids = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
        ORDER BY state_change DESC LIMIT 1";
    let pid: i32 = sqlx::query_scalar(pids).fetch_one(&mut connection).await.expect("a connection");
    // The cluster is about to crash, so the connection closes without a message.
    drop(connection);
    pid.unsigned_abs()
}

async fn execute(url: &str, sql: &str) {
    let mut connection = PgConnection::connect(url).await.expect("the throw-away Postgres answers");
    // The text consists of our own constants and numbers.
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.expect("the statement runs");
    connection.close().await.expect("the connection closes");
}
