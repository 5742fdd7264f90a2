//! Tests of backups of either database, restored into either, with concurrent writers. Also tests what a check finds,
//! and what it does not.
//! (Over 400 lines: each case is independent, on both databases.)

use crate::store;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memctl_daemon::store::checking::{Checked, Depth, check};
use memctl_daemon::store::copying::{backup, restore};
use memctl_daemon::store::{
    AlertKind, AlertPut, AlertRecord, AlertSelection, DeviceUpdate, Gap, Selection, Store, StoreAddress, StoreError,
    Which, open as open_store,
};
use memctl_proto::v1::ItemKind;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};
use store::made::{self, NOW_NS, append, chunk, item, keyframe, open};
use store::{Backend, Database};

/// A place for a store of either database.
struct Ground {
    address: StoreAddress,
    database: Option<Database>,
}

impl Ground {
    async fn make(backend: Backend, folder: &Path, name: &str) -> Self {
        match backend {
            Backend::Postgres => {
                let database = Database::make().await;
                Self { address: StoreAddress::Postgres(database.url.clone()), database: Some(database) }
            }
            _ => Self { address: StoreAddress::Sqlite(folder.join(name).join("memctl.db")), database: None },
        }
    }

    async fn open(&self) -> Arc<dyn Store> {
        open_store(&self.address, "a test").await.unwrap()
    }

    /// Runs a statement without going through the store.
    async fn run(&self, statement: &str) {
        match &self.address {
            StoreAddress::Sqlite(path) => {
                let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path).foreign_keys(false);
                let mut connection = options.connect().await.unwrap();
                connection.execute(AssertSqlSafe(statement.replace("memctl.", ""))).await.unwrap();
                connection.close().await.unwrap();
            }
            _ => {
                let mut connection = self.database.as_ref().unwrap().connect().await;
                connection.execute(AssertSqlSafe(statement.to_owned())).await.unwrap();
            }
        }
    }

    async fn check(&self, deep: bool) -> Checked {
        let depth = if deep { Depth::Decoded } else { Depth::Rows };
        check(&self.address, depth).await.unwrap()
    }

    async fn remove(self) {
        if let Some(database) = self.database {
            database.drop().await;
        }
    }
}

/// Some data of every kind, and a deleted job.
async fn fill(store: &dyn Store) {
    for (id, job) in [(1, "a"), (2, "a"), (3, "b"), (4, "gone")] {
        let key = open(store, id, job, id).await;
        let mut items = vec![chunk(3, 0), item(4, ItemKind::Marks, None), keyframe(5, 10), chunk(6, 1)];
        items.extend((7..40).map(|seq| item(seq, ItemKind::SiteTables, None)));
        let mut sent = append(key, items);
        sent.gaps = vec![Gap { first: 1, last: 2 }];
        sent.duplicates = 1;
        sent.devices = vec![DeviceUpdate {
            seq: 3,
            device: 0,
            events: 10,
            steps: u64::from(id),
            latest: Some(made::latest(u64::MAX)),
            device_used_bytes: Some(u64::MAX),
            ..DeviceUpdate::default()
        }];
        sent.epoch_ends = vec![made::epoch_end(0, 1, 7)];
        sent.end = (id != 2).then(|| made::end(20));
        store.append(vec![sent]).await.unwrap();
        store.put_holders(&made::holders(key, u64::from(id), 10)).await.unwrap();
        let mut failed = made::holders(key, NOW_NS, 0);
        (failed.index.finding, failed.index.counted_epoch, failed.index.unasked) = (None, None, false);
        store.put_holders(&failed).await.unwrap();
    }
    let gone = store.job(&Which::written("gone"), None).await.unwrap().unwrap().key;
    store.delete_job(gone).await.unwrap();
    let record = AlertRecord {
        kind: AlertKind::Silence,
        tenant: "vision".into(),
        id: u64::MAX - 1,
        version: 0,
        job: "ä\u{1f600}".into(),
        due_ns: 5,
        body: vec![0, 255, 1].into(),
    };
    store.put_alert_records(&[AlertPut { record, expected_version: 0, remove: false }]).await.unwrap();
}

