//! Tests of databases with data from every earlier version. When they are opened today, they answer as if today's
//! version had stored the data.
//!
//! Such a database is created by the migrations of that version, and by rows in the form in which that version wrote
//! them.

use crate::store;

use std::path::Path;
use std::sync::Arc;

use memctl_daemon::store::checking::{Depth, check};
use memctl_daemon::store::{PostgresStore, Selection, SqliteStore, Store, StoreAddress, StoreError, Which};
use memctl_proto::v1;
use memctl_proto::v1::ItemKind;
use prost::Message;
use sqlx::SqlSafeStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};
use store::made::{self, NOW_NS, append, chunk, item, keyframe, open};
use store::{Backend, Database};

/// Number, name and SQL of all steps.
fn steps(backend: Backend) -> Vec<(i64, String, String)> {
    let folder = if backend == Backend::Postgres { "postgres" } else { "sqlite" };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations").join(folder);
    let mut files: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let step = |path: std::path::PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let (number, name) = name.split_once('_').unwrap();
        (number.parse().unwrap(), name.to_owned(), std::fs::read_to_string(path).unwrap())
    };
    files.into_iter().map(step).collect()
}

fn migrator(backend: Backend, count: usize) -> Migrator {
    let migration = |(number, name, sql): (i64, String, String)| {
        Migration::new(number, name.into(), MigrationType::Simple, AssertSqlSafe(sql).into_sql_str(), false)
    };
    let steps = steps(backend).into_iter().take(count).map(migration).collect();
    let mut migrator = Migrator::with_migrations(steps);
    migrator.dangerous_set_table_name(if backend == Backend::Postgres {
        "memctl.migration"
    } else {
        "memctl_migration"
    });
    migrator.set_locking(false);
    migrator
}

/// Rows in the form in which a version wrote them: today's rows, in SQL.
struct Rows(Backend);

impl Rows {
    fn blob(&self, bytes: &[u8]) -> String {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        if self.0 == Backend::Postgres { format!("'\\x{hex}'::bytea") } else { format!("x'{hex}'") }
    }

    fn table(&self, name: &str) -> String {
        if self.0 == Backend::Postgres { format!("memctl.{name}") } else { name.to_owned() }
    }

    fn insert(&self, table: &str, columns: &str, values: &[String]) -> String {
        let overriding = if self.0 == Backend::Postgres { " OVERRIDING SYSTEM VALUE" } else { "" };
        format!("INSERT INTO {} ({columns}){overriding} VALUES ({})", self.table(table), values.join(", "))
    }

    /// The rows of the first version, with the columns and rows that the schema after `count` steps adds.
    fn of_schema(&self, count: usize) -> Vec<String> {
        let mut rows = self.all();
        if count >= 5 {
            rows.push(format!("UPDATE {} SET stored_items = {}", self.table("session"), items().len()));
        }
        rows
    }

