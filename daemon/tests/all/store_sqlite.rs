//! Tests of problems that only a file has: crashes, second openers, foreign and damaged files, full disks.
//! (Over 400 lines: each fault is independent.)

use crate::store;

use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use memctl_daemon::store::sqlite::SqliteOptions;
use memctl_daemon::store::{NewItem, Retention, Selection, SqliteStore, Store, StoreError, Which};
use memctl_proto::v1::ItemKind;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};
use store::made::{NOW_NS, append, chunk, holders, item, keyframe, open, payload, session};

fn file(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("memctl.db")
}

async fn opened(path: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(path, "a test").await
}

async fn raw(path: &Path) -> SqliteConnection {
    SqliteConnectOptions::new().filename(path).create_if_missing(true).connect().await.unwrap()
}

fn large(seq: u64) -> NewItem {
    NewItem { payload: payload(seq, 64 << 10), ..chunk(seq, 0) }
}

/// Checks that the first session is stored consistently: `durable` chunks with their payloads and sums.
async fn assert_whole(store: &SqliteStore, key: i64, durable: u64) {
    let job = store.job(&Which::Latest, None).await.unwrap().unwrap();
    let row = store.sessions(job.key).await.unwrap().remove(0);
    let chunks = store.chunks(key, 0, Selection::default()).await.unwrap();
    assert_eq!((row.durable_seq, row.events), (durable, durable * 10));
    assert!(chunks.iter().map(|chunk| chunk.seq).eq(1..=durable));
    assert_eq!(row.stored_bytes, chunks.iter().map(|chunk| chunk.payload_bytes).sum::<u64>());
    let seqs: Vec<u64> = (0..durable + 64).collect();
    let payloads = store.payloads(key, &seqs).await.unwrap();
    assert_eq!(payloads.len() as u64, durable);
    assert!(payloads.iter().all(|(seq, bytes)| *bytes == payload(*seq, bytes.len())));
}

#[tokio::test]
async fn everything_is_there_after_closing_and_after_not_closing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/deep/memctl.db");
    let mut durable = 0;
    for close in [true, false, true, false] {
        let store = opened(&path).await.unwrap();
        let key = open(&store, 1, "job", 0).await;
        assert_whole(&store, key, durable).await;
        store.append(vec![append(key, (durable + 1..durable + 8).map(large).collect())]).await.unwrap();
        durable += 7;
        if close {
            store.close().await.unwrap();
            assert!(!path.with_extension("db-wal").exists(), "the log is in the file");
        }
    }
}

const CHILD_FILE: &str = "MEMCTL_TEST_CHILD_FILE";

/// This is not a test of its own. It is the process that [`acknowledged_items_survive_a_kill`] starts and kills.
#[tokio::test]
#[ignore = "the child of another test"]
async fn child_that_is_killed() {
    let path = std::env::var_os(CHILD_FILE).expect("started by its parent");
    let store = opened(Path::new(&path)).await.unwrap();
    let opened = store.open_session(&session(1, "job", 0), NOW_NS).await.unwrap();
    let mut next = opened.durable_seq + 1;
    loop {
        store.append(vec![append(opened.key, (next..next + 3).map(large).collect())]).await.unwrap();
        next += 3;
        println!("\nstored {}", next - 1);
    }
}

#[tokio::test]
async fn acknowledged_items_survive_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let mut acknowledged = 0;
    for round in 1..=10 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store_sqlite::child_that_is_killed", "--ignored", "--nocapture"])
            .env(CHILD_FILE, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let stored = lines.filter_map(|line| line.strip_prefix("stored ")?.parse::<u64>().ok());
        acknowledged = stored.take(round).last().expect("the child stores");
        child.kill().unwrap();
        child.wait().unwrap();
        let store = opened(&path).await.unwrap();
        let opened = store.open_session(&session(1, "job", 0), NOW_NS).await.unwrap();
        assert!(opened.durable_seq >= acknowledged && opened.durable_seq.is_multiple_of(3), "round {round}");
        assert_whole(&store, opened.key, opened.durable_seq).await;
        store.close().await.unwrap();
    }
    assert!(acknowledged >= 55 * 3);
}