/// The results of all queries.
async fn contents(store: &dyn Store) -> String {
    let mut dump = format!("{:?}\n", store.totals().await.unwrap());
    dump += &format!("{:?}\n", store.alert_records(AlertSelection::All(AlertKind::Silence)).await.unwrap());
    for job in store.jobs(100).await.unwrap() {
        dump += &format!("{job:?}\n{:?}\n", store.devices(job.key).await.unwrap());
        dump += &format!("{:?}\n{:?}\n", store.epoch_ends(job.key).await.unwrap(), store.gaps(job.key).await.unwrap());
        let kept = store.holders_kept(job.key).await.unwrap();
        assert_eq!(kept.len(), 2 * store.sessions(job.key).await.unwrap().len());
        for kept in kept {
            dump += &format!("{:?}\n", store.holders(job.key, kept.session, kept.asked_ns).await.unwrap().unwrap());
        }
        for session in store.sessions(job.key).await.unwrap() {
            dump += &format!("{session:?}\n");
            for device in [0, 1] {
                dump += &format!("{:?}\n", store.chunks(session.key, device, Selection::default()).await.unwrap());
            }
            for kind in [ItemKind::Marks, ItemKind::SiteTables, ItemKind::Keyframe] {
                dump += &format!("{:?}\n", store.items(session.key, kind, None, Selection::default()).await.unwrap());
            }
            dump += &format!("{:?}\n", store.payloads(session.key, &(1..50).collect::<Vec<_>>()).await.unwrap());
        }
    }
    dump += &format!("{:?}\n", store.kept_bytes().await.unwrap());
    dump
}

async fn goes_from_to(from: Backend, to: Backend) {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) =
        (Ground::make(from, folder.path(), "from").await, Ground::make(to, folder.path(), "to").await);
    let store = source.open().await;
    fill(&*store).await;
    let before = contents(&*store).await;
    let file = folder.path().join("backup.db");
    let copied = backup(&source.address, &file).await.unwrap();
    assert_eq!((copied.totals.jobs, copied.totals.sessions), (2, 3));
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "private to its owner");
    }
    // The backup does not include later data.
    open(&*store, 9, "later", 0).await;
    store.close().await.unwrap();
    let restored = restore(&file, &target.address, false).await.unwrap();
    assert_eq!((restored.totals.jobs, restored.totals.sessions), (2, 3));
    assert_eq!(restored.totals.stored_bytes, copied.totals.stored_bytes);
    let store = target.open().await;
    assert_eq!(contents(&*store).await, before);
    // The restored store works, and no key is reused.
    let key = open(&*store, 10, "new", 0).await;
    assert!(key > 4, "{key}");
    store.append(vec![append(key, vec![chunk(1, 0)])]).await.unwrap();
    let known = open(&*store, 2, "a", 2).await;
    store.append(vec![append(known, vec![chunk(40, 0)])]).await.unwrap();
    store.close().await.unwrap();
    let checked = target.check(false).await;
    assert_eq!(checked.problems, []);
    let left: Vec<PathBuf> = folder.path().read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.iter().all(|path| !path.to_string_lossy().contains("partial")), "{left:?}");
    source.remove().await;
    target.remove().await;
}

#[tokio::test]
async fn sqlite_to_sqlite() {
    goes_from_to(Backend::Sqlite, Backend::Sqlite).await;
}

#[tokio::test]
async fn sqlite_to_postgres() {
    goes_from_to(Backend::Sqlite, Backend::Postgres).await;
}

#[tokio::test]
async fn postgres_to_sqlite() {
    goes_from_to(Backend::Postgres, Backend::Sqlite).await;
}

#[tokio::test]
async fn postgres_to_postgres() {
    goes_from_to(Backend::Postgres, Backend::Postgres).await;
}