    fn all(&self) -> Vec<String> {
        let text = |text: &str| format!("'{text}'");
        let info = v1::SessionInfo::from(&made::session(1, "job", 0)).encode_to_vec();
        let end = v1::SessionEnd::from(&made::end(20)).encode_to_vec();
        let id = made::session(1, "job", 0).id.0;
        let mut rows = vec![
            self.insert("job", "job_id, name, attempt, started_ns, world_size, labels", &[
                "1".into(), text("job"), "0".into(), NOW_NS.to_string(), "4".into(), self.blob(&[]),
            ]),
            self.insert(
                "session",
                "session_id, job_id, id, rank, started_ns, info, durable_seq, heard_ns, last_word, events, stored_bytes, missing_items",
                &[
                    "1".into(), "1".into(), self.blob(&id), "0".into(), NOW_NS.to_string(), self.blob(&info), "6".into(),
                    NOW_NS.to_string(), self.blob(&end), "20".into(), "300".into(), "2".into(),
                ],
            ),
            self.insert("device", "job_id, session_id, device, info, events", &[
                "1".into(), "1".into(), "0".into(),
                self.blob(&v1::DeviceInfo::from(&made::device(0)).encode_to_vec()), "20".into(),
            ]),
            self.insert("gap", "job_id, session_id, first_seq, last_seq", &["1".into(), "1".into(), "1".into(), "2".into()]),
        ];
        let end = made::epoch_end(0, 1, 4);
        let figures = v1::SiteTable {
            boundary: v1::Boundary::EpochEnd as i32,
            epoch: end.epoch,
            step: end.step,
            time_ns: end.time_ns,
            at_event: end.at_event,
            exact: end.exact,
            counters: Some((&end.counters).into()),
            peaks: Some(end.peaks.into()),
            peaks_within: Some(end.peaks_within.into()),
            ..Default::default()
        };
        rows.push(self.insert(
            "epoch_end",
            "job_id, session_id, device, epoch, time_ns, table_seq, figures",
            &[
                "1".into(),
                "1".into(),
                "0".into(),
                "1".into(),
                end.time_ns.to_string(),
                "4".into(),
                self.blob(&figures.encode_to_vec()),
            ],
        ));
        for item in items() {
            rows.push(self.insert(
                "payload",
                "job_id, session_id, seq, bytes",
                &["1".into(), "1".into(), item.seq.to_string(), self.blob(&item.payload)],
            ));
            let index = item.index;
            let device = index.device.map_or("NULL".into(), |device| device.to_string());
            let covers = [
                index.first_ns,
                index.last_ns,
                index.first_event,
                index.count,
                u64::from(index.first_epoch),
                u64::from(index.last_epoch),
                index.first_step,
                index.last_step,
            ];
            let covers = covers.iter().map(u64::to_string);
            let bytes = item.payload.len().to_string();
            let mut values = vec!["1".to_owned(), "1".to_owned()];
            let columns = "first_ns, last_ns, first_event, entries, first_epoch, last_epoch, first_step, last_step";
            if let Some(levels) = item.levels {
                values.extend([device, item.seq.to_string()]);
                values.extend(covers);
                let figures = [
                    levels.allocated_end,
                    levels.reserved_end,
                    levels.allocated_min,
                    levels.allocated_max,
                    levels.reserved_max,
                    levels.ooms,
                    levels.dropped_before,
                ];
                values.extend(figures.iter().map(u64::to_string));
                let exact = if self.0 == Backend::Postgres {
                    levels.exact.to_string()
                } else {
                    u8::from(levels.exact).to_string()
                };
                values.extend([exact, bytes]);
                rows.push(self.insert("chunk", &format!(
                    "job_id, session_id, device, seq, {columns}, allocated_end, reserved_end, allocated_min, allocated_max, reserved_max, ooms, dropped_before, exact, payload_bytes"
                ), &values));
            } else {
                values.extend([(item.kind as i32).to_string(), item.seq.to_string(), device]);
                values.extend(covers);
                values.extend([item.unpacked_bytes.to_string(), bytes]);
                rows.push(self.insert(
                    "item",
                    &format!("job_id, session_id, kind, seq, device, {columns}, unpacked_bytes, payload_bytes"),
                    &values,
                ));
            }
        }
        if self.0 == Backend::Postgres {
            rows.push("SELECT setval(pg_get_serial_sequence('memctl.job', 'job_id'), 1)".into());
            rows.push("SELECT setval(pg_get_serial_sequence('memctl.session', 'session_id'), 1)".into());
        }
        rows
    }
}

fn items() -> Vec<memctl_daemon::store::NewItem> {
    vec![chunk(3, 0), item(4, ItemKind::SiteTables, None), keyframe(5, 10), chunk(6, 0)]
}

/// The same data, stored by today's version.
async fn today(store: &dyn Store) {
    let key = open(store, 1, "job", 0).await;
    let mut sent = append(key, items());
    sent.gaps = vec![memctl_daemon::store::Gap { first: 1, last: 2 }];
    sent.devices = vec![memctl_daemon::store::DeviceUpdate { seq: 3, device: 0, events: 20, ..Default::default() }];
    sent.epoch_ends = vec![made::epoch_end(0, 1, 4)];
    sent.end = Some(made::end(20));
    store.append(vec![sent]).await.unwrap();
}

/// The results of all queries, without keys.
async fn contents(store: &dyn Store) -> String {
    let job = store.job(&Which::written("job"), None).await.unwrap().unwrap();
    let mut session = store.sessions(job.key).await.unwrap().remove(0);
    let key = std::mem::take(&mut session.key);
    session.job = 0;
    let mut devices = store.devices(job.key).await.unwrap();
    devices.iter_mut().for_each(|device| device.session = 0);
    let mut ends = store.epoch_ends(job.key).await.unwrap();
    ends.iter_mut().for_each(|end| end.session = 0);
    let gaps: Vec<_> = store.gaps(job.key).await.unwrap().into_iter().map(|(_, gap)| gap).collect();
    let mut dump = format!("{:?}\n{session:?}\n{devices:?}\n{ends:?}\n{gaps:?}\n", store.totals().await.unwrap());
    dump += &format!("{:?}\n", store.chunks(key, 0, Selection::default()).await.unwrap());
    dump += &format!("{:?}\n", store.items(key, ItemKind::SiteTables, None, Selection::default()).await.unwrap());
    dump += &format!("{:?}\n", store.keyframe_before(key, 0, 99).await.unwrap());
    dump += &format!("{:?}\n", store.payloads(key, &[1, 2, 3, 4, 5, 6]).await.unwrap());
    dump
}