#[tokio::test]
async fn the_second_opener_learns_who_is_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let first = SqliteStore::open(&path, "daemon at 127.0.0.1:4317").await.unwrap();
    for _ in 0..2 {
        let Err(error) = opened(&path).await else { panic!("two have it") };
        let StoreError::InUse { place, holder } = &error else { panic!("{error}") };
        assert_eq!(*place, path.display().to_string());
        assert_eq!(*holder, format!("process {} (daemon at 127.0.0.1:4317)", std::process::id()));
    }
    first.close().await.unwrap();
    let second = opened(&path).await.unwrap();
    drop(second);
    // The content that a dead holder left has no effect, and other text has none either.
    std::fs::write(folder.path().join("memctl.db.lock"), vec![0xff; 10_000]).unwrap();
    opened(&path).await.unwrap().close().await.unwrap();
}

/// Statements that restore the schema from before migration 3.
const BEFORE_3: [&str; 17] = [
    "DROP TABLE holders",
    "DROP TABLE watch",
    "DROP TABLE access_token",
    "DROP TABLE audit",
    "ALTER TABLE session DROP COLUMN owner",
    "ALTER TABLE session DROP COLUMN secret",
    "ALTER TABLE alert_record DROP COLUMN tenant",
    "CREATE TABLE older (
        job_id INTEGER NOT NULL, session_id INTEGER NOT NULL, seq INTEGER NOT NULL, bytes BLOB NOT NULL,
        PRIMARY KEY (job_id, session_id, seq)
    ) STRICT, WITHOUT ROWID",
    "INSERT INTO older SELECT job_id, session_id, seq, bytes FROM payload",
    "DROP TABLE payload",
    "ALTER TABLE older RENAME TO payload",
    "ALTER TABLE session DROP COLUMN stored_items",
    "ALTER TABLE session DROP COLUMN expired_items",
    "DROP INDEX session_launcher",
    "ALTER TABLE session DROP COLUMN launcher",
    "ALTER TABLE session DROP COLUMN expandable",
    "DELETE FROM memctl_migration WHERE version >= 3",
];

#[tokio::test]
async fn what_an_older_memctl_stored_stays_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let store = opened(&path).await.unwrap();
    let key = open(&store, 1, "job", 0).await;
    store.append(vec![append(key, (1..=50).map(large).collect())]).await.unwrap();
    store.close().await.unwrap();
    let mut connection = raw(&path).await;
    for statement in BEFORE_3 {
        connection.execute(statement).await.unwrap();
    }
    let is_older = "SELECT sql LIKE '%WITHOUT ROWID' FROM sqlite_schema WHERE name = 'payload'";
    assert!(sqlx::query_scalar::<_, bool>(is_older).fetch_one(&mut connection).await.unwrap());
    connection.close().await.unwrap();

    let store = opened(&path).await.unwrap();
    assert_whole(&store, key, 50).await;
    store.append(vec![append(key, (51..=60).map(large).collect())]).await.unwrap();
    assert_whole(&store, key, 60).await;
    store.close().await.unwrap();
    let mut connection = raw(&path).await;
    assert!(!sqlx::query_scalar::<_, bool>(is_older).fetch_one(&mut connection).await.unwrap());
}