/// Checks that a backup during appends is the state at one moment, and that no append is lost.
async fn is_one_moment(backend: Backend) {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::make(backend, folder.path(), "live").await;
    let store = ground.open().await;
    let mut keys = Vec::new();
    for id in 1..=4 {
        keys.push(open(&*store, id, "job", id).await);
    }
    let (stop, stored) = (Arc::new(AtomicBool::new(false)), tokio::sync::watch::channel(0_u64));
    let appending = {
        let (store, keys, stop, stored) = (store.clone(), keys.clone(), stop.clone(), stored.0);
        tokio::spawn(async move {
            let mut next = 1;
            // Relaxed: the flag only has to be noticed at some time.
            while !stop.load(Ordering::Relaxed) {
                let items = |_: &i64| (next..next + 5).map(|seq| chunk(seq, 0)).collect::<Vec<_>>();
                store.append(keys.iter().map(|key| append(*key, items(key))).collect()).await.unwrap();
                next += 5;
                stored.send_replace(next - 1);
                tokio::task::yield_now().await;
            }
            next - 1
        })
    };
    let mut progress = stored.1;
    let mut seen = Vec::new();
    for round in 0..3_u64 {
        progress.wait_for(|stored| *stored > round * 20).await.unwrap();
        let file = folder.path().join(format!("backup-{round}.db"));
        let copied = backup(&ground.address, &file).await.unwrap();
        let target = Ground::make(Backend::Sqlite, folder.path(), &format!("restored-{round}")).await;
        restore(&file, &target.address, false).await.unwrap();
        assert_eq!(target.check(false).await.problems, []);
        let restored = target.open().await;
        let rows = restored.sessions(restored.job(&Which::Latest, None).await.unwrap().unwrap().key).await.unwrap();
        // An append names all four sessions, so all of them must be equally far.
        assert!(rows.iter().all(|row| row.durable_seq == rows[0].durable_seq && row.events == row.durable_seq * 10));
        assert_eq!(copied.totals.events, rows.iter().map(|row| row.events).sum::<u64>());
        restored.close().await.unwrap();
        seen.push(rows[0].durable_seq);
        assert_eq!(ground.check(false).await.problems, [], "beside who writes");
    }
    stop.store(true, Ordering::Relaxed);
    let last = appending.await.unwrap();
    assert!(seen.is_sorted() && *seen.last().unwrap() < last, "in the midst: {seen:?} of {last}");
    let rows = store.sessions(store.job(&Which::Latest, None).await.unwrap().unwrap().key).await.unwrap();
    assert!(rows.iter().all(|row| row.durable_seq == last && row.events == last * 10));
    store.close().await.unwrap();
    ground.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sqlite_backup_while_items_come_in_is_one_moment() {
    is_one_moment(Backend::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_backup_while_items_come_in_is_one_moment() {
    is_one_moment(Backend::Postgres).await;
}

#[tokio::test]
async fn nothing_is_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup.db");
    for backend in [Backend::Sqlite, Backend::Postgres] {
        let ground = Ground::make(backend, folder.path(), "full").await;
        let store = ground.open().await;
        fill(&*store).await;
        let before = contents(&*store).await;
        store.close().await.unwrap();
        let _ = std::fs::remove_file(&file);
        backup(&ground.address, &file).await.unwrap();
        let bytes = std::fs::read(&file).unwrap();
        let error = backup(&ground.address, &file).await.unwrap_err();
        assert!(matches!(&error, StoreError::Refused { what, .. } if what.contains("exists already")), "{error}");
        assert!(std::fs::read(&file).unwrap() == bytes);
        let error = restore(&file, &ground.address, false).await.unwrap_err();
        assert!(matches!(&error, StoreError::Refused { what, .. } if what.contains("holds 2 jobs")), "{error}");
        let store = ground.open().await;
        assert_eq!(contents(&*store).await, before);
        store.close().await.unwrap();
        ground.remove().await;
    }
}

#[tokio::test]
async fn what_is_no_sound_backup_is_not_restored() {
    let folder = tempfile::tempdir().unwrap();
    let target = Ground::make(Backend::Sqlite, folder.path(), "to").await;
    let (text, other, damaged) =
        (folder.path().join("text"), folder.path().join("other.db"), folder.path().join("damaged.db"));
    std::fs::write(&text, "no database, and longer than a header of one".repeat(100)).unwrap();
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&other).create_if_missing(true);
    let mut connection = options.connect().await.unwrap();
    connection.execute("CREATE TABLE mine (x)").await.unwrap();
    connection.close().await.unwrap();
    let source = Ground::make(Backend::Sqlite, folder.path(), "from").await;
    let store = source.open().await;
    fill(&*store).await;
    store.close().await.unwrap();
    backup(&source.address, &damaged).await.unwrap();
    let mut bytes = std::fs::read(&damaged).unwrap();
    let middle = bytes.len() / 2 / 16_384 * 16_384;
    bytes[middle..middle + 16_384].fill(0xa5);
    std::fs::write(&damaged, &bytes).unwrap();
    let (empty, cut) = (folder.path().join("empty.db"), folder.path().join("cut.db"));
    std::fs::write(&empty, b"").unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() - 16_384]).unwrap();
    for path in [&damaged, &empty, &cut] {
        let error = restore(path, &target.address, true).await.unwrap_err().to_string();
        assert!(error.contains("is no sound backup") && error.contains("restore another backup"), "{error}");
        assert!(!error.contains('\n') && error.contains("damaged, and --damaged cannot help") == (path == &damaged));
    }
    for path in [text, other, damaged, empty, cut, folder.path().join("nothing")] {
        let error = restore(&path, &target.address, false).await.unwrap_err();
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
    let StoreAddress::Sqlite(path) = &target.address else { panic!("a file") };
    assert!(!path.exists(), "nothing was made of it");
}