async fn expected() -> String {
    let store = SqliteStore::in_memory().await.unwrap();
    today(&store).await;
    contents(&store).await
}

async fn goes_on(store: Arc<dyn Store>) {
    let key = open(&*store, 2, "job", 1).await;
    store.append(vec![append(key, vec![chunk(1, 0), item(2, ItemKind::Marks, None)])]).await.unwrap();
    assert_eq!(store.totals().await.unwrap().sessions, 2);
    // Sessions from earlier versions get later columns too.
    let job = store.job(&Which::written("job"), None).await.unwrap().unwrap().key;
    for session in store.sessions(job).await.unwrap() {
        let row = made::holders(session.key, NOW_NS + session.key.unsigned_abs(), 9);
        store.put_holders(&row).await.unwrap();
        let read = store.holders(job, session.key, row.index.asked_ns).await.unwrap();
        assert_eq!(read, Some(row));
    }
    assert_eq!(store.holders_kept(job).await.unwrap().len(), 2);
    store.close().await.unwrap();
}

#[tokio::test]
async fn every_earlier_sqlite_file_is_brought_up_to_date() {
    let (all, expected) = (steps(Backend::Sqlite), expected().await);
    for count in 1..all.len() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memctl.db");
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path).create_if_missing(true);
        let mut connection = options.connect().await.unwrap();
        migrator(Backend::Sqlite, count).run_direct(None, &mut connection, false).await.unwrap();
        for row in Rows(Backend::Sqlite).of_schema(count) {
            connection.execute(AssertSqlSafe(row)).await.unwrap();
        }
        connection.close().await.unwrap();
        let Err(error) = SqliteStore::open_read_only(&path).await else { panic!("its schema is old") };
        assert!(error.to_string().contains(&format!("its schema version is {}", all[count - 1].0)), "{error}");
        let store = SqliteStore::open(&path, "a test").await.unwrap();
        assert_eq!(contents(&store).await, expected, "schema {}", all[count - 1].0);
        goes_on(Arc::new(store)).await;
        assert_eq!(check(&StoreAddress::Sqlite(path), Depth::Rows).await.unwrap().problems, []);
    }
}

#[tokio::test]
async fn every_earlier_postgres_database_is_brought_up_to_date() {
    let (all, expected) = (steps(Backend::Postgres), expected().await);
    for count in 1..all.len() {
        let database = Database::make().await;
        let mut connection = database.connect().await;
        connection.execute("CREATE SCHEMA memctl").await.unwrap();
        migrator(Backend::Postgres, count).run_direct(None, &mut connection, false).await.unwrap();
        for row in Rows(Backend::Postgres).of_schema(count) {
            connection.execute(AssertSqlSafe(row)).await.unwrap();
        }
        connection.close().await.unwrap();
        let Err(error) = PostgresStore::open_read_only(&database.url).await else { panic!("its schema is old") };
        assert!(matches!(&error, StoreError::Unreachable { .. }), "{error}");
        let store = PostgresStore::open(&database.url).await.unwrap();
        assert_eq!(contents(&store).await, expected, "schema {}", all[count - 1].0);
        goes_on(Arc::new(store)).await;
        let address = StoreAddress::Postgres(database.url.clone());
        assert_eq!(check(&address, Depth::Rows).await.unwrap().problems, []);
        database.drop().await;
    }
}

#[tokio::test]
async fn a_backup_of_an_earlier_version_is_restored() {
    let (all, expected) = (steps(Backend::Sqlite), expected().await);
    let folder = tempfile::tempdir().unwrap();
    for count in 1..all.len() {
        let place = |name: &str| folder.path().join(format!("{name}-{count}.db"));
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(place("old")).create_if_missing(true);
        let mut connection = options.connect().await.unwrap();
        migrator(Backend::Sqlite, count).run_direct(None, &mut connection, false).await.unwrap();
        for row in Rows(Backend::Sqlite).of_schema(count) {
            connection.execute(AssertSqlSafe(row)).await.unwrap();
        }
        connection.close().await.unwrap();
        let (backup, new) = (place("backup"), place("new"));
        memctl_daemon::store::copying::backup(&StoreAddress::Sqlite(place("old")), &backup).await.unwrap();
        let before = std::fs::read(&backup).unwrap();
        memctl_daemon::store::copying::restore(&backup, &StoreAddress::Sqlite(new.clone()), false).await.unwrap();
        assert!(std::fs::read(&backup).unwrap() == before, "the backup stays as it is");
        let store = SqliteStore::open(&new, "a test").await.unwrap();
        assert_eq!(contents(&store).await, expected);
        store.close().await.unwrap();
    }
}