#[tokio::test]
async fn a_newer_database_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    opened(&path).await.unwrap().close().await.unwrap();
    let mut connection = raw(&path).await;
    let newer = "INSERT INTO memctl_migration (version, description, success, checksum, execution_time) VALUES (99, 'x', 1, x'00', 0)";
    connection.execute(newer).await.unwrap();
    connection.close().await.unwrap();
    let before = std::fs::read(&path).unwrap();
    let Err(error) = opened(&path).await else { panic!("opened") };
    assert!(matches!(&error, StoreError::Newer { found: 99, known: 8, .. }), "{error}");
    assert!(error.to_string().contains("use the newer memctl"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn a_changed_migration_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    opened(&path).await.unwrap().close().await.unwrap();
    let mut connection = raw(&path).await;
    connection.execute("UPDATE memctl_migration SET checksum = x'00'").await.unwrap();
    connection.close().await.unwrap();
    let Err(error) = opened(&path).await else { panic!("opened") };
    assert!(matches!(&error, StoreError::Damaged { .. }), "{error}");
}

#[tokio::test]
async fn files_of_others_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "x".repeat(10_000)).unwrap();
    let other = folder.path().join("other.db");
    let mut connection = raw(&other).await;
    connection.execute("CREATE TABLE mine (x)").await.unwrap();
    connection.close().await.unwrap();
    for path in [&text, &other] {
        let before = std::fs::read(path).unwrap();
        let Err(error) = opened(path).await else { panic!("opened {}", path.display()) };
        assert!(matches!(&error, StoreError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        assert!(std::fs::read(path).unwrap() == before, "{} was changed", path.display());
    }
    // Empty files do not belong to another program.
    let empty = folder.path().join("empty.db");
    std::fs::write(&empty, "").unwrap();
    opened(&empty).await.unwrap().close().await.unwrap();
}

#[tokio::test]
async fn places_that_cannot_be_are_told() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "x").unwrap();
    for path in [folder.path().join("file/memctl.db"), folder.path().to_owned()] {
        let Err(error) = opened(&path).await else { panic!("opened {}", path.display()) };
        assert!(matches!(&error, StoreError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_folder_that_cannot_be_written_is_told() {
    // No user can create files in /sys, not even an administrator, who bypasses permissions.
    let Err(error) = opened(Path::new("/sys/memctl.db")).await else { panic!("opened") };
    assert!(matches!(&error, StoreError::ReadOnly { .. }), "{error}");
    assert!(error.to_string().contains("make it writable or use another data folder"), "{error}");
}

#[tokio::test]
async fn a_damaged_file_is_an_error_and_never_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let store = opened(&path).await.unwrap();
    let key = open(&store, 1, "job", 0).await;
    store.append(vec![append(key, (1..40).map(large).collect())]).await.unwrap();
    store.close().await.unwrap();
    let whole = std::fs::read(&path).unwrap();
    let mut noticed = 0;
    for page in 1..24 {
        std::fs::write(&path, &whole).unwrap();
        let mut damaged = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        damaged.seek(SeekFrom::Start(page * 16_384)).unwrap();
        damaged.write_all(&[0xa5; 16_384]).unwrap();
        drop(damaged);
        let found = async {
            let store = opened(&path).await?;
            let opened = store.open_session(&session(1, "job", 0), NOW_NS).await?;
            store.sessions(opened.job).await?;
            store.devices(opened.job).await?;
            store.chunks(key, 0, Selection::default()).await?;
            store.payloads(key, &(1..40).collect::<Vec<u64>>()).await?;
            store.append(vec![append(key, vec![large(40)])]).await?;
            store.delete_job(opened.job).await?;
            store.close().await
        };
        if let Err(error) = found.await {
            noticed += usize::from(matches!(error, StoreError::Damaged { .. }));
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        }
    }
    assert!(noticed >= 5, "{noticed} damaged files were noticed");
}

#[tokio::test]
async fn a_blob_that_is_no_message_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let store = opened(&path).await.unwrap();
    let key = open(&store, 1, "job", 0).await;
    store.append(vec![append(key, vec![large(1)])]).await.unwrap();
    let job = store.job(&Which::Latest, None).await.unwrap().unwrap().key;
    store.close().await.unwrap();
    for change in [
        "session SET info = x'ff'",
        "session SET info = x''",
        "session SET last_word = x'ff'",
        "session SET rank = 1, info = x'0a'",
    ] {
        let mut connection = raw(&path).await;
        connection.execute("CREATE TABLE IF NOT EXISTS kept AS SELECT * FROM session").await.unwrap();
        connection.execute(AssertSqlSafe(format!("UPDATE {change}"))).await.unwrap();
        connection.close().await.unwrap();
        let store = opened(&path).await.unwrap();
        let error = store.sessions(job).await.unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{change}: {error}");
        store.close().await.unwrap();
        let mut connection = raw(&path).await;
        let back = "UPDATE session SET (info, last_word) = (SELECT info, last_word FROM kept)";
        connection.execute(back).await.unwrap();
        connection.close().await.unwrap();
    }
}

/// Fills the store up to its limit, checks that nothing is partial, frees space and continues.
async fn fill_and_go_on(store: &SqliteStore, make_room: impl AsyncFnOnce(&SqliteStore)) {
    let key = open(store, 1, "job", 0).await;
    let (mut durable, mut refused) = (0, 0);
    while refused < 3 {
        match store.append(vec![append(key, (durable + 1..durable + 6).map(large).collect())]).await {
            Ok(()) => durable += 5,
            Err(error) => {
                assert!(matches!(&error, StoreError::Full { .. }), "{error}");
                // Retention cannot make room here, because SQLite needs room for a deletion.
                let words = error.to_string();
                assert!(words.contains("deleting from the store needs some") && !words.contains("retain"), "{words}");
                assert_whole(store, key, durable).await;
                refused += 1;
            }
        }
        assert!(durable < 10_000, "it never fills");
    }
    assert!(durable > 0);
    make_room(store).await;
    let before = durable;
    for _ in 0..2 {
        store.append(vec![append(key, (durable + 1..durable + 6).map(large).collect())]).await.unwrap();
        durable += 5;
    }
    let seqs: Vec<u64> = (before + 1..=durable).collect();
    assert_eq!(store.payloads(key, &seqs).await.unwrap().len(), 10);
}

#[tokio::test]
async fn a_full_file_takes_nothing_half_and_goes_on_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions { file_bytes_max: Some(4 << 20), ..SqliteOptions::default() };
    let store = SqliteStore::open_with(&file(&folder), "a test", options).await.unwrap();
    fill_and_go_on(&store, async |store| {
        let gone = store.expire(Retention { bytes: Some(1 << 20), ..Retention::default() }, NOW_NS).await.unwrap();
        assert!(gone.chunks > 10, "{gone:?}");
    })
    .await;
    store.close().await.unwrap();
}