#[tokio::test]
async fn a_backup_with_a_changed_item_is_restored_only_when_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let [source, target] = ["from", "to"].map(|name| Ground::make(Backend::Sqlite, folder.path(), name));
    let (source, target) = (source.await, target.await);
    let store = source.open().await;
    fill(&*store).await;
    store.close().await.unwrap();
    let file = folder.path().join("backup.db");
    backup(&source.address, &file).await.unwrap();
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&file);
    let mut connection = options.connect().await.unwrap();
    connection.execute("UPDATE session SET durable_seq = -5 WHERE rank = 1").await.unwrap();
    connection.close().await.unwrap();
    let error = restore(&file, &target.address, false).await.unwrap_err();
    assert!(error.to_string().contains("no sound backup") && error.to_string().contains("--damaged"), "{error}");
    let StoreAddress::Sqlite(path) = &target.address else { panic!("a file") };
    assert!(!path.exists(), "nothing was made of it");
    assert_eq!(restore(&file, &target.address, true).await.unwrap().totals.jobs, 2);
}

/// Statements that damage a store, with the report of the check.
const BREAKS: [(&str, &str); 9] = [
    ("UPDATE memctl.session SET stored_items = stored_items + 1 WHERE rank = 1", "items are stored, and"),
    ("UPDATE memctl.session SET stored_bytes = stored_bytes - 1 WHERE rank = 1", "bytes are stored, and its items are"),
    ("UPDATE memctl.session SET events = events + 5 WHERE rank = 1", "its chunks hold"),
    ("UPDATE memctl.session SET missing_items = 1 WHERE rank = 1", "its gaps are 2"),
    ("UPDATE memctl.session SET durable_seq = 38 WHERE rank = 1", "stored above number 38"),
    ("DELETE FROM memctl.payload WHERE seq = 3 AND session_id = 1", "1 chunks have no payload"),
    ("DELETE FROM memctl.item WHERE seq = 9 AND session_id = 1", "37 payloads, and 36 chunks and items"),
    ("UPDATE memctl.item SET session_id = 77 WHERE seq = 9 AND session_id = 1", "belong to it, and it does not exist"),
    ("UPDATE memctl.holders SET job_id = 77 WHERE session_id = 1", "2 answers about holders belong to it"),
];

#[tokio::test]
async fn a_check_finds_what_does_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    for backend in [Backend::Sqlite, Backend::Postgres] {
        for (number, (statement, expected)) in BREAKS.into_iter().enumerate() {
            let ground = Ground::make(backend, folder.path(), &number.to_string()).await;
            let store = ground.open().await;
            fill(&*store).await;
            store.close().await.unwrap();
            assert_eq!(ground.check(false).await.problems, [], "{backend:?}");
            ground.run(statement).await;
            let checked = ground.check(false).await;
            assert!(
                checked.problems.iter().any(|problem| problem.what.contains(expected)),
                "{backend:?}: {statement}: {:?}",
                checked.problems
            );
            assert_eq!(checked.problems_found as usize, checked.problems.len());
            ground.remove().await;
        }
    }
}

