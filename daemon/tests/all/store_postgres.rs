//! Tests of features that only a server has: two daemons on one database, lost connections, standbys, serializable
//! isolation.

use crate::store;

use std::sync::Arc;

use memctl_daemon::store::{PostgresStore, Selection, Store, StoreError};
use sqlx::{AssertSqlSafe, Executor};
use store::Database;
use store::made::{NOW_NS, append, chunk, open, session};

async fn opened(url: &str) -> PostgresStore {
    PostgresStore::open(url).await.unwrap()
}

async fn open_error(url: &str) -> StoreError {
    PostgresStore::open(url).await.err().expect("it opens")
}

#[tokio::test]
async fn many_may_open_an_empty_database_at_once() {
    // The test is repeated, because it is random which statements collide, and each pair has its own error.
    for _ in 0..5 {
        let database = Database::make().await;
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let url = database.url.clone();
                tokio::spawn(async move { opened(&url).await })
            })
            .collect();
        for task in tasks {
            let store = task.await.unwrap();
            assert_eq!(store.totals().await.unwrap().jobs, 0);
            store.close().await.unwrap();
        }
        database.drop().await;
    }
}

#[tokio::test]
async fn two_daemons_on_one_database_store_once() {
    let database = Database::make().await;
    let (left, right) = (opened(&database.url).await, opened(&database.url).await);
    let key = open(&left, 1, "job", 0).await;
    assert_eq!(open(&right, 1, "job", 0).await, key);
    let items = || append(key, (1..50).map(|seq| chunk(seq, 0)).collect());
    let (one, two) = tokio::join!(left.append(vec![items()]), right.append(vec![items()]));
    one.unwrap();
    two.unwrap();
    assert_eq!(left.totals().await.unwrap().events, 490);
    assert_eq!(right.chunks(key, 0, Selection::default()).await.unwrap().len(), 49);
    left.close().await.unwrap();
    right.append(vec![append(key, vec![chunk(50, 0)])]).await.unwrap();
    right.close().await.unwrap();
    database.drop().await;
}

#[tokio::test]
async fn a_newer_database_is_left_alone() {
    let database = Database::make().await;
    opened(&database.url).await.close().await.unwrap();
    let newer = "INSERT INTO memctl.migration (version, description, success, checksum, execution_time) VALUES (99, 'x', true, '', 0)";
    database.connect().await.execute(newer).await.unwrap();
    let error = open_error(&database.url).await;
    assert!(matches!(error, StoreError::Newer { found: 99, known: 8, .. }), "{error}");
    database.drop().await;
}

#[tokio::test]
async fn other_tables_of_the_database_do_not_matter() {
    let database = Database::make().await;
    let mut connection = database.connect().await;
    for statement in
        ["CREATE TABLE job (x int)", "CREATE TABLE session (y int)", "CREATE TABLE _sqlx_migrations (z int)"]
    {
        connection.execute(statement).await.unwrap();
    }
    let store = opened(&database.url).await;
    open(&store, 1, "job", 0).await;
    store.close().await.unwrap();
    database.drop().await;
}

#[tokio::test]
async fn no_one_learns_the_password() {
    // Nothing listens on port 1. The other URLs cannot be parsed or name no existing database.
    let admin =
        std::env::var("MEMCTL_TEST_POSTGRES").expect("MEMCTL_TEST_POSTGRES is not set: `./test` starts a cluster");
    let no_such = format!("{}/memctl_no_such_database", admin.rsplit_once('/').unwrap().0).replace('@', ":hunter2@");
    for url in [
        "postgres://me:hunter2@127.0.0.1:1/db",
        "postgres://me:hunter2@127.0.0.1:port/db",
        "postgres://me:hun%ter2@[::1/db",
        &no_such,
    ] {
        let error = open_error(url).await;
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("hun") && shown.contains("postgres://"), "{shown}");
    }
}

#[tokio::test]
async fn a_read_only_server_is_told() {
    let database = Database::make().await;
    let name = database.url.rsplit_once('/').unwrap().1.split('?').next().unwrap().to_owned();
    let read_only = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
    database.connect().await.execute(AssertSqlSafe(read_only)).await.unwrap();
    let error = open_error(&database.url).await;
    assert!(matches!(error, StoreError::ReadOnly { .. }), "{error}");
    database.drop().await;
}

#[tokio::test]
async fn a_full_server_takes_nothing_half_and_goes_on_when_there_is_room() {
    let database = Database::make().await;
    let store = opened(&database.url).await;
    let key = open(&store, 1, "job", 0).await;
    let mut connection = database.connect().await;
    // The server's own message for a full disk appears in the middle of the transaction, because chunks follow
    // payloads.
    for statement in [
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = 'disk_full'; END $$",
        "CREATE TRIGGER full_disk BEFORE INSERT ON memctl.chunk EXECUTE FUNCTION full_disk()",
    ] {
        connection.execute(statement).await.unwrap();
    }
    let error = store.append(vec![append(key, vec![chunk(1, 0)])]).await.unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert_eq!(store.payloads(key, &[1]).await.unwrap(), []);
    assert_eq!(store.totals().await.unwrap().events, 0);
    connection.execute("DROP TRIGGER full_disk ON memctl.chunk").await.unwrap();
    store.append(vec![append(key, vec![chunk(1, 0)])]).await.unwrap();
    assert_eq!(store.totals().await.unwrap().events, 10);
    store.close().await.unwrap();
    database.drop().await;
}

#[tokio::test]
async fn lost_connections_are_made_again() {
    let database = Database::make().await;
    let store = opened(&database.url).await;
    let key = open(&store, 1, "job", 0).await;
    let mut connection = database.connect().await;
    let mut stored = 0;
    let mut lost = 0;
    for seq in 1..=10 {
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'memctl' AND datname = current_database()";
        lost += sqlx::query(end).fetch_all(&mut connection).await.unwrap().len();
        // A caller may get an error for the lost connection. After a repeat the append is stored once.
        for _ in 0..10 {
            match store.append(vec![append(key, vec![chunk(seq, 0)])]).await {
                Ok(()) => {
                    stored += 1;
                    break;
                }
                Err(error) => assert!(matches!(error, StoreError::Unreachable { .. }), "{error}"),
            }
        }
    }
    assert!(lost >= 10, "{lost} connections were ended");
    assert_eq!((stored, store.totals().await.unwrap().events), (10, 100));
    store.close().await.unwrap();
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serialization_failures_are_tried_again() {
    let database = Database::make().await;
    let name = database.url.rsplit_once('/').unwrap().1.split('?').next().unwrap().to_owned();
    let serializable = format!("ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'");
    let mut connection = database.connect().await;
    connection.execute(AssertSqlSafe(serializable)).await.unwrap();
    let store = Arc::new(opened(&database.url).await);
    let key = open(&*store, 1, "job", 0).await;
    let tasks: Vec<_> = (0..2)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                for seq in 1..=100 {
                    store.append(vec![append(key, vec![chunk(seq, 0)])]).await.unwrap();
                    store.open_session(&session(seq as u32 + 1, "job", 1), NOW_NS).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let totals = store.totals().await.unwrap();
    assert_eq!((totals.events, totals.sessions), (1_000, 101));
    store.close().await.unwrap();
    let conflicts = "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()";
    let conflicts: i64 = sqlx::query_scalar(conflicts).fetch_one(&mut connection).await.unwrap();
    assert!(conflicts > 0, "the server refused some");
    database.drop().await;
}