/// A file system of its own, which only an administrator can mount.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(options: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "memctl-test"]).arg(folder.path()).status();
        assert!(mounted.unwrap().success(), "mounting needs an administrator");
        Self(folder)
    }

    fn remount(&self, options: &str) {
        assert!(Command::new("mount").args(["-o", options]).arg(self.0.path()).status().unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[tokio::test]
#[ignore = "mounts a tmpfs: needs an administrator"]
async fn a_full_disk_takes_nothing_half_and_goes_on_when_there_is_room() {
    let disk = SmallDisk::mount("size=12m");
    std::fs::write(disk.0.path().join("somebody-elses"), vec![1; 4 << 20]).unwrap();
    let store = opened(&disk.0.path().join("memctl.db")).await.unwrap();
    let folder = disk.0.path().to_owned();
    fill_and_go_on(&store, async move |_| std::fs::remove_file(folder.join("somebody-elses")).unwrap()).await;
    store.close().await.unwrap();
}

#[tokio::test]
#[ignore = "mounts a tmpfs: needs an administrator"]
async fn a_read_only_disk_is_told() {
    let disk = SmallDisk::mount("size=12m");
    let path = disk.0.path().join("memctl.db");
    opened(&path).await.unwrap().close().await.unwrap();
    disk.remount("remount,ro");
    let Err(error) = opened(&path).await else { panic!("opened") };
    assert!(matches!(&error, StoreError::ReadOnly { .. }), "{error}");
    disk.remount("remount,rw");
    opened(&path).await.unwrap().close().await.unwrap();
}

#[tokio::test]
#[ignore = "mounts a tmpfs: needs an administrator"]
async fn a_read_only_disk_answers() {
    let disk = SmallDisk::mount("size=12m");
    let path = disk.0.path().join("memctl.db");
    let store = opened(&path).await.unwrap();
    let key = open(&store, 1, "job", 0).await;
    store.append(vec![append(key, (1..=5).map(large).collect())]).await.unwrap();
    store.close().await.unwrap();
    disk.remount("remount,ro");
    let store = SqliteStore::open_read_only(&path).await.unwrap();
    assert_whole(&store, key, 5).await;
    store.close().await.unwrap();
    disk.remount("remount,rw");
}

#[tokio::test]
async fn a_store_that_is_only_read_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let Err(error) = SqliteStore::open_read_only(&path).await else { panic!("it is not there") };
    assert!(matches!(&error, StoreError::Unreachable { .. }), "{error}");
    let store = opened(&path).await.unwrap();
    let key = open(&store, 1, "job", 0).await;
    store.append(vec![append(key, (1..=5).map(large).collect())]).await.unwrap();
    let answer = holders(key, 7, 60_000);
    store.put_holders(&answer).await.unwrap();
    // Another process writes at the same time.
    let beside = SqliteStore::open_read_only(&path).await.unwrap();
    assert_whole(&beside, key, 5).await;
    store.append(vec![append(key, (6..=9).map(large).collect())]).await.unwrap();
    assert_whole(&beside, key, 9).await;
    beside.close().await.unwrap();
    store.close().await.unwrap();
    // No process writes.
    std::fs::remove_file(folder.path().join("memctl.db.lock")).unwrap();
    let before = std::fs::read(&path).unwrap();
    let store = SqliteStore::open_read_only(&path).await.unwrap();
    assert_whole(&store, key, 9).await;
    let refused = [
        store.append(vec![append(key, vec![large(10)])]).await.err(),
        store.open_session(&session(2, "job", 1), NOW_NS).await.err(),
        store.delete_job(1).await.err(),
        store.put_holders(&answer).await.err(),
    ];
    assert!(refused.iter().all(|error| matches!(error, Some(StoreError::ReadOnly { .. }))), "{refused:?}");
    let job = store.job(&Which::Latest, None).await.unwrap().unwrap().key;
    assert_eq!(store.holders(job, key, 7).await.unwrap(), Some(answer));
    store.expire(Retention::default(), NOW_NS).await.unwrap();
    // A file that is being read without its log cannot be opened for writing.
    let Err(error) = opened(&path).await else { panic!("it is being read") };
    assert!(matches!(&error, StoreError::InUse { .. }), "{error}");
    std::fs::remove_file(folder.path().join("memctl.db.lock")).unwrap();
    store.close().await.unwrap();
    let names: Vec<_> = folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["memctl.db"], "no file was made");
    assert!(std::fs::read(&path).unwrap() == before, "the file was changed");
    opened(&path).await.unwrap().close().await.unwrap();
}