#[tokio::test]
async fn a_deep_check_reads_every_item() {
    use memctl_model::{Mark, MarkKind};
    use memctl_proto::item::Packed;

    let folder = tempfile::tempdir().unwrap();
    for backend in [Backend::Sqlite, Backend::Postgres] {
        let ground = Ground::make(backend, folder.path(), "deep").await;
        let store = ground.open().await;
        let key = open(&*store, 1, "job", 0).await;
        let items = (1..=40).map(|seq| {
            let marks = [Mark { time_ns: NOW_NS, kind: MarkKind::StepEnd(seq) }];
            let packed = Packed::marks(&marks, 1);
            let mut made = item(seq, ItemKind::Marks, None);
            (made.payload, made.unpacked_bytes) = (packed.payload, packed.unpacked_bytes);
            made
        });
        store.append(vec![append(key, items.collect())]).await.unwrap();
        store.close().await.unwrap();
        let checked = ground.check(true).await;
        assert_eq!((checked.problems, checked.items_read, checked.items_without_checksum), (vec![], 40, 0));
        // Three items are damaged: one with changed bytes, one of an older version with changed bytes, and one with
        // another length.
        let sqlite = backend == Backend::Sqlite;
        let blob = if sqlite { "x'ffff'" } else { "'\\xffff'::bytea" };
        ground.run(&format!("UPDATE memctl.payload SET bytes = {blob} WHERE seq IN (7, 8)")).await;
        ground.run("UPDATE memctl.payload SET checksum = NULL WHERE seq IN (8, 9)").await;
        ground.run("UPDATE memctl.item SET payload_bytes = 2 WHERE seq = 8").await;
        let checked = ground.check(true).await;
        let damaged: Vec<_> =
            checked.problems.iter().filter_map(|problem| Some((problem.session?, problem.item?))).collect();
        assert_eq!(damaged, [(key, 7), (key, 8)], "{:?}", checked.problems);
        assert_eq!((checked.items_read, checked.items_without_checksum), (40, 2));
        assert!(checked.problems.iter().any(|problem| problem.what.contains("checksum")), "{:?}", checked.problems);
        ground.remove().await;
    }
}

#[tokio::test]
async fn a_deep_check_reads_every_answer_about_holders() {
    let folder = tempfile::tempdir().unwrap();
    for backend in [Backend::Sqlite, Backend::Postgres] {
        let ground = Ground::make(backend, folder.path(), "answers").await;
        let store = ground.open().await;
        let key = open(&*store, 1, "job", 0).await;
        let job = store.job(&Which::Latest, None).await.unwrap().unwrap().key;
        for asked_ns in 1..=5 {
            store.put_holders(&made::holders(key, asked_ns, 20)).await.unwrap();
        }
        // This row is undamaged, but it does not decode as an answer.
        let mut odd = made::holders(key, 6, 20);
        odd.answer = vec![0xff, 0xff].into();
        store.put_holders(&odd).await.unwrap();
        store.close().await.unwrap();
        let blob = if backend == Backend::Sqlite { "x'ffff'" } else { "'\\xffff'::bytea" };
        ground.run(&format!("UPDATE memctl.holders SET answer = {blob} WHERE asked_ns = 3")).await;
        assert_eq!(ground.check(false).await.problems, []);
        let problems = ground.check(true).await.problems;
        let [bytes, decoding] = problems.as_slice() else { panic!("{problems:?}") };
        assert_eq!((bytes.session, decoding.session), (Some(key), Some(key)));
        let said = "the answer about holders of 3 ns is damaged: its bytes are not those that were stored (checksum)";
        assert_eq!(bytes.what, said);
        assert!(decoding.what.starts_with("the answer about holders of 6 ns is damaged: "), "{problems:?}");
        // Only the damaged item is affected.
        let store = ground.open().await;
        assert_eq!(store.holders_kept(job).await.unwrap().len(), 6);
        assert_eq!(store.holders(job, key, 3).await.unwrap(), None);
        assert!(store.holders(job, key, 4).await.unwrap().is_some());
        assert_eq!(store.damaged(), []);
        store.close().await.unwrap();
        ground.remove().await;
    }
}

#[tokio::test]
async fn a_damaged_page_is_told_and_does_not_end_a_check() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::make(Backend::Sqlite, folder.path(), "damaged").await;
    let store = ground.open().await;
    fill(&*store).await;
    store.close().await.unwrap();
    let StoreAddress::Sqlite(path) = &ground.address else { panic!("a file") };
    let whole = std::fs::read(path).unwrap();
    let (mut reported, mut refused) = (0, 0);
    for page in 1..whole.len() / 16_384 {
        let mut bytes = whole.clone();
        bytes[page * 16_384..(page + 1) * 16_384].fill(0xa5);
        std::fs::write(path, &bytes).unwrap();
        match check(&ground.address, Depth::Decoded).await {
            Ok(checked) => reported += usize::from(checked.problems_found > 0),
            Err(_) => refused += 1,
        }
    }
    assert!(reported >= 5, "{reported} damages were reported, {refused} files could not be opened at all");
}
