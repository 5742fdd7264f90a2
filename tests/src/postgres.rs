//! A database of one's own on the throw-away Postgres that `./test` starts.

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

async fn execute(url: &str, sql: &str) {
    let mut connection = PgConnection::connect(url).await.expect("the throw-away Postgres answers");
    // The text is made of our own constants and numbers.
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.expect("the statement runs");
    connection.close().await.expect("the connection closes");
}