#[tokio::test]
async fn small_rows_that_touch_many_pages_do_not_swell_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let store = opened(&path).await.unwrap();
    let mut longest = 0;
    for number in 0..600_u32 {
        let job = format!("job-{}", number.wrapping_mul(0x9e37_79b9) % 100_000);
        let key = open(&store, number + 1, &job, 0).await;
        store.append(vec![append(key, vec![chunk(1, 0)])]).await.unwrap();
        longest = longest.max(path.with_extension("db-wal").metadata().map_or(0, |file| file.len()));
    }
    assert!(longest > 16 << 20, "600 items of 100 bytes touch many pages: {longest}");
    assert!(longest < 64 << 20, "the log is moved by its own size: {longest}");
    store.close().await.unwrap();
}

#[tokio::test]
async fn the_log_stays_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let store = opened(&path).await.unwrap();
    let key = open(&store, 1, "job", 0).await;
    for first in (1..1_500).step_by(50) {
        store.append(vec![append(key, (first..first + 50).map(large).collect())]).await.unwrap();
    }
    let (file, log) = (path.metadata().unwrap().len(), path.with_extension("db-wal").metadata().unwrap().len());
    assert!(file > 60 << 20, "most of 94 MiB is in the file: {file}");
    assert!(log < 64 << 20, "the log is reused: {log}");
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_removed_lock_file_lets_no_one_in() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let first = opened(&path).await.unwrap();
    let key = open(&first, 1, "job", 0).await;
    let lock = folder.path().join("memctl.db.lock");
    // The file is opened from this process and from another one.
    std::fs::remove_file(&lock).unwrap();
    let Err(error) = opened(&path).await else { panic!("two have it") };
    assert!(matches!(&error, StoreError::InUse { .. }), "{error}");
    std::fs::remove_file(&lock).unwrap();
    let other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store_sqlite::child_that_is_killed", "--ignored", "--nocapture"])
        .env(CHILD_FILE, &path)
        .output()
        .unwrap();
    let said = [other.stdout, other.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(!other.status.success() && said.contains("InUse") && said.contains("was removed"), "{said}");
    // The holder continues, and then releases the file.
    first.append(vec![append(key, vec![large(1)])]).await.unwrap();
    first.close().await.unwrap();
    opened(&path).await.unwrap().close().await.unwrap();
}

#[tokio::test]
async fn a_flipped_bit_costs_one_item_and_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let store = opened(&path).await.unwrap();
    let key = open(&store, 1, "job", 0).await;
    let items =
        (1..=200).map(|seq| item(seq, ItemKind::SiteTables, None)).chain([keyframe(201, 10), keyframe(202, 20)]);
    store.append(vec![append(key, items.collect())]).await.unwrap();
    store.close().await.unwrap();
    let mut connection = raw(&path).await;
    let flip = "UPDATE payload SET bytes = CAST(substr(bytes, 1, 9) || x'00' || substr(bytes, 11) AS BLOB) WHERE seq BETWEEN 101 AND 164 OR seq IN (7, 202)";
    connection.execute(flip).await.unwrap();
    // The row has no checksum, like a row stored by an older version.
    connection.execute("UPDATE payload SET checksum = NULL WHERE seq = 8").await.unwrap();
    connection.close().await.unwrap();
    let store = opened(&path).await.unwrap();
    assert_eq!(store.damaged(), []);
    let read = store.items(key, ItemKind::SiteTables, None, Selection::default()).await.unwrap();
    let sound: Vec<u64> = (1..=200).filter(|seq| *seq != 7 && !(101..=164).contains(seq)).collect();
    assert_eq!(read.iter().map(|item| item.seq).collect::<Vec<_>>(), sound);
    let damaged: Vec<u64> = std::iter::once(7).chain(101..=164).collect();
    assert_eq!(store.damaged(), damaged.iter().map(|seq| (key, *seq)).collect::<Vec<_>>());
    let asked: Vec<u64> = (5..=9).collect();
    let read = store.items_at(key, &asked).await.unwrap();
    assert_eq!(read.iter().map(|item| item.seq).collect::<Vec<_>>(), [5, 6, 8, 9]);
    // A page of only damaged items does not end the listing, and neither does a page with some of them.
    let after = store.items_after(key, ItemKind::SiteTables, 100, 64).await.unwrap();
    assert_eq!((after.items, after.looked_to), (vec![], Some(164)));
    let after = store.items_after(key, ItemKind::SiteTables, 90, 20).await.unwrap();
    assert_eq!((after.items.len(), after.looked_to), (10, Some(110)));
    // The previous keyframe works too.
    let keyframe = store.keyframe_before(key, 0, 30).await.unwrap().unwrap();
    assert_eq!(keyframe.seq, 201);
    assert!(store.damaged().contains(&(key, 202)));
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_file_becomes_smaller_when_there_is_less_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let store = opened(&path).await.unwrap();
    let key = open(&store, 1, "job", 0).await;
    for first in (1..400).step_by(50) {
        store.append(vec![append(key, (first..first + 50).map(large).collect())]).await.unwrap();
    }
    let full = store.size_bytes().await.unwrap();
    assert!(full > 25 << 20, "{full}");
    store.expire(Retention { bytes: Some(2 << 20), ..Retention::default() }, NOW_NS).await.unwrap();
    let left = path.metadata().unwrap().len();
    assert!(left < 4 << 20, "{left} bytes for 2 MiB");
    assert_eq!(store.chunks(key, 0, Selection::default()).await.unwrap().last().unwrap().seq, 400);
    store.close().await.unwrap();
}
